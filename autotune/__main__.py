"""`python -m autotune`: the same as the `autotune` command, also from a checkout."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # the exit code of a run that was told to end


def main() -> NoReturn:
    """Run the command line; `autotune run` says its first word before anything is imported."""
    if sys.argv[1:2] == ["run"] and "--help" not in sys.argv:
        sys.stderr.write("autotune run: starting\n")
        sys.stderr.flush()
        from autotune.cli.stopping import handle_signals  # noqa: PLC0415  in milliseconds

        handle_signals(_leave)
    from autotune.cli.main import main as run_command  # noqa: PLC0415  imports take a second

    try:
        run_command()
    finally:
        # All is written; a scheduler's signal now would only spoil the exit code.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"autotune: stopped before anything was run\n")
    sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
