"""What does a whole run find within its budget? Tables played from command to conclusion.

    python benchmarks/whole_runs.py --budgets 90s,2m,5m --seeds 3
    python benchmarks/whole_runs.py benchmarks/tables/gpt-nvidia-h200.jsonl --trace

Every phase has its price: start-up before the first trial, the trials as they were recorded (a
compiled plan that runs again finds most of its kernels in the cache), checks of the numerics, the
confirmation in other processes than the search. The score is the confirmed winner over the best
plan of the table, both by the median of their processes; a run without a confirmed winner counts
as its baseline.

With `--search tpe` (Optuna's, multivariate, in groups) or `--search random` others choose the
plans, with all else equal: what may not be tried, when slow trials end, how winners are confirmed.
"""

import argparse
import concurrent.futures
import dataclasses
import math
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from games import Game  # noqa: E402
from players import request_of  # noqa: E402

from autotune.agent.agenda import Agenda  # noqa: E402
from autotune.agent.conclusion.conclude import conclude  # noqa: E402
from autotune.agent.conclusion.confirm import Ending  # noqa: E402
from autotune.agent.history import SEARCH  # noqa: E402
from autotune.agent.journal import Journal  # noqa: E402
from autotune.agent.observer import SilentObserver  # noqa: E402
from autotune.agent.proposal import Proposal  # noqa: E402
from autotune.agent.proposers.sampler import Sampler  # noqa: E402
from autotune.agent.proposers.strategy import Strategy  # noqa: E402
from autotune.agent.settings import SearchSettings  # noqa: E402
from autotune.agent.stages import Stage, stages_of  # noqa: E402
from autotune.clock import Budget, FakeClock  # noqa: E402
from autotune.dispatch.replay import ReplayRunner  # noqa: E402
from autotune.dispatch.table import read_table  # noqa: E402
from autotune.search_space.knobs import is_compiled  # noqa: E402
from autotune.trials.request import COMPARED_STEPS  # noqa: E402
from autotune.trials.result import Outcome, Purpose, TrialResult  # noqa: E402
from tests.agent.world import passed  # noqa: E402

START_UP_S = {"cuda": 12.0, "cpu": 4.0}  # from the command to the first trial
# Part of a cold first step that a later process of the plan needs: 14.5 s cold, 4.6 and 4.1 again.
CACHED = 0.32
DIAGNOSIS_S = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Randomly:
    """Proposes the untried plans of a table in random order."""

    game: Game

    def candidates(self, history):
        """Yield the plans that were not tried."""
        plans = [plan for plan in self.game.results if plan not in history.tried]
        random.Random(self.game.seed).shuffle(plans)  # noqa: S311  not for secrets
        for plan in plans:
            yield Proposal(plan=plan, purpose=Purpose.SAMPLER, reason="by chance")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """Proposes what Optuna's TPE samples of the plans of a table."""

    game: Game

    def candidates(self, history):
        """Yield samples that the table has, and then its untried plans in random order."""
        samples = Sampler(seed=self.game.seed).candidates(history)
        yield from (sample for sample in samples if sample.plan in self.game.results)
        yield from Randomly(game=self.game).candidates(history)


OTHERS = {"tpe": Sampled, "random": Randomly}


def stages_by(search, game, settings):
    """Return the stages of autotune's search, or one stage in which another one proposes."""
    hardware = game.table.hardware
    if search == "autotune":
        return stages_of(game.space, None, settings, hardware)
    proposers = (OTHERS[search](game=game),)
    strategy = Strategy(hardware, lambda history: proposers)
    return (Stage(name=search, space=game.space, strategy=strategy, why_over=lambda *_: None),)


class WholeRun(ReplayRunner):
    """Plays what the search asks, with the price of each purpose."""

    def __init__(self, game, clock, start_s=0.0):
        super().__init__(game.table.hardware, lambda plan: self._play_one(start_s), clock=clock)
        self._game, self._rng = game, random.Random(game.seed)  # noqa: S311  not for secrets
        self._compiled, self._asked = set(), None

    def submit(self, request):
        """Start a trial, and know what it asks for."""
        self._asked = request
        super().submit(request)
        if is_compiled(request.plan):
            self._compiled.add(program(request.plan))

    def _play_one(self, start_s):
        request = self._asked
        is_check = request.purpose is Purpose.NUMERICS
        played = self._checked(request.plan) if is_check else self._process_of(request)
        more_s = start_s + DIAGNOSIS_S * (request.purpose is Purpose.BASELINE)
        return dataclasses.replace(played, total_s=played.total_s + more_s)

    def _process_of(self, request):
        """Return the process that the search saw, or another one for the confirmation."""
        if request.purpose in SEARCH:
            found = self._game.results[request.plan]
        else:
            found = self._rng.choice(self._game.table.results[request.plan])
        measured = found.measurement
        if measured is None or program(request.plan) not in self._compiled:
            return found
        spared_s = (1 - CACHED) * measured.first_step_s
        again = dataclasses.replace(measured, first_step_s=measured.first_step_s - spared_s)
        return dataclasses.replace(found, measurement=again, total_s=found.total_s - spared_s)

    def _checked(self, plan):
        """A check builds the plan and its eager twin, and takes a few steps of both."""
        known = self._game.results.get(plan)
        measured = known.measurement if known else None
        if measured is None:
            return TrialResult(outcome=Outcome.OK, numerics=passed(), total_s=10.0)
        started_s = known.total_s - sum(
            (measured.build_s, measured.first_step_s, measured.warm_up_s, measured.measure_s)
        )
        cached = CACHED if program(plan) in self._compiled else 1.0
        # An eager step in fp32 takes some five times as long.
        steps_s = COMPARED_STEPS * 6 * measured.step_ms / 1000
        total_s = started_s + 2 * measured.build_s + cached * measured.first_step_s + steps_s
        return TrialResult(outcome=Outcome.OK, numerics=passed(), total_s=total_s)


def program(plan):
    """Return what the compiler's cache knows the plan by."""
    names = ("compile_mode", "compile_scope", "precision", "memory_format", "batch_size")
    return tuple(plan.get(name, "") for name in names)


def main():
    args = parse_args()
    jobs = [(p, b, s, args) for p in args.tables for b in args.budgets for s in args.seeds]
    with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
        runs = list(pool.map(played, *zip(*jobs, strict=True)))
    print("| table | budget | score: mean | worst | unconfirmed | trials | used |")
    print("|---|---|---|---|---|---|---|")
    for path in args.tables:
        for budget in args.budgets:
            mine = [r for job, r in zip(jobs, runs, strict=True) if job[:2] == (path, budget)]
            print(row(path.stem, budget, mine))
    for budget in args.budgets:
        scores = [r["score"] for job, r in zip(jobs, runs, strict=True) if job[1] == budget]
        print(f"{budget:.0f} s: mean {statistics.fmean(scores):.3f}, worst {min(scores):.3f}")


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found = sorted((HERE / "tables").glob("*.jsonl"))
    parser.add_argument("tables", type=Path, nargs="*", default=found)
    parser.add_argument("--budgets", type=durations, default=[120.0, 300.0, 900.0])
    parser.add_argument("--seeds", type=lambda text: range(int(text)), default=range(3))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--start", type=float, default=0.0, help="more seconds in each trial, for imports"
    )
    parser.add_argument("--search", choices=["autotune", *OTHERS], default="autotune")
    parser.add_argument("--trace", action="store_true", help="print the trials of each run")
    return parser.parse_args()


def durations(text):
    units = {"s": 1, "m": 60}
    return [float(part[:-1]) * units[part[-1]] for part in text.split(",")]


def played(path, budget_s, seed, args):
    """Play one run and return its score and what it did."""
    table = read_table(path)
    settings = SearchSettings(budget_s=budget_s, seed=seed)
    memory_cap_bytes = settings.memory_cap_bytes(table.hardware)
    game = Game(table, memory_cap_bytes=memory_cap_bytes, seed=seed)
    clock = FakeClock()
    budget = Budget(clock=clock, total_s=budget_s, started_at=0.0)
    clock.sleep(START_UP_S[table.hardware.device_kind])
    journal = Journal((game.space,), memory_cap_bytes, ())
    agenda = Agenda(
        stages=stages_by(args.search, game, settings),
        ending=Ending(settings=settings, hardware=table.hardware),
        journal=journal,
        settings=settings,
        budget=budget,
        observer=SilentObserver(),
    )
    run_all(agenda, journal, WholeRun(game, clock, args.start))
    winner = conclude(agenda.history, settings.gain)
    counted = winner.plan if winner.confirmed else game.space.baseline
    lines = [
        f"  {t.number} {t.purpose.value} {t.result.outcome.value} {t.result.total_s:.1f} s "
        f"{game.truth.get(t.plan, 0.0) / game.best:.2f} {t.reason}"
        for t in journal.done
    ]
    if args.trace:
        print(f"{path.stem} {budget_s:.0f} s seed {seed}", *lines, sep="\n", flush=True)
    return {
        "score": game.truth[counted] / game.best,
        "confirmed": winner.confirmed,
        "trials": Counter(t.purpose in SEARCH for t in journal.done)[True],
        "used_s": budget.used_s,
    }


def run_all(agenda, journal, runner):
    while proposal := agenda.next(1):
        above = agenda.interesting_above(proposal)
        give_up_after_s, cause = agenda.limit(proposal)
        number = journal.start(proposal)
        request = dataclasses.replace(
            request_of(number, proposal, above),
            give_up_after_s=give_up_after_s,
            give_up_cause=cause,
        )
        runner.submit(request)
        (finished,) = runner.wait(math.inf)
        journal.end(number, finished.result)


def row(name, budget_s, runs):
    scores = [run["score"] for run in runs]
    unconfirmed = sum(not run["confirmed"] for run in runs)
    trials = statistics.fmean(run["trials"] for run in runs)
    used_s = statistics.fmean(run["used_s"] for run in runs)
    return (
        f"| {name} | {budget_s:.0f} s | {statistics.fmean(scores):.3f} | {min(scores):.3f} | "
        f"{unconfirmed} of {len(runs)} | {trials:.0f} | {used_s:.0f} s |"
    )


if __name__ == "__main__":
    main()
