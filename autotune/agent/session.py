"""The use cases behind the commands: inspect a workload, tune it, measure one plan of it."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from autotune.agent.observer import Observer
from autotune.agent.proposers.earlier import compiled_earlier, found_earlier
from autotune.agent.request import TuneRequest
from autotune.agent.settings import SearchSettings
from autotune.agent.spaces import Spaces, check_devices, spaces_of, this_machine
from autotune.agent.startup import MeasuredPlan
from autotune.clock import Budget, SystemClock
from autotune.dispatch.clusters import LocalCluster, SharedCluster
from autotune.errors import NothingRanError, UsageError, WorkloadError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import NAMED_IN_FULL, Narrowing, Space, build_space
from autotune.search_space.target import Target
from autotune.storage.driver import lives, pid_of, this_driver
from autotune.storage.records import NewRun, RunRecord, RunState
from autotune.storage.sql import SqlStore, open_store
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.request import Deadlines, ProbeRequest, RankPlace, TrialRequest
from autotune.trials.result import Outcome, Purpose, TrialResult

LOG_DIR = Path("autotune-logs")
PROBE_TIMEOUT_S = 300.0

_PATIENCE_S = (
    3600.0  # seconds after which `autotune measure` gives up; its user may stop it before
)


def look_at(
    target: Target, narrowing: Narrowing, *, num_ranks: int = 1, seed: int = 0
) -> tuple[Hardware, Spaces]:
    """Return the machine, and the spaces of the target on it.

    Raises:
        WorkloadError: when the workload breaks its contract.
        UsageError: when the narrowing has an unknown knob or value, or devices are too few.
    """
    hardware = this_machine(num_ranks)
    with _local_cluster(hardware, target) as cluster:
        cluster.start_probe(_probe_request(target, hardware, seed))
        facts = cluster.facts(PROBE_TIMEOUT_S)
    _check_ranks(facts, num_ranks)
    return hardware, spaces_of(facts, hardware, narrowing, num_ranks)


def tune(
    request: TuneRequest,
    make_observer: Callable[[RunRecord, Space, Budget], Observer],
    is_stopped: Callable[[], bool],
) -> RunRecord:
    """Find, confirm and store the best plan; return the finished run.

    Args:
        request: what to tune, and how long.
        make_observer: returns the observer that is told of every trial.
        is_stopped: asked often; once it returns true, the run ends with the trials so far.

    Raises:
        AutotuneError: see `autotune.errors`; everything measured before it is in the store.
    """
    clock = SystemClock()
    started_at = clock.now() if request.started_at is None else request.started_at
    log_dir = _log_dir()
    with (
        closing(open_store(request.storage)) as store,
        _open_cluster(request) as cluster,
    ):
        cluster.start_probe(_probe_request(request.target, cluster.hardware, request.seed))
        # Seconds of imports, while the probe looks at the workload.
        from autotune.agent.search import Search  # noqa: PLC0415
        from autotune.dispatch.ray_runner import RayRunner  # noqa: PLC0415

        with RayRunner(cluster, log_dir=log_dir) as runner:
            runner.start()
            facts = cluster.facts(request.budget_s)
            _check_ranks(facts, request.num_ranks)
            spaces = spaces_of(facts, cluster.hardware, request.narrowing, request.num_ranks)
            run = _open_run(store, request, cluster.hardware, spaces.whole)
            budget = Budget(
                clock=clock,
                total_s=request.budget_s,
                started_at=started_at,
                used_before_s=run.used_s,
            )
            observer = make_observer(run, spaces.whole, budget)
            for beside in _runs_beside(store, run):
                observer.on_note(beside)
            search = Search(
                space=spaces.whole,
                scouting=spaces.scouting,
                earlier=found_earlier(store, run),
                compiled_earlier=_compiled_earlier(store, run, request),
                runner=runner,
                store=store,
                run=run,
                settings=_settings(request),
                budget=budget,
                observer=observer,
                is_stopped=is_stopped,
                log_dir=log_dir,
            )
            search.run()
        return store.run(str(run.id))


def _local_cluster(hardware: Hardware, target: Target) -> LocalCluster:
    return LocalCluster(hardware, target.path, target.command)


def _probe_request(target: Target, hardware: Hardware, seed: int) -> ProbeRequest:
    return ProbeRequest(
        workload_path=str(target.path),
        working_dir=str(Path.cwd()),
        hardware=hardware,
        seed=seed,
        command=target.command,
        arguments=target.arguments,
    )


def _check_ranks(facts: WorkloadFacts, num_ranks: int) -> None:
    """Raise an error where a command starts another number of ranks than a trial has devices.

    Raises:
        UsageError: with the number to give.
    """
    if facts.command is not None and facts.world_size != num_ranks:
        raise UsageError(
            f"the command trains with {facts.world_size} processes together, and --gpus-per-trial "
            f"is {num_ranks}; give --gpus-per-trial {facts.world_size}"
        )


def _compiled_earlier(
    store: SqlStore, run: RunRecord, request: TuneRequest
) -> tuple[MeasuredPlan, ...]:
    return compiled_earlier(store, run) if request.objective.weighs_start else ()


def _open_cluster(request: TuneRequest) -> LocalCluster | SharedCluster:
    if request.ray_address is None:
        return _local_cluster(this_machine(request.num_ranks), request.target)
    if request.target.command is not None:
        raise UsageError("a command is tuned on this machine only; leave --ray-address out")
    cluster = SharedCluster(
        request.ray_address, num_ranks=request.num_ranks, workload=request.target.path
    )
    check_devices(cluster.hardware, request.num_ranks, "the cluster has")
    return cluster


def measure_plan(
    target: Target,
    values: dict[str, Value],
    *,
    num_ranks: int = 1,
    seed: int = 0,
    diagnosis: DiagnosisRequest | None = None,
) -> tuple[Plan, Plan, TrialResult]:
    """Measure one plan in fresh processes; return the plan, the baseline and the result.

    Args:
        target: what to measure.
        values: knobs of the plan; the rest is the baseline's.
        num_ranks: devices, with a process each.
        seed: of parameters and data order.
        diagnosis: what to diagnose afterwards in the same process; None: nothing.

    Raises:
        WorkloadError: when the workload breaks its contract or raises.
        UsageError: when devices are too few, or the plan has an unknown knob or value.
        NothingRanError: when the plan ended in anything but a measurement.
    """
    from autotune.dispatch.ray_runner import RayRunner  # noqa: PLC0415  see `tune`

    hardware = this_machine(num_ranks)
    with (
        _local_cluster(hardware, target) as cluster,
        RayRunner(cluster, log_dir=_log_dir()) as runner,
    ):
        cluster.start_probe(_probe_request(target, hardware, seed))
        runner.start()
        facts = cluster.facts(PROBE_TIMEOUT_S)
        _check_ranks(facts, num_ranks)
        space = build_space(facts, hardware, NAMED_IN_FULL, num_ranks)
        plan = space.plan(values)
        request = TrialRequest(
            number=1,
            plan=plan,
            purpose=Purpose.MEASURE,
            workload_path=str(target.path),
            working_dir=str(Path.cwd()),
            device_kind=hardware.device_kind,
            seed=seed,
            deadlines=Deadlines.within(_PATIENCE_S),
            diagnosis=diagnosis,
            place=RankPlace(world_size=num_ranks),
            command=facts.command,
            arguments=facts.arguments,
        )
        runner.submit(request)
        while not (finished := runner.wait(1.0)):
            pass
    result = finished[0].result
    if result.user_error:
        raise WorkloadError(str(result.error), result.traceback or "")
    if result.outcome is not Outcome.OK:
        raise NothingRanError(describe_failure(result))
    return plan, space.baseline, result


def describe_failure(result: TrialResult) -> str:
    """Return how a trial failed, in words, with the end of its output."""
    text, error = f"the trial ended as {result.outcome.value}", str(result.error)
    phase = f"in phase {result.phase.value}"
    where = "" if phase in error else f" {phase}"
    tail = result.traceback or result.log_tail
    return f"{text}{where}: {error}" + (f"\n{tail.rstrip()}" if tail else "")


def _open_run(
    store: SqlStore, request: TuneRequest, hardware: Hardware, space: Space
) -> RunRecord:
    key = _key(request, hardware, space)
    unfinished = None if request.fresh else store.find_unfinished(key, request.name)
    if unfinished is not None:
        _check_driver_is_gone(unfinished)
        return store.resume_run(unfinished.id, budget_s=request.budget_s, driver=this_driver())
    options = {
        **asdict(request.narrowing),
        "numerics": request.narrowing.numerics.value,
        "seed": request.seed,
        "max_memory": request.max_memory_bytes,
        "num_ranks": request.num_ranks,
        "objective": request.objective.to_dict(),
    }
    return store.create_run(
        NewRun(
            key=key,
            name=request.name,
            workload_path=str(request.target.path),
            workload_hash=space.facts.source_hash,
            hardware=hardware.to_dict(),
            facts=space.facts.to_dict(),
            options=options,
            baseline=space.baseline,
            budget_s=request.budget_s,
            driver=this_driver(),
        )
    )


def _key(request: TuneRequest, hardware: Hardware, space: Space) -> str:
    """Return a hash that is equal for two runs if one may continue the other."""
    domains = [(d.knob.name, d.values) for d in space.domains]
    parts = [
        str(request.target.path),
        space.facts.command and space.facts.command.argv,
        space.facts.arguments,
        space.facts.source_hash,
        hardware.fingerprint,
        domains,
        request.num_ranks,
        request.max_memory_bytes,
        request.seed,
        request.objective.to_dict(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _check_driver_is_gone(run: RunRecord) -> None:
    if lives(run.new.driver):
        pid = pid_of(run.new.driver)
        raise UsageError(
            f"{run.name} of the same workload is still going (process {pid}); two runs on one "
            "machine would disturb each other's numbers: wait for it, stop it, or use --fresh"
        )


def _runs_beside(store: SqlStore, run: RunRecord) -> Iterator[str]:
    """Yield a note on each other run of the store that is running on this machine."""
    for other in store.runs():
        is_going = other.id != run.id and other.state is RunState.RUNNING
        if is_going and lives(other.new.driver):
            file = Path(other.new.workload_path).name
            yield f"{other.name} of {file} goes on here, too: each disturbs the other's numbers"


def _settings(request: TuneRequest) -> SearchSettings:
    return SearchSettings(
        budget_s=request.budget_s,
        objective=request.objective,
        max_trials=request.max_trials,
        seed=request.seed,
        max_memory_bytes=request.max_memory_bytes,
    )


def _log_dir() -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path.cwd() / LOG_DIR / f"{stamp}-{os.getpid()}"
