"""The search strategies that are compared: autotune's agent and others.

Each takes a `Game` and measures plans until the game is over or it has no more plans to try. The
others get an advantage over the agent: a plan that they propose again, or that is not in the
table, costs them no time.
"""

import contextlib
import math
import random
import warnings

import optuna
from games import Over

from autotune.agent.agenda import Agenda
from autotune.agent.conclusion.confirm import Ending
from autotune.agent.history import SEARCH
from autotune.agent.journal import Journal
from autotune.agent.observer import SilentObserver
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import stages_of
from autotune.clock import Budget, FakeClock
from autotune.dispatch.replay import ReplayRunner
from autotune.search_space.plan import Plan
from autotune.trials.request import TrialRequest

BUDGET_S = 3600.0  # of the agent, in replayed seconds
MOST_REPEATS = 10  # of a sampler, before it gets a random plan
PLATEAU = 0.05  # relative gain below which DeepSpeed takes larger batches to be no faster
DEEPSPEED_PATIENCE = 5  # its trials without a gain, after which it stops


def agent(game):
    """Run autotune's agent with a budget of an hour, until its search ends."""
    clock, hardware = FakeClock(), game.table.hardware
    settings = SearchSettings(budget_s=BUDGET_S, seed=game.seed)
    journal = Journal((game.space,), game.memory_cap_bytes, ())
    agenda = Agenda(
        stages=stages_of(game.space, None, settings, hardware),
        ending=Ending(settings=settings, hardware=hardware),
        journal=journal,
        settings=settings,
        budget=Budget(clock=clock, total_s=BUDGET_S, started_at=0.0),
        observer=SilentObserver(),
    )
    runner = ReplayRunner(hardware, game.results, clock=clock)
    while (proposal := agenda.next(1)) and proposal.purpose in SEARCH:
        above = agenda.interesting_above(proposal)
        number = journal.start(proposal)
        runner.submit(request_of(number, proposal, above))
        (finished,) = runner.wait(math.inf)
        journal.end(number, finished.result)
        game.pay(proposal.plan, finished.result)


def request_of(number, proposal, above):
    return TrialRequest(
        number=number,
        plan=proposal.plan,
        purpose=proposal.purpose,
        workload_path="",
        working_dir="",
        device_kind="",
        interesting_above=above,
    )


def random_search(game):
    """Measure every plan once, in random order."""
    plans = list(game.results)
    random.Random(game.seed).shuffle(plans)  # noqa: S311  not for secrets
    for plan in plans:
        game.measure(plan)


def one_at_a_time(game):
    """Try each knob's values with the other knobs at their best so far, until nothing changes."""
    rng = random.Random(game.seed)  # noqa: S311  not for secrets
    best = game.space.baseline
    before, best_value = None, game.value(game.measure(best))
    while best != before:
        before, names = best, list(best)
        rng.shuffle(names)
        for name in names:
            for plan in game.space.alternatives(best, name):
                value = game.value(game.measure(plan))
                if value > best_value:
                    best, best_value = plan, value


def tpe(game):
    """Run Optuna's TPE by its defaults: knobs are categories, failures are reported as such."""
    optimise(game, optuna.samplers.TPESampler(seed=game.seed), ordered=False)


def tpe_multivariate(game):
    """Run Optuna's multivariate TPE in groups, with counts as numbers and a memory constraint."""
    sampler = optuna.samplers.TPESampler(seed=game.seed, multivariate=True, group=True)
    optimise(game, sampler, ordered=True)


def gaussian_process(game):
    """Run Optuna's GP sampler with a memory constraint; it needs every knob in every trial."""
    sampler = optuna.samplers.GPSampler(seed=game.seed)
    optimise(game, sampler, ordered=True, conditional=False)


def optimise(game, sampler, *, ordered, conditional=True):
    """Ask the sampler for plans until all are measured.

    When it repeats itself too often, a random plan is measured instead.
    """
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rng, repeats = random.Random(game.seed), 0  # noqa: S311  not for secrets
    while len(game.known) < len(game.results):
        if repeats == MOST_REPEATS:
            left = [plan for plan in game.results if plan not in game.known]
            study.enqueue_trial(encoded(rng.choice(left), game.space, ordered))
        trial = study.ask()
        plan = suggest(trial, game.space, ordered, conditional)
        repeats = 0 if plan and plan not in game.known else repeats + 1
        if plan is None or repeats:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        value = game.value(game.measure(plan))
        if not value and not ordered:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        if ordered:
            trial.set_constraint("runs", 0.0 if value else 1.0)
        study.tell(trial, math.log(value or 1.0))


def encoded(plan, space, ordered):
    """Return the plan as Optuna's parameters; knobs that do not apply have their first value."""
    given = {d.knob.name: plan.get(d.knob.name, d.values[0]) for d in space.domains}
    in_order = [d for d in space.domains if ordered and d.knob.any_count]
    places = {d.knob.name: sorted(d.values, key=int).index(given[d.knob.name]) for d in in_order}
    return given | places


def suggest(trial, space, ordered, conditional):
    chosen = {}
    for domain in space.domains:
        name, values = domain.knob.name, domain.values
        if len(values) == 1 or (conditional and not domain.knob.active(Plan.of(chosen))):
            continue
        if ordered and domain.knob.any_count:
            values = sorted(values, key=int)
            chosen[name] = values[trial.suggest_int(name, 0, len(values) - 1)]
        else:
            chosen[name] = trial.suggest_categorical(name, values)
    return space.possible(chosen)


def deepspeed(game):
    """Search as DeepSpeed's autotuner: first the micro-batch, then a grid over the other knobs.

    As in its `autotuner.py`, the user's micro-batch is doubled until throughput grows by less than
    5 % or memory runs out. Then its default tuner, grid search, runs at the batches from half of
    the largest one, until five trials bring no gain. It would search over ZeRO stages and buckets,
    which one device does not have; so here it searches over every knob of the space.
    """
    base, best = game.space.baseline, 0.0
    batches = sorted(int(b) for b in game.space.by_name["batch_size"].values)
    largest = int(base["batch_size"])
    for batch in (b for b in batches if b >= largest):
        plan = game.space.possible({"batch_size": batch}, base)
        value = game.value(game.measure(plan)) if plan else 0.0
        if value < best * (1 + PLATEAU):
            break
        best, largest = value, batch
    stale = 0
    for plan in game.space.enumerate():
        if stale == DEEPSPEED_PATIENCE:
            return
        if largest // 2 <= int(plan["batch_size"]) <= largest and plan not in game.known:
            value = game.value(game.measure(plan))
            best, stale = max(best, value), 0 if value > best else stale + 1


PLAYERS = {
    "autotune": agent,
    "Optuna TPE": tpe,
    "Optuna TPE, multivariate": tpe_multivariate,
    "Optuna GP": gaussian_process,
    "one knob at a time": one_at_a_time,
    "random": random_search,
    "DeepSpeed's procedure": deepspeed,
}
SAMPLERS = ("Optuna TPE", "Optuna TPE, multivariate", "Optuna GP")


def play(name, game):
    """Run the named strategy on a game until it ends; the game holds the result."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings(), contextlib.suppress(Over):
        warnings.simplefilter("ignore")
        PLAYERS[name](game)
    return game
