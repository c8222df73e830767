"""Finds the repeated blocks of a model and the large modules beside them; replaces modules."""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from autotune.errors import WorkloadError
from autotune.trials.failure import InvalidPlanError
from autotune.trials.workload import Workload

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward pass
# Shares of parameters: of the stages, that blocks inside of them must have to be chosen instead;
# of a pair, that a longer repetition must have; of the blocks, that others must have to join them.
_INNER_SHARE, _LONGER_SHARE, _BESIDE_SHARE = 0.8, 0.5, 0.25


def find_blocks(model: nn.Module, workload: Workload) -> list[nn.Module]:
    """Return the repeated blocks, in order: the user's `blocks(model)`, else found by these rules.

    The blocks are the sibling modules of one class that hold the most parameters of matrices.
    Modules of the same class elsewhere belong to them, as in a decoder beside an encoder; so do
    repeated modules of other classes that hold at least a quarter as many parameters. Where the
    siblings are stages that run blocks of one class in sequence, these inner blocks are taken.
    Where siblings are containers, such as a list of an attention and a feed-forward each, their
    parts are the blocks. A single module, or a pair of torch's own layers, is no repetition.

    Raises:
        WorkloadError: when `blocks(model)` returns something that is not in the model.
    """
    if workload.blocks is not None:
        return _checked(workload.blocks(model), model, workload)
    return repeated_blocks(model)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a model, in order, by the rules of `find_blocks`."""
    groups = [group for group in _groups(model) if group.repeats]
    outer = max(groups, key=lambda group: group.num_parameters, default=None)
    if outer is None:
        return []
    if len(outer.blocks) == 2:  # a pair, such as an encoder and a decoder, repeats little
        least = _LONGER_SHARE * outer.num_parameters
        many = [g for g in groups if len(g.blocks) > 2 and g.num_parameters >= least]
        outer = max(many, key=lambda group: group.num_parameters, default=outer)
    least = _INNER_SHARE * outer.num_parameters
    inner = [g for g in groups if g.in_sequence and g.num_parameters >= least]
    chosen = max((outer, *inner), key=lambda group: len(group.blocks))
    return _with_those_beside(chosen, groups, model)


def _with_those_beside(
    chosen: "_Group", groups: Sequence["_Group"], model: nn.Module
) -> list[nn.Module]:
    """Return the blocks and the large groups of other classes, in the order of the model."""
    found, taken = set(chosen.blocks), {m for block in chosen.blocks for m in block.modules()}
    for group in sorted(groups, key=lambda group: -group.num_parameters):
        modules = {module for block in group.blocks for module in block.modules()}
        is_large = group.num_parameters >= _BESIDE_SHARE * chosen.num_parameters
        if is_large and group.is_own and not modules & taken:
            found.update(group.blocks)
            taken |= modules
    return [module for module in model.modules() if module in found]


@dataclass(frozen=True, slots=True)
class _Group:
    """Modules of one class.

    Attributes:
        in_sequence: whether they are entries of `nn.Sequential`, which run in turn.
        is_own: whether their class is not torch's own, which may occur anywhere in a model.
    """

    blocks: list[nn.Module]
    in_sequence: bool
    is_own: bool

    @property
    def repeats(self) -> bool:
        """Whether there are two or more; of torch's own layers without parts, three or more."""
        has_parts = any(True for block in self.blocks for _ in block.children())
        return len(self.blocks) > 2 or (len(self.blocks) == 2 and (has_parts or self.is_own))

    @property
    def num_parameters(self) -> int:
        return _num_parameters(self.blocks)


def _groups(model: nn.Module) -> Iterator[_Group]:
    """Yield groups of siblings of one class, outer ones first.

    Siblings of a class that is not torch's own are one group over the whole model.
    """
    found: dict[Hashable, list[tuple[nn.Module, list[nn.Module]]]] = {}
    for parent in model.modules():
        for run in filter(None, _runs(parent)):
            kinds = tuple(dict.fromkeys(map(type, run)))
            key = kinds if _are_own(kinds) else (kinds, parent, run[0])
            found.setdefault(key, []).append((parent, run))
    for runs in found.values():
        blocks = _outermost(module for _, run in runs for module in run)
        in_sequence = all(isinstance(parent, nn.Sequential) for parent, _ in runs)
        is_stage = isinstance(blocks[0], nn.Sequential)
        yield _Group(blocks, in_sequence and not is_stage, _are_own(map(type, blocks)))


def _are_own(kinds: Iterable[type]) -> bool:
    return not all(kind.__module__.startswith("torch.nn.") for kind in kinds)


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules, in order, that are not inside of an earlier one."""
    kept: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in modules:
        if module not in inside:
            kept.append(module)
            inside.update(module.modules())
    return kept


def parameter_of_two_parts(model: nn.Module, blocks: Sequence[nn.Module]) -> str | None:
    """Return which parameter belongs to two parts that FSDP shards by themselves, or None.

    The parts are each block, and the rest of the model.
    """
    sharded, modules = set(blocks), model.named_modules(remove_duplicate=False)
    parts = {f"{path}.": module for path, module in modules if module in sharded}
    seen: dict[nn.Parameter, tuple[nn.Module | None, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = next((block for path, block in parts.items() if name.startswith(path)), None)
        first_part, first = seen.setdefault(parameter, (part, name))
        if part is not first_part:
            return f"{first} and {name} are one parameter, in parts that FSDP cuts by themselves"
    return None


def block_kind(module: nn.Module) -> Hashable:
    """Return what modules share that can run the same compiled code: class and shapes."""
    return (type(module), *(parameter.shape for parameter in module.parameters()))


def find_beside(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Yield the outermost modules beside the blocks that multiply matrices, such as a head.

    Embeddings and norms are left out: compiling one of them alone gains nothing.
    """
    for child in model.children():
        holds_blocks = any(module in blocks for module in child.modules())
        if child in blocks:
            continue
        if holds_blocks or isinstance(child, _CONTAINERS):
            yield from find_beside(child, blocks)
        elif _multiplies(child):
            yield child


def check_found(blocks: Sequence[nn.Module], wanted_by: str) -> None:
    """Check that there are blocks.

    Raises:
        InvalidPlanError: naming the setting that needs them.
    """
    if not blocks:
        raise InvalidPlanError(f"{wanted_by} needs repeated blocks, and the model has none")


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace each occurrence of `old` in `model` by `new`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old and parent is not new:
                setattr(parent, name, new)


def _runs(parent: nn.Module) -> list[list[nn.Module]]:
    runs = [list(group) for _, group in itertools.groupby(parent.children(), key=_layout)]
    # The children of a single container are found when it is the parent itself.
    runs = [run for run in runs if len(run) > 1 or not isinstance(run[0], _CONTAINERS)]
    return [[m for each in run for m in _parts(each) if _multiplies(m)] for run in runs]


def _layout(module: nn.Module) -> tuple[type, ...]:
    return (type(module), *(type(part) for part in _parts(module)))


def _parts(module: nn.Module) -> list[nn.Module]:
    """Return the module, or the modules inside of a container, which cannot be called."""
    if not isinstance(module, _CONTAINERS):
        return [module]
    return [part for child in module.children() for part in _parts(child)]


def _multiplies(module: nn.Module) -> bool:
    dense = (m for m in module.modules() if not isinstance(m, nn.Embedding | nn.EmbeddingBag))
    return any(p.dim() >= 2 for m in dense for p in m.parameters(recurse=False))


def _num_parameters(modules: list[nn.Module]) -> int:
    return sum(p.numel() for m in modules for p in m.parameters())


def _checked(found: object, model: nn.Module, workload: Workload) -> list[nn.Module]:
    inside = set(model.modules())
    if not isinstance(found, list | tuple | nn.ModuleList) or not all(m in inside for m in found):
        raise WorkloadError(
            f"{workload.path.name}: blocks(model) must return a list of modules that are inside "
            "the model it was given"
        )
    containers = [type(m).__name__ for m in found if isinstance(m, _CONTAINERS)]
    if containers:
        raise WorkloadError(
            f"{workload.path.name}: blocks(model) returned a {containers[0]}, which has no "
            "forward; return the modules in it"
        )
    return list(found)
