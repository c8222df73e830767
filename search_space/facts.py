"""What the probe learnt about a workload, as plain values: the space is computed from these."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from autotune.search_space.plan import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """Facts about one workload on one machine.

    Attributes:
        batch_size: the user's own per-device batch.
        global_batch_size: samples per optimizer step, when the user fixed it.
        dataset_len: samples, None for an iterable dataset.
        fixed_batches: the loader makes its own batches, whatever size it is asked for.
        uneven_batches: batches of the loader differ in shape, as padded texts do.
        open_file: which attribute of the dataset holds a file that it reads, or None.
        repeats_in_workers: each worker of an iterable dataset would read the whole of it.
        num_parameters: elements over all parameters.
        num_blocks: repeated blocks found (0: none), and the name of their class.
        has_conv2d: the model holds a two-dimensional convolution.
        has_batch_norm: the model holds a norm over the samples of a batch.
        optimizer_class: for example `AdamW`.
        optimizer_impls: which of `foreach`, `fused` its constructor takes on this device.
        recordable: the optimizer can be part of a CUDA graph.
        recordable_only_fused: its fused implementation can, no other.
        rebuild_problem: why the optimizer cannot be built anew with other settings, or None.
        own_step: the optimizer's step is the workload's or a library's, not torch's.
        shared_across: which parameter stands in several blocks, or in one and beside it, or None.
        sparse_gradients: an embedding gives gradients of the rows that it looked up alone.
        varies: which modules run, or how often, is not the same in every step.
        compiler_problem: why torch.compile cannot work here, or None when it can.
        bf16, fp16: the device computes in it natively.
        user_knobs: the workload's `KNOBS`, baseline first.
        tokens_per_sample: for printing tokens per second.
        flops_per_sample: forward and backward, counted once on the CPU; None when unknown.
        uneven_share: of these, in products with a side of a weight that is no multiple of 8.
        loader_samples_per_s: speed of the loader alone, in one process, no step.
        loader_busy_share: part of the time that it keeps a core busy; the rest it waits for.
        imports: installed modules that the workload uses, for processes that wait for a trial.
        source_hash: of the workload's file and of what it imports from its own folder.
        remarks: lines for the user, for example a BATCH_SIZE cut to the dataset.
    """

    batch_size: int
    global_batch_size: int | None = None
    dataset_len: int | None = None
    fixed_batches: bool = False
    uneven_batches: bool = False
    open_file: str | None = None
    repeats_in_workers: bool = False
    num_parameters: int = 0
    num_blocks: int = 0
    block_class: str | None = None
    has_conv2d: bool = False
    has_batch_norm: bool = False
    optimizer_class: str = "AdamW"
    optimizer_impls: tuple[str, ...] = ()
    recordable: bool = False
    recordable_only_fused: bool = False
    rebuild_problem: str | None = None
    own_step: bool = False
    shared_across: str | None = None
    sparse_gradients: bool = False
    varies: bool = False
    compiler_problem: str | None = None
    bf16: bool = True
    fp16: bool = True
    user_knobs: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    tokens_per_sample: int | None = None
    flops_per_sample: float | None = None
    uneven_share: float | None = None
    loader_samples_per_s: float | None = None
    loader_busy_share: float = 1.0
    imports: tuple[str, ...] = ()
    source_hash: str = ""
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        knobs = {name: list(values) for name, values in self.user_knobs}
        return {**asdict(self), "user_knobs": knobs}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "WorkloadFacts":
        """Build from what `to_dict` gave; keys of a newer version are ignored."""
        known = {f.name for f in fields(cls)}
        plain = {key: value for key, value in values.items() if key in known}
        plain["user_knobs"] = tuple((n, tuple(v)) for n, v in values["user_knobs"].items())
        plain["optimizer_impls"] = tuple(values["optimizer_impls"])
        plain["imports"] = tuple(values["imports"])
        plain["remarks"] = tuple(values["remarks"])
        return cls(**plain)
