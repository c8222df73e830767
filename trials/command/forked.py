"""Runs a command's script in a process that is forked from this one, as if started by hand.

Importing torch and the libraries of a training takes seconds. A process that has done nothing but
import them is as good as a new one, so a script that begins there only skips that time.
"""

import atexit
import builtins
import os
import shutil
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

_SCRIPT = 1  # position of the script in the command line


def is_plain_script(argv: Sequence[str]) -> bool:
    """Whether the words are `python script.py ...`, with this Python and none of its options."""
    program = shutil.which(argv[0])
    if program is None or len(argv) <= _SCRIPT or not argv[_SCRIPT].endswith(".py"):
        return False
    is_same = os.path.realpath(program) == os.path.realpath(sys.executable)
    # The programs of two virtual environments may be links to one.
    return is_same and Path(program).absolute().parent == Path(sys.executable).absolute().parent


class ForkedScript:
    """A running script, in a process forked from this one; as `subprocess.Popen` in what it has.

    Args:
        argv: the words of a plain script, see `is_plain_script`.
        cwd: the folder that it runs in.
        env: its environment, with an order for the hooks.
    """

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv, cwd, env)

    def poll(self) -> int | None:
        """Return the exit status, or minus the number of the signal; None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Wait until it has ended; return as `poll` does."""
        code = self._waited(0)
        assert code is not None
        return code

    def _waited(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _become(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> NoReturn:
    """Turn this process into one that runs the script, and end with its exit status."""
    code = 1
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        code = _run(argv)
    finally:
        _end(code)


def _run(argv: Sequence[str]) -> int:
    """Attach the hooks and run the script; return its exit status."""
    from autotune.trials.command.hooks import attach  # noqa: PLC0415  in the script's process only

    attach()
    try:
        _execute(argv)
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001  as the interpreter does at its top
        error = error.with_traceback(_of_script(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _of_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the part of a traceback that begins in the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename == _run.__code__.co_filename:
        trace = trace.tb_next
    return trace


def _execute(argv: Sequence[str]) -> None:
    """Execute the script as the interpreter would."""
    path = Path(argv[_SCRIPT])
    file = str(path.absolute())
    linked = path.parent / path.readlink() if path.is_symlink() else path
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=file, __builtins__=builtins, __loader__=SourceFileLoader("__main__", file)
    )
    sys.modules["__main__"] = main
    sys.argv = list(argv[_SCRIPT:])
    sys.path.insert(0, str(linked.absolute().parent))
    code = compile(path.read_bytes(), file, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102  the user's own script


def _end(code: int) -> NoReturn:
    """End this process as the interpreter does, without the frames that it was forked in."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  waits for threads
        atexit._run_exitfuncs()  # noqa: SLF001  nothing public runs them
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
