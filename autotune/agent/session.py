"""The use cases behind the commands: inspect a workload, and tune it."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from autotune.agent.bench import PROBE_TIMEOUT_S, check_ranks, new_log_dir, probe_request
from autotune.agent.check.points import Origin, origin_of, points_of_run
from autotune.agent.observer import Observer
from autotune.agent.proposers.earlier import compiled_earlier, found_earlier
from autotune.agent.request import EndedRun, TuneRequest, check_evaluates
from autotune.agent.settings import SearchSettings
from autotune.agent.spaces import Spaces, check_devices, spaces_of, this_machine
from autotune.agent.startup import MeasuredPlan
from autotune.clock import Budget, SystemClock
from autotune.dispatch.clusters import LocalCluster, SharedCluster
from autotune.errors import ResourceError, UsageError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.space import Narrowing, Space
from autotune.search_space.target import Target
from autotune.storage.driver import lives, pid_of, this_driver
from autotune.storage.mirror import MirroredLog
from autotune.storage.records import NewRun, RunRecord, RunState
from autotune.storage.sql import SqlStore, open_store


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
        cluster.start_probe(probe_request(target, hardware, seed))
        facts = cluster.facts(PROBE_TIMEOUT_S)
    check_ranks(facts, num_ranks)
    return hardware, spaces_of(facts, hardware, narrowing, num_ranks)


def tune(
    request: TuneRequest,
    make_observer: Callable[[RunRecord, Space, Budget], Observer],
    is_stopped: Callable[[], bool],
) -> EndedRun:
    """Find, confirm and store the best plan; return how the run ended.

    Args:
        request: what to tune, and how long.
        make_observer: returns the observer that is told of every trial.
        is_stopped: asked often; once it returns true, the run ends with the trials so far.

    Raises:
        AutotuneError: see `autotune.errors`; everything measured before it is in the store. Once
            trials run, a ResourceError is returned instead, with the best so far.
    """
    clock = SystemClock()
    started_at = clock.now() if request.started_at is None else request.started_at
    log_dir = new_log_dir()
    with (
        closing(open_store(request.storage)) as store,
        _open_cluster(request) as cluster,
    ):
        cluster.start_probe(probe_request(request.target, cluster.hardware, request.seed))
        # Seconds of imports, while the probe looks at the workload.
        from autotune.agent.search import Search  # noqa: PLC0415
        from autotune.dispatch.ray_runner import RayRunner  # noqa: PLC0415

        with RayRunner(cluster, log_dir=log_dir) as runner:
            runner.start()
            origin = origin_of(request.target)
            facts = cluster.facts(started_at + request.budget_s - clock.now())
            spaces = _spaces(request, facts, cluster.hardware)
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
            log = MirroredLog(store, run)
            search = Search(
                space=spaces.whole,
                scouting=spaces.scouting,
                earlier=found_earlier(store, run),
                compiled_earlier=_compiled_earlier(store, run, request),
                runner=runner,
                store=log,
                run=run,
                settings=_settings(request),
                budget=budget,
                observer=observer,
                is_stopped=is_stopped,
                log_dir=log_dir,
            )
            failure = _failure_of(search.run)
        ended = EndedRun(record=log.run, trials=log.trials(run.id), failure=failure)
        if failure is not None:
            return ended
        keep = partial(_keep_points, store, ended, origin, cluster.hardware)
        return replace(ended, failure=_failure_of(keep))


def _spaces(request: TuneRequest, facts: WorkloadFacts, hardware: Hardware) -> Spaces:
    check_ranks(facts, request.num_ranks)
    check_evaluates(request, facts)
    return spaces_of(facts, hardware, request.narrowing, request.num_ranks)


def _failure_of(action: Callable[[], object]) -> ResourceError | None:
    """Act, and return what failed of the machine or the store, if anything did."""
    try:
        action()
    except ResourceError as error:
        return error
    return None


def _keep_points(store: SqlStore, ended: EndedRun, origin: Origin, hardware: Hardware) -> None:
    for point in points_of_run(ended.record, ended.trials, origin, hardware):
        store.trends.keep(point)


def _local_cluster(hardware: Hardware, target: Target) -> LocalCluster:
    return LocalCluster(hardware, target.path, target.command)


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
        disturbances=request.disturbances,
    )
