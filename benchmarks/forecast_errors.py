"""How well are the trials of stored runs forecast from those before them?

    python benchmarks/forecast_errors.py STORE.db [...]

Each search trial that was measured to its end is forecast as the search would have done it then.
Printed are errors of the log throughput, by kind of device and by the trial's place in its run.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from autotune.agent.done import done_from_records  # noqa: E402
from autotune.agent.forecast.speed import Forecast  # noqa: E402
from autotune.agent.history import SEARCH, History  # noqa: E402
from autotune.errors import AutotuneError  # noqa: E402
from autotune.search_space.facts import WorkloadFacts  # noqa: E402
from autotune.search_space.hardware import Hardware  # noqa: E402
from autotune.search_space.space import Narrowing, build_space  # noqa: E402
from autotune.storage.records import RunRecord  # noqa: E402
from autotune.storage.sql import SqlStore, open_store  # noqa: E402

PLACES = {"first": range(1, 2), "second to fourth": range(2, 5), "later": range(5, 10_000)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for path in parser.parse_args().stores:
        with closing(open_store(path)) as store:
            for run in store.runs():
                for device, place, error, deviation in errors_of(store, run):
                    found.setdefault((device, place), []).append((error, deviation))
    print(
        "| device | trial after the baseline | trials | mean error | bias | beyond 2 deviations |"
    )
    print("|---|---|---|---|---|---|")
    for (device, place), rows in sorted(found.items()):
        errors = [error for error, _ in rows]
        beyond = statistics.fmean(abs(error) > 2 * deviation for error, deviation in rows)
        mean, bias = statistics.fmean(map(abs, errors)), statistics.fmean(errors)
        print(f"| {device} | {place} | {len(rows)} | {mean:.3f} | {bias:+.3f} | {beyond:.2f} |")


def errors_of(store: SqlStore, run: RunRecord) -> Iterator[tuple[str, str, float, float]]:
    """Yield the device, the place, log(measured / forecast), and its expected deviation."""
    try:
        facts = WorkloadFacts.from_dict(dict(run.new.facts))
        hardware = Hardware.from_dict(dict(run.new.hardware))
        space = build_space(facts, hardware, Narrowing(), run.new.num_ranks)
    except (AutotuneError, KeyError, TypeError) as error:
        sys.stderr.write(f"{run.name} is left out: {error!r}\n")  # an earlier version's
        return
    records = done_from_records(store.trials(run.id))
    done = [trial for trial in records if trial.num_ranks == run.new.num_ranks]
    search = [trial for trial in done if trial.purpose in SEARCH]
    for place, trial in enumerate(search):
        before = tuple(other for other in done if other.number < trial.number)
        history = History(space=space, memory_cap_bytes=math.inf, done=before)
        measured = trial.result.measurement
        if measured is None or measured.raced or place == 0 or history.baseline is None:
            continue
        (outlook,) = Forecast(history, hardware).of([trial.plan])
        named = next(name for name, places in PLACES.items() if place in places)
        deviation = math.hypot(outlook.log_std, measured.log_half_width / 2)
        yield hardware.device_kind, named, math.log(trial.throughput) - outlook.log_mean, deviation


if __name__ == "__main__":
    main()
