"""A replayed machine: plausible speeds for a GPT-like and an MLP-like workload, with noise."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.agent.history import SEARCH
from autotune.agent.observer import SilentObserver
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.earlier import EarlierBest
from autotune.agent.search import Search
from autotune.agent.settings import SearchSettings
from autotune.agent.spaces import spaces_of
from autotune.clock import Budget, FakeClock
from autotune.dispatch.replay import ReplayRunner
from autotune.dispatch.runner import Finished
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.search_space.space import Narrowing, Space, build_space
from autotune.storage.memory import MemoryStore
from autotune.storage.records import NewRun, RunRecord, TrialRecord
from autotune.storage.store import TrialStore
from autotune.trials.numerics_report import Deviation, NumericsReport, Part
from autotune.trials.request import TrialRequest
from autotune.trials.result import (
    Measurement,
    Outcome,
    Phase,
    Purpose,
    TrialResult,
)

GIB = 2**30

GPU = Hardware(
    device_kind="cuda",
    device_name="a GPU",
    num_devices=1,
    device_memory_bytes=140 * GIB,
    capability=(9, 0),
    num_cores=16,
    host_memory_bytes=256 * GIB,
)
CPU = replace(
    GPU,
    device_kind="cpu",
    device_name="a CPU",
    device_memory_bytes=16 * GIB,
    capability=None,
    num_cores=2,
)
GPT = WorkloadFacts(
    batch_size=16,
    dataset_len=10_000,
    num_parameters=124_000_000,
    num_blocks=12,
    block_class="Block",
    optimizer_impls=("foreach", "fused"),
)
MLP = WorkloadFacts(
    batch_size=128,
    dataset_len=100_000,
    num_blocks=17,
    block_class="Layer",
    optimizer_impls=("foreach", "fused"),
)
FIRST_STEP_S = {
    "off": 1.0,
    "default": 10.0,
    "reduce-overhead": 14.0,
    "max-autotune-no-cudagraphs": 160.0,
    "max-autotune": 189.0,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """Speeds by knob and value over the baseline; the batch saturates, the loader limits."""

    samples_per_s: float
    speeds: dict[str, dict[object, float]]
    half_batch: float  # batch at which half of the top speed is reached
    loader_samples_per_s: float
    fixed_gib: float
    sample_gib: float

    def step_samples_per_s(self, plan: Plan) -> float:
        speed = self.samples_per_s
        for name, value in plan.items:
            speed *= self.speeds.get(name, {}).get(value, 1.0)
        batch = int(plan["batch_size"])
        return speed * batch / (batch + self.half_batch)

    def throughput(self, plan: Plan) -> tuple[float, float]:
        """Return samples per second, and the part of the time that waits for data."""
        step = 1 / self.step_samples_per_s(plan)
        workers = int(plan.get("workers", 0))
        load = 1 / (self.loader_samples_per_s * max(workers, 1))
        total = max(step, load) if workers else step + load
        return 1 / total, (total - step) / total

    def memory(self, plan: Plan, num_ranks: int = 1) -> int:
        scale = {"none": 1, "selective": 0.8, "every-4": 0.8, "every-2": 0.6, "full": 0.3}
        activations = self.sample_gib * scale[str(plan.get("activation_checkpointing", "none"))]
        activations *= 0.6 if plan["precision"] in ("bf16", "fp16") else 1.0
        whole = 1 / num_ranks if str(plan.get("sharding", "ddp")).startswith("fsdp") else 1.0
        return int((self.fixed_gib * whole + activations * int(plan["batch_size"])) * GIB)


GPT_SPEEDS = {
    "precision": {"tf32": 2.8, "bf16": 5.65, "fp16": 5.4},
    "compile_mode": {
        "default": 1.19,
        "reduce-overhead": 1.195,
        "max-autotune-no-cudagraphs": 1.18,
        "max-autotune": 1.185,
    },
    "compile_scope": {"block": 0.985},
    "optimizer_impl": {"foreach": 1.03, "fused": 1.08},
    "activation_checkpointing": {
        "selective": 0.95,
        "every-4": 0.97,
        "every-2": 0.94,
        "full": 0.89,
    },
}
GPT_MODEL = Model(
    samples_per_s=57.0,
    speeds=GPT_SPEEDS,
    half_batch=1.3,
    loader_samples_per_s=20_000.0,
    fixed_gib=4.0,
    sample_gib=1.5,
)
MLP_MODEL = Model(
    samples_per_s=1_000_000.0,
    speeds={
        "precision": {"tf32": 1.01, "bf16": 0.9, "fp16": 0.85},
        "compile_mode": {
            "default": 1.2,
            "reduce-overhead": 2.4,
            "max-autotune-no-cudagraphs": 1.2,
            "max-autotune": 2.35,
        },
        "compile_scope": {"block": 0.8},
        "optimizer_impl": {"foreach": 1.2, "fused": 1.65},
    },
    half_batch=1900.0,
    loader_samples_per_s=5_000_000.0,
    fixed_gib=0.5,
    sample_gib=0.0001,
)


@dataclass
class World:
    """Answers requests like a machine would; equal seeds give equal answers."""

    model: Model
    hardware: Hardware = GPU
    seed: int = 0
    noise: float = 0.006  # between processes
    trial_s: float = 6.0
    fail: Callable[[TrialRequest], TrialResult | None] = lambda request: None
    requests: list[TrialRequest] = field(default_factory=list)

    def __call__(self, request: TrialRequest) -> TrialResult:
        self.requests.append(request)
        given = self.fail(request)
        if given is not None:
            return given
        memory = self.model.memory(request.plan, request.place.world_size)
        if memory > self.hardware.device_memory_bytes:
            return TrialResult(outcome=Outcome.OOM, error="out of memory", total_s=self.trial_s)
        if request.purpose is Purpose.NUMERICS:
            return TrialResult(outcome=Outcome.OK, numerics=passed(), total_s=self.trial_s)
        return self._measured(request)

    def _measured(self, request: TrialRequest) -> TrialResult:
        plan = request.plan
        rng = random.Random(f"{self.seed} {request.number} {plan.digest}")
        num_ranks = request.place.world_size
        speed, wait = self.model.throughput(plan)
        speed *= num_ranks * rng.lognormvariate(0.0, self.noise)
        mode = str(plan.get("compile_mode", "off"))
        first_step_s = FIRST_STEP_S[mode]
        if mode != "off" and any(earlier.plan == plan for earlier in self.requests[:-1]):
            first_step_s *= 0.2  # kernels are cached
        raced = speed < (request.interesting_above or 0.0)
        return ok(
            speed,
            wait=wait,
            batch=num_ranks * int(plan["batch_size"]),
            memory=self.model.memory(plan, num_ranks),
            first_step_s=first_step_s,
            total_s=first_step_s + self.trial_s * (0.5 if raced else 1.0),
            raced=raced,
        )


def ok(
    speed: float,
    *,
    wait: float = 0.0,
    batch: int = 16,
    memory: int | None = None,
    first_step_s: float = 1.0,
    total_s: float = 7.0,
    raced: bool = False,
) -> TrialResult:
    """Return a measured result of this speed."""
    measurement = Measurement(
        throughput=speed,
        throughput_low=speed * 0.995,
        throughput_high=speed * 1.005,
        step_ms=1000 * batch / speed,
        step_ms_spread=0.005,
        data_wait_share=wait,
        build_s=0.5,
        first_step_s=first_step_s,
        warm_up_s=0.5,
        measure_s=2.0,
        first_loss=2.0,
        last_loss=1.0,
        settled=True,
        raced=raced,
        peak_reserved_overall_bytes=memory,
    )
    return TrialResult(
        outcome=Outcome.OK, measurement=measurement, phase=Phase.MEASURE, total_s=total_s
    )


def passed(worst: float = 0.001, tolerance: float = 0.05) -> NumericsReport:
    """Return a numerics report; fails when `worst` is above `tolerance`."""
    found = Deviation(
        part=Part.GRADIENTS, what="gradients", seen=worst, allowed=tolerance, by_itself=0.01
    )
    return NumericsReport(
        reference_losses=(2.0, 1.0), plan_losses=(2.0, 1.0), deviations=(found,), format="bf16"
    )


def failing(outcome: Outcome, **values: object) -> TrialResult:
    """Return a result of a trial that went wrong after 3 s."""
    return TrialResult(outcome=outcome, error="it went wrong", total_s=3.0, **values)


class Playback(ReplayRunner):
    """Replays a world, which also sees what is asked and not only the plan."""

    def __init__(self, world: World, clock: FakeClock) -> None:
        super().__init__(world.hardware, lambda plan: world(self._asked), clock=clock)
        self.at_once: list[tuple[Purpose, int]] = []
        self.devices: list[tuple[int, int]] = []  # those of each trial, and those in use with it
        self._busy = 0

    def submit(self, request: TrialRequest) -> None:
        self._asked = request
        super().submit(request)
        self._busy += 1
        self.at_once.append((request.purpose, self._busy))
        in_use = sum(played.request.place.world_size for played in self._running)
        self.devices.append((request.place.world_size, in_use))

    def wait(self, timeout_s: float) -> list[Finished]:
        finished = super().wait(timeout_s)
        self._busy -= len(finished)
        return finished


class Recorder(SilentObserver):
    """Keeps what the search said."""

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []
        self.notes: list[str] = []

    def on_submit(self, number: int, proposal: Proposal) -> None:
        self.proposals.append(proposal)

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def as_after(number: int, store: TrialStore, used_s: float) -> TrialStore:
    """Return a store like this one was when trial `number` of its run had just ended."""
    earlier, (run,) = MemoryStore(), store.runs()
    earlier.create_run(run.new)
    for trial in store.trials(run.id)[:number]:
        words = trial.reason, trial.log_path
        earlier.start_trial(
            1, trial.number, trial.plan, trial.purpose, *words, num_ranks=trial.num_ranks
        )
        earlier.finish_trial(1, trial.number, trial.result, used_s)
    return earlier


@dataclass
class Table:
    """One run on a replayed machine: `search()` builds it anew from the store, like a resume."""

    world: World
    facts: WorkloadFacts
    budget_s: float = 900.0
    # The sampler takes most of a replayed run's time; tests that are about it lift this.
    settings: dict[str, object] = field(default_factory=lambda: {"max_trials": 15})
    narrowing: Narrowing = field(default_factory=Narrowing)
    store: TrialStore = field(default_factory=MemoryStore)
    is_stopped: Callable[[], bool] = lambda: False
    num_ranks: int = 1
    earlier: tuple[EarlierBest, ...] = ()

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.observer = Recorder()
        self.run = self.record() if self.store.runs() else self.store.create_run(self._new())
        self.runner = Playback(self.world, self.clock)

    @property
    def space(self) -> Space:
        return build_space(self.facts, self.world.hardware, self.narrowing, self.num_ranks)

    @property
    def scouting(self) -> Space | None:
        found = spaces_of(self.facts, self.world.hardware, self.narrowing, self.num_ranks)
        return found.scouting

    def search(self) -> Search:
        settings = SearchSettings(budget_s=self.budget_s, **self.settings)
        budget = Budget(
            clock=self.clock,
            total_s=self.budget_s,
            started_at=self.clock.now(),
            used_before_s=self.store.run(str(self.run.id)).used_s,
        )
        return Search(
            space=self.space,
            runner=self.runner,
            store=self.store,
            run=self.run,
            settings=settings,
            budget=budget,
            observer=self.observer,
            is_stopped=self.is_stopped,
            log_dir=Path("logs"),
            scouting=self.scouting,
            earlier=self.earlier,
        )

    def record(self) -> RunRecord:
        return self.store.run("last")

    def _new(self) -> NewRun:
        return NewRun(
            key="k",
            name=None,
            workload_path="/w/model.py",
            workload_hash="h",
            hardware=self.world.hardware.to_dict(),
            facts=self.facts.to_dict(),
            options={},
            baseline=self.space.baseline,
            budget_s=self.budget_s,
            driver="host:1:0",
        )


def search_trials(table: Table) -> list[TrialRecord]:
    """Return the records of the trials that search, without those of the ending."""
    return [r for r in table.store.trials(1) if r.purpose in SEARCH]
