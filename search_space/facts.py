"""Facts about a workload, found by the probe, from which its space is computed."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from autotune.search_space.command import Command
from autotune.search_space.plan import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """Facts about one workload on one machine.

    Attributes:
        batch_size: the user's own per-device batch.
        global_batch_size: samples per optimizer step, when the user fixed it.
        dataset_len: samples, None for an iterable dataset.
        fixed_batches: the loader makes batches of its own size, whatever it is asked for.
        uneven_batches: batches of the loader differ in shape, as padded texts do.
        length_problem: why samples cannot be put into batches by their length, or None.
        length_gain: how many times as much shuffled batches hold, with their padding, as batches
            of samples of similar length; None when unknown.
        open_file: the attribute of the dataset that holds an open file, or None.
        repeats_in_workers: each worker would read all of the iterable dataset.
        num_parameters: elements over all parameters.
        num_blocks: number of repeated blocks found, 0 for none.
        num_block_kinds: number of kinds of blocks; those of one kind have equal shapes, so what is
            compiled for one of them serves all.
        block_class: name of the blocks' class, or None.
        has_conv2d: the model holds a two-dimensional convolution.
        has_batch_norm: the model holds a norm over the samples of a batch.
        optimizer_class: for example `AdamW`.
        optimizer_impls: which of `foreach`, `fused` its constructor takes on this device.
        own_impl: the one of them that the workload's code sets itself, or None.
        recordable: the optimizer's step can be recorded in a CUDA graph.
        recordable_only_fused: only its fused implementation can be recorded.
        rebuild_problem: why the optimizer cannot be built anew with other settings, or None.
        own_step: the optimizer's step is not one of torch but of the workload or a library.
        shared_across: in words, a parameter shared by blocks, or by a block and the rest of the
            model, or None.
        sparse_gradients: an embedding has sparse gradients.
        varies: which modules run, or how often, differs from step to step.
        compiler_problem: why torch.compile cannot work here, or None when it can.
        bf16, fp16: whether the device computes in this format natively.
        fp8_problem: why software for products in fp8 is missing, or None.
        user_knobs: the workload's `KNOBS`: names and values, baseline first.
        tokens_per_sample: tokens of a sample, to print tokens per second; None: no tokens.
        flops_per_sample: FLOPs of forward and backward, counted on the CPU; None when unknown.
        conv_share: share of these in convolutions; 0 where unknown.
        uneven_share: share of those FLOPs in products with a weight one of whose sides is no
            multiple of 8; None when unknown.
        loader_samples_per_s: speed of the loader alone, in one process; None when unknown.
        loader_busy_share: share of its time that the loader keeps a core busy and does not wait.
        imports: installed modules that the workload uses; processes import them before a trial.
        command: the command that trains; None: the workload has functions to train with.
        arguments: of the command line, for a workload's functions to read in `sys.argv`.
        own_settings: the values of knobs that the command sets by itself: those of its baseline.
        held: knobs that keep their baseline value under the command, each with the reason.
        world_size: processes that train together in the command.
        source_hash: hash of the workload's file and of its imports from its own folder.
        evaluates: the workload has an `evaluate(model)`.
        remarks: lines for the user, for example a BATCH_SIZE cut to the dataset.
    """

    batch_size: int
    global_batch_size: int | None = None
    dataset_len: int | None = None
    fixed_batches: bool = False
    uneven_batches: bool = False
    length_problem: str | None = None
    length_gain: float | None = None
    open_file: str | None = None
    repeats_in_workers: bool = False
    num_parameters: int = 0
    num_blocks: int = 0
    num_block_kinds: int = 1
    block_class: str | None = None
    has_conv2d: bool = False
    has_batch_norm: bool = False
    optimizer_class: str = "AdamW"
    optimizer_impls: tuple[str, ...] = ()
    own_impl: str | None = None
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
    fp8_problem: str | None = None
    user_knobs: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    tokens_per_sample: int | None = None
    flops_per_sample: float | None = None
    conv_share: float = 0.0
    uneven_share: float | None = None
    loader_samples_per_s: float | None = None
    loader_busy_share: float = 1.0
    imports: tuple[str, ...] = ()
    command: Command | None = None
    arguments: tuple[str, ...] = ()
    own_settings: tuple[tuple[str, Value], ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    world_size: int = 1
    source_hash: str = ""
    evaluates: bool = False
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
        if plain.get("command") is not None:
            plain["command"] = Command.from_dict(plain["command"])
        plain["arguments"] = tuple(plain.get("arguments", ()))
        for pairs in ("own_settings", "held"):
            plain[pairs] = tuple((name, value) for name, value in plain.get(pairs, ()))
        plain["optimizer_impls"] = tuple(values["optimizer_impls"])
        plain["imports"] = tuple(values["imports"])
        plain["remarks"] = tuple(values["remarks"])
        return cls(**plain)
