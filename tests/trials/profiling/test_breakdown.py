"""How a trace of a device becomes shares and a bound: computed on plain values, without one."""

import json
from dataclasses import replace

import pytest

from autotune.search_space.bound import Bound
from autotune.trials.profiling.bound import Circumstances, judge
from autotune.trials.profiling.breakdown import Steps, on_device, on_host
from autotune.trials.profiling.spans import covered_beyond, own_durations
from autotune.trials.profiling.trace import Operation, read_trace

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
UPLOAD = "Memcpy HtoD (Pageable -> Device)"


def event(category, name, start, duration, thread=1, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": args,
    }


class Recorded:
    """A trace in the making: each piece of work with its launch, 1 us on the host, before."""

    def __init__(self):
        self.events = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]

    def part(self, name, start, end):
        self.events.append(event("user_annotation", f"autotune::{name}", start, end - start))

    def runs(self, name, start, end, launched_at, *, thread=1, category="kernel"):
        number = len(self.events)
        self.events += [
            event("cuda_runtime", "cudaLaunchKernel", launched_at, 1, thread, correlation=number),
            event(category, name, start, end - start, 7, correlation=number, stream=7),
        ]

    def read(self, folder):
        (folder / "trace.json").write_text(json.dumps({"traceEvents": self.events}))
        return read_trace(folder / "trace.json")


def one_step(*work):
    """Return a recorded step: forward is marked at 0 to 10 us, backward to 20, optimizer to 30."""
    recorded = Recorded()
    for name, start in (("data", -10), ("forward", 0), ("backward", 10), ("optimizer", 20)):
        recorded.part(name, start, start + 9.5)
    for name, start, end, launched_at in work:
        category = "gpu_memcpy" if name == UPLOAD else "kernel"
        recorded.runs(name, start, end, launched_at, category=category)
    return recorded


def broken_down(recorded, folder, *, step_us=1000.0, wait=0.0, traced=1):
    steps = Steps(traced=traced, step_s=1e-6 * step_us, data_wait_share=wait)
    return on_device(recorded.read(folder), steps)


def bound_of(breakdown, **known):
    circumstances = {"device_kind": "cuda", "precision": "bf16", "step_s": 1e-3, **known}
    return judge(breakdown, Circumstances(**circumstances))


def test_kernels_belong_to_the_part_that_launched_them(tmp_path):
    """Kernels run long after their launch, and those of backward come from another thread."""
    recorded = one_step((GEMM, 100, 300, 5), (POINTWISE, 700, 800, 25))
    recorded.runs(GEMM, 300, 700, 15, thread=2)
    shares = broken_down(recorded, tmp_path).shares
    assert (shares.forward, shares.backward, shares.optimizer) == pytest.approx((0.2, 0.4, 0.1))
    assert shares.idle == pytest.approx(0.3)
    assert shares.other == 0.0


def test_only_what_hides_behind_nothing_counts(tmp_path):
    """Communication and copies beside a computation cost nothing; the rest of them does."""
    recorded = one_step((GEMM, 100, 500, 15), (NCCL, 300, 700, 16), (UPLOAD, 650, 800, 1))
    shares = broken_down(recorded, tmp_path).shares
    assert shares.communication == pytest.approx(0.2)
    assert shares.copy == pytest.approx(0.1)


def test_waiting_for_data_is_idle_time_of_the_device(tmp_path):
    """A loop that waits while the device still computes loses nothing by it."""
    busy = one_step((GEMM, 0, 900, 5))
    shares = broken_down(busy, tmp_path, wait=0.5).shares
    assert (shares.data, shares.idle) == pytest.approx((0.1, 0.0))
    lazy = one_step((GEMM, 0, 100, 5))
    shares = broken_down(lazy, tmp_path, wait=0.5).shares
    assert (shares.data, shares.idle) == pytest.approx((0.5, 0.4))


def test_shares_are_of_the_measured_step(tmp_path):
    """The profiler slows the host: what it traced is set against the step without it."""
    recorded = one_step((GEMM, 0, 100, 5), (GEMM, 5000, 5100, 15))
    shares = broken_down(recorded, tmp_path, step_us=200.0, traced=1).shares
    assert shares.idle == pytest.approx(0.0)
    assert shares.forward == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("work", "wait", "bound"),
    [
        ([(GEMM, 0, 100, 5)], 0.8, Bound.DATA),
        ([(UPLOAD, 0, 600, 1), (GEMM, 600, 900, 5)], 0.0, Bound.DATA),
        ([(POINTWISE, 10 * i, 10 * i + 2, 5) for i in range(100)], 0.0, Bound.LAUNCHES),
        ([(GEMM, 0, 600, 5), (POINTWISE, 600, 900, 5)], 0.0, Bound.ARITHMETIC),
        ([(GEMM, 0, 300, 5), (POINTWISE, 300, 900, 5)], 0.0, Bound.MEMORY_BANDWIDTH),
        ([(GEMM, 0, 400, 15), (NCCL, 350, 950, 15)], 0.0, Bound.COMMUNICATION),
    ],
)
def test_the_largest_cause_is_the_bound(tmp_path, work, wait, bound):
    """Each cause is named where it takes the largest part of a step of 1000 us."""
    verdict = bound_of(broken_down(one_step(*work), tmp_path, wait=wait))
    assert verdict.bound is bound
    assert verdict.advice


def test_thin_matrix_products_are_bound_by_memory(tmp_path):
    """Products at 1 % of the measured rate read more than they compute."""
    breakdown = broken_down(one_step((GEMM, 0, 900, 5)), tmp_path)
    fast = {"matmul_flops_per_s": 1e14}
    assert bound_of(breakdown, flops_per_step=5e10, **fast).bound is Bound.ARITHMETIC
    verdict = bound_of(breakdown, flops_per_step=9e8, **fast)
    assert verdict.bound is Bound.MEMORY_BANDWIDTH
    assert "too thin" in " ".join(verdict.evidence)


def test_products_faster_than_the_fastest_are_told_as_such(tmp_path):
    """More than all of the rate is no rate of theirs."""
    breakdown = broken_down(one_step((GEMM, 0, 900, 5)), tmp_path)
    verdict = bound_of(breakdown, flops_per_step=18e10, matmul_flops_per_s=1e14)
    assert verdict.bound is Bound.ARITHMETIC
    assert "the speed of this machine varies" in " ".join(verdict.evidence)
    assert "200%" not in " ".join(verdict.evidence)


def test_on_a_cpu_fewer_threads_are_advised(tmp_path):
    """They wait for each other where operators are short, or something else runs."""
    breakdown = broken_down(one_step((POINTWISE, 0, 900, 5)), tmp_path)
    advised = {
        kind: [a for a in bound_of(breakdown, device_kind=kind).advice if a.startswith("threads")]
        for kind in ("cpu", "cuda")
    }
    assert [len(advised["cpu"]), len(advised["cuda"])] == [1, 0]


def test_allocator_retries_are_capacity(tmp_path):
    """Where the allocator runs dry, the step is bound by memory, whatever else takes time."""
    breakdown = broken_down(one_step((GEMM, 0, 900, 5)), tmp_path)
    assert bound_of(breakdown, alloc_retries=3).bound is Bound.CAPACITY
    assert bound_of(breakdown, alloc_retries=0).bound is Bound.ARITHMETIC


def test_fp32_is_advised_fewer_bits(tmp_path):
    """Arithmetic in fp32 has a lever that arithmetic in bf16 has used up."""
    breakdown = broken_down(one_step((GEMM, 0, 900, 5)), tmp_path)
    assert "precision" in bound_of(breakdown, precision="fp32").advice[0]
    assert "precision" not in bound_of(breakdown, precision="bf16").advice[0]


def test_a_trace_without_kernels_says_nothing(tmp_path):
    """No breakdown is made up where the device was not traced."""
    assert broken_down(one_step(), tmp_path) is None


def test_spans_count_once():
    """Overlapping spans are not counted twice, neither in a group nor across groups."""
    groups = {"a": [(0.0, 4.0), (2.0, 6.0)], "b": [(5.0, 9.0)]}
    assert covered_beyond(groups) == {"a": 6.0, "b": 3.0}


def test_calls_inside_of_a_call_are_not_its_own():
    """An operator's own time is what its inner operators leave."""
    assert own_durations([(1.0, 3.0), (0.0, 10.0), (4.0, 8.0), (5.0, 6.0)]) == [2, 4, 3, 1]


def test_what_disturbs_the_host_is_not_taken_for_work():
    """A call that a busy machine made long in one step counts as it was in the other one."""
    short = [operator("aten::add", 10.0 * i, 5.0) for i in range(20)]
    slowed = [operator("aten::add", 1000.0 + 10 * i, 5.0, step=1) for i in range(19)]
    slowed.append(operator("aten::add", 1200.0, 4000.0, step=1))
    breakdown = host_breakdown(short, slowed, traced=2)
    assert breakdown.causes[Bound.LAUNCHES] == pytest.approx(1.0)


def test_steps_that_differ_are_told_by_the_fastest():
    """Without the same calls in each step there is nothing to compare call by call."""
    quick = [operator("aten::add", 0.0, 5.0), operator("aten::mul", 10.0, 50.0)]
    slow = [operator("aten::sort", 0.0, 5000.0, step=1)]
    breakdown = host_breakdown(quick, slow, traced=2)
    assert breakdown.mean_op_us == pytest.approx(27.5)


def test_operators_of_the_host_are_told_apart():
    """Long products are arithmetic, other long operators memory, the rest what starting takes."""
    called = [
        part("forward", 0.0, 1000.0),
        operator("aten::linear", 0.0, 510.0),
        operator("aten::addmm", 5.0, 500.0),
        operator("aten::mul", 520.0, 300.0),
        operator("aten::resolve_conj", 830.0, 1.0),
        operator("TorchDynamo Cache Lookup", 840.0, 100.0),
    ]
    breakdown = host_breakdown(called, traced=1, wait=0.5)
    assert breakdown.causes == pytest.approx(
        {
            Bound.DATA: 0.5,
            Bound.ARITHMETIC: 0.25,
            Bound.MEMORY_BANDWIDTH: 0.15,
            Bound.LAUNCHES: 0.1,
        }
    )
    assert breakdown.ops_per_step == 5
    assert breakdown.shares.forward == pytest.approx(0.5)


def host_breakdown(*steps, traced, wait=0.0):
    operations = [operation for step in steps for operation in step]
    return on_host(operations, Steps(traced=traced, step_s=1e-3, data_wait_share=wait))


def part(name, start, duration):
    return replace(operator(f"autotune::{name}", start, duration), kind="part", part=name)


def operator(name, start, duration, step=0):
    return Operation(
        name=name,
        kind="operator",
        start_us=start,
        end_us=start + duration,
        part="forward",
        step=step,
    )
