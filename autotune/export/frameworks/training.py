"""What a configuration is made from: a plan, and what its run knows of the training."""

from dataclasses import dataclass

from autotune.export.contents import PlanFile
from autotune.search_space.knobs.compiler import compiles_blocks, is_compiled
from autotune.search_space.knobs.ranks import is_fsdp
from autotune.search_space.plan import Plan, Value
from autotune.storage.records import RunRecord

# Parameters from which on a module is cut by itself where no blocks are known; torch's own default
# (`torch.distributed.fsdp.wrap.size_based_auto_wrap_policy`).
_LARGE_MODULE = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A plan with the facts about its training that other tools ask for.

    Attributes:
        plan: complete, as it ran.
        ranks: the number of processes, each with a device.
        device_kind: `cuda` or `cpu`.
        block_classes: names of the classes of the repeated blocks; empty when none were found.
        num_blocks: their number.
        num_parameters: elements over all parameters; 0 when unknown.
        optimizer_class: for example `AdamW`.
        own_impl: `foreach` or `fused` where the user's code sets it, or None.
    """

    plan: Plan
    ranks: int = 1
    device_kind: str = "cuda"
    block_classes: tuple[str, ...] = ()
    num_blocks: int = 0
    num_parameters: int = 0
    optimizer_class: str = "AdamW"
    own_impl: str | None = None

    @property
    def sharding(self) -> Value:
        """The plan's sharding; `ddp` where it names none."""
        return self.plan.get("sharding", "ddp")

    @property
    def is_fsdp(self) -> bool:
        """Whether parameters are cut into parts."""
        return is_fsdp(self.plan)

    @property
    def is_compiled(self) -> bool:
        """Whether anything is compiled."""
        return is_compiled(self.plan)

    @property
    def compiles_blocks(self) -> bool:
        """Whether the repeated blocks are compiled one by one."""
        return compiles_blocks(self.plan)

    @property
    def accumulation(self) -> int:
        """Batches for each step of the optimizer."""
        return int(self.plan.get("accumulation", 1))

    @property
    def optimizer_impl(self) -> Value | None:
        """`foreach` or `fused` where the plan or the user's code sets it, or None."""
        impl = self.plan.get("optimizer_impl", "default")
        return self.own_impl if impl == "default" else impl

    @property
    def bucket_elements(self) -> int:
        """Gradients of fp32 that fit into a bucket of the plan's size."""
        return int(self.plan.get("bucket_mb", 25)) * 2**20 // 4

    @property
    def copies_and_parts(self) -> tuple[int, int]:
        """Under `hsdp` on one machine: copies of the model, and ranks that share each copy."""
        return (1, self.ranks) if self.ranks < 4 else (2, self.ranks // 2)

    @property
    def least_parameters_of_a_part(self) -> int:
        """Parameters from which on FSDP cuts a module by itself where blocks have no names."""
        if not (self.num_parameters and self.num_blocks):
            return _LARGE_MODULE
        # Half of a block: what is larger than that is a block, or the embedding or head.
        return self.num_parameters // (2 * self.num_blocks)


def training_of(run: RunRecord, file: PlanFile) -> Training:
    """Return what is known of the training of a run's plan."""
    facts = run.new.facts
    classes = facts.get("block_class")
    return Training(
        plan=file.plan,
        ranks=file.ranks or 1,
        device_kind=run.new.hardware.get("device_kind", "cuda"),
        block_classes=tuple(classes.split(" and ")) if classes else (),
        num_blocks=facts.get("num_blocks", 0),
        num_parameters=facts.get("num_parameters", 0),
        optimizer_class=facts.get("optimizer_class", "AdamW"),
        own_impl=facts.get("own_impl"),
    )
