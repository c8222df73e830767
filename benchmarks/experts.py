"""How fast an experienced engineer gets each workload of the zoo by hand: plain PyTorch loops.

    python benchmarks/experts.py causal_lm resnet50_jpeg --seconds 5 --limit 60
    python benchmarks/experts.py --within 9m --out benchmarks/live/experts.jsonl

Each setting of experts_settings.py is tried in a process of its own, which ends at its limit. The
results are written down one by one, so that those of a run that is cut short are kept. A name is
that of a file in benchmarks/zoo, or the path of another workload; without names it is all of them.
"""

import argparse
import contextlib
import datetime as dt
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experts_settings import settings_for

FOLDER = Path(__file__).parent
ZOO = FOLDER / "zoo"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def main():
    args = parse_args()
    stop_on_sigterm()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="experts-") as cache:
        # Kernels compiled here must not be found by what is compared with it later.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        environment["TRITON_CACHE_DIR"] = str(Path(cache) / "triton")
        for path in args.workloads:
            best = try_settings(path, args, environment)
            print(f"{path.stem}: best {describe(best)}\n", flush=True)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", type=workload_path, metavar="WORKLOAD")
    parser.add_argument("--seconds", type=seconds, default=5.0, help="of measuring, at most")
    parser.add_argument("--limit", type=seconds, default=60.0, help="wall clock of a setting")
    parser.add_argument("--within", type=seconds, default=float("inf"), help="wall clock of all")
    parser.add_argument(
        "--out", type=Path, default=FOLDER / "live" / "experts.jsonl", help="lines are appended"
    )
    args = parser.parse_args()
    args.workloads = args.workloads or sorted(ZOO.glob("*.py"))
    args.end = time.monotonic() + args.within
    return args


def stop_on_sigterm():
    """Let SIGTERM end this process as an error does, so that it ends what it started, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def workload_path(name):
    path = Path(name) if name.endswith(".py") else ZOO / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in ZOO.glob("*.py")))
        raise argparse.ArgumentTypeError(f"there is no file {path}; the zoo has {known}")
    return path.resolve()


def seconds(text):
    """Return the seconds of 90, 90s, 2m or 1h."""
    found = re.fullmatch(r"([\d.]+)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90s, 2m or 1h")
    return float(found[1]) * UNITS[found[2]]


def try_settings(path, args, environment):
    """Try one workload's settings while there is time; return the fastest's result, if any."""
    results = []
    for setting in settings_for(path.stem, device_kind()):
        left_s = args.end - time.monotonic()
        if left_s < min(args.limit, 15.0):
            print(f"{path.stem}: no time left for {json.dumps(setting)}", flush=True)
            continue
        result = try_setting(path, setting, args.seconds, min(args.limit, left_s), environment)
        results.append(result)
        print(f"{path.stem}: {describe(result)}", flush=True)
        with args.out.open("a") as file:
            file.write(json.dumps({**result, **origin()}) + "\n")
    measured = [result for result in results if result["throughput"] is not None]
    return max(measured, key=lambda result: result["throughput"], default=None)


@functools.cache
def device_kind():
    """Return `cuda` or `cpu`; this process leaves the device alone."""
    check = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    done = subprocess.run([sys.executable, "-c", check], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


def try_setting(path, setting, seconds_s, limit_s, environment):
    """Run one setting in its own process; return what it measured, or how it failed."""
    loop = [sys.executable, str(FOLDER / "experts_loop.py"), str(path)]
    command = [*loop, "--setting", json.dumps(setting), "--seconds", str(seconds_s)]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        code = run_for(limit_s, command, stdout=out, stderr=log, env=environment)
        out.seek(0)
        log.seek(0)
        measured = json.loads(out.read()) if code == 0 else {"throughput": None}
        error = None if code == 0 else failure(code, log.read(), limit_s)
    took_s = time.monotonic() - start
    known = {"workload": path.stem, "setting": setting, "error": error}
    return {**known, "took_s": took_s, "num_devices": 1, **measured}


def run_for(limit_s, command, **options):
    """Return the exit code, or None when the process and its workers were killed at the limit."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failure(code, log, limit_s):
    if code is None:
        return f"not done within {limit_s:.0f} s"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return f"exit code {code}: {(errors or lines or ['no output'])[-1][:200]}"


def describe(result):
    if result is None:
        return "unknown, nothing was measured"
    setting = json.dumps(result["setting"])
    if result["throughput"] is None:
        return f"failed in {result['took_s']:.0f} s, {result['error']}  {setting}"
    return (
        f"{result['throughput']:,.1f} samples/s, spread {result['spread']:.1%}, "
        f"in {result['took_s']:.0f} s  {setting}"
    )


def origin():
    """Return when and by which command a result came about."""
    now = dt.datetime.now(dt.UTC)
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {"at": now.isoformat(timespec="seconds"), "command": shlex.join(words)}


if __name__ == "__main__":
    main()
