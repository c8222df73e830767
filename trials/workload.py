"""The workload contract: loads the user's model.py, once per process, and checks it."""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset

from autotune.errors import WorkloadError, nearest
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.plan import Value
from autotune.trials.failure import one_line, user_traceback

REQUIRED = ("build_model", "build_dataset", "compute_loss")
OPTIONAL = (
    "build_optimizer",
    "collate_fn",
    "build_dataloader",
    "blocks",
    "evaluate",
)
DEFAULT_BATCH_SIZE = 32
# Modules that `load_again` keeps, although their files may be in the workload's folder.
_NEVER_RELOADED = ("__main__", "autotune")

ComputeLoss = Callable[[nn.Module, Any], Tensor]
"""A workload's `compute_loss(model, batch)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The user's functions and constants, by the names that model.py gives them.

    Optional ones that it does not define are None. `knobs` maps the user's own knobs to their
    values, baseline first; `arguments` are those that its file was imported with.
    """

    path: Path
    build_model: Callable[..., nn.Module]
    build_dataset: Callable[[], Dataset[Any]]
    compute_loss: ComputeLoss
    build_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    collate_fn: Callable[[list[Any]], Any] | None
    build_dataloader: Callable[..., DataLoader[Any]] | None
    blocks: Callable[[nn.Module], list[nn.Module]] | None
    evaluate: Callable[[nn.Module], float] | None
    batch_size: int | None
    global_batch_size: int | None
    tokens_per_sample: int | None
    knobs: Mapping[str, tuple[Value, ...]]
    arguments: tuple[str, ...] = ()

    def model(self, values: Mapping[str, Value]) -> nn.Module:
        """Build the model with the user's own knobs.

        Raises:
            WorkloadError: when it is not an `nn.Module`.
        """
        model = self.build_model(**{name: values[name] for name in self.knobs if name in values})
        if not isinstance(model, nn.Module):
            raise WorkloadError(
                f"{self.path.name}: build_model() returned {_kind(model)}; "
                "it must return a torch.nn.Module"
            )
        return model


def load_workload(path: Path, arguments: Sequence[str] = ()) -> Workload:
    """Import the file and return the workload that it defines.

    Its folder becomes importable, as with `python model.py`, and `sys.argv` holds `arguments`
    while it is imported.

    Raises:
        WorkloadError: for a file that is missing, fails to import or breaks the contract.
    """
    if not path.is_file():
        raise WorkloadError(f"there is no file {path}; give the path of your model.py")
    workload = read_workload(_import(path, arguments), path)
    return replace(workload, arguments=tuple(arguments))


def load_again(workload: Workload) -> Workload:
    """Return the workload imported anew, with the modules of its folder.

    So whatever these keep between calls, such as a model, is in its first state.
    """
    for name in own_modules(workload.path):
        if name.partition(".")[0] not in _NEVER_RELOADED:
            del sys.modules[name]
    return load_workload(workload.path, workload.arguments)


def own_modules(path: Path) -> dict[str, Path]:
    """Return name and file of each imported module from the folder of a workload."""
    modules = list(sys.modules.items())  # a copy: reading an attribute may import more
    files = {name: Path(getattr(module, "__file__", None) or "") for name, module in modules}
    folder = path.parent.resolve()
    return {
        name: file.resolve()
        for name, file in files.items()
        if _is_source(file) and file.resolve().is_relative_to(folder)
    }


def _is_source(file: Path) -> bool:
    # The file of a module that was made at run time is no path.
    return file.is_absolute() and file.suffix == ".py" and "site-packages" not in file.parts


def read_workload(module: ModuleType, path: Path) -> Workload:
    """Return the workload that an imported module defines.

    Raises:
        WorkloadError: when it breaks the contract.
    """
    for name in REQUIRED:
        _check_function(module, path, name, required=True)
    for name in OPTIONAL:
        _check_function(module, path, name, required=False)
    return Workload(
        path=path,
        build_model=module.build_model,
        build_dataset=module.build_dataset,
        compute_loss=module.compute_loss,
        build_optimizer=getattr(module, "build_optimizer", _default_optimizer),
        collate_fn=getattr(module, "collate_fn", None),
        build_dataloader=getattr(module, "build_dataloader", None),
        blocks=getattr(module, "blocks", None),
        evaluate=getattr(module, "evaluate", None),
        batch_size=_count(module, path, "BATCH_SIZE"),
        global_batch_size=_count(module, path, "GLOBAL_BATCH_SIZE"),
        tokens_per_sample=_count(module, path, "TOKENS_PER_SAMPLE"),
        knobs=_user_knobs(module, path),
    )


def _import(path: Path, arguments: Sequence[str]) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    # The stem, so that DataLoader workers started by spawn find the module again.
    name = path.stem if path.stem not in sys.modules else f"workload_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{path} is not a Python file; give the path of your model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise WorkloadError(
            f"{path.name} called sys.exit({error.code}) while it was imported; move what runs a "
            'training or needs arguments under `if __name__ == "__main__":`',
            user_traceback(error, path),
        ) from error
    except Exception as error:
        message = f"{path.name} could not be imported: {one_line(error)}"
        raise WorkloadError(message, user_traceback(error, path)) from error
    finally:
        sys.argv = before
    return module


def _check_function(module: ModuleType, path: Path, name: str, *, required: bool) -> None:
    found = getattr(module, name, None)
    if callable(found) or (found is None and not required):
        return
    if found is not None:
        raise WorkloadError(f"{path.name}: {name} is {_kind(found)}; it must be a function")
    own = {*REQUIRED, *OPTIONAL}
    theirs = [n for n, v in vars(module).items() if isinstance(v, FunctionType) and n not in own]
    needed = ", ".join(f"{n}()" for n in REQUIRED)
    raise WorkloadError(
        f"{path.name} defines no function {name}{nearest(name, theirs)}\n"
        f"A workload defines {needed}; the docs describe each under 'Your model.py'."
    )


def default_batch_size(global_batch_size: int | None, num_ranks: int = 1, limit: int = 0) -> int:
    """Return the batch size of a workload that sets none: one that divides GLOBAL_BATCH_SIZE.

    Args:
        global_batch_size: of the workload, or None.
        num_ranks: that share the global batch.
        limit: the samples in the dataset; 0: any number.
    """
    size = min(DEFAULT_BATCH_SIZE, limit) if limit else DEFAULT_BATCH_SIZE
    while size > 1 and global_batch_size is not None and global_batch_size % (size * num_ranks):
        size -= 1
    return size


def _count(module: ModuleType, path: Path, name: str) -> int | None:
    value = getattr(module, name, None)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise WorkloadError(f"{path.name}: {name} is {value!r}; it must be a positive integer")
    return value


def _user_knobs(module: ModuleType, path: Path) -> dict[str, tuple[Value, ...]]:
    knobs = getattr(module, "KNOBS", {})
    example = 'KNOBS = {"attention": ["sdpa", "flex"]}'
    if not isinstance(knobs, dict):
        raise WorkloadError(f"{path.name}: KNOBS is {_kind(knobs)}; write it like {example}")
    for name, values in knobs.items():
        if name in BY_NAME:
            raise WorkloadError(f"{path.name}: KNOBS names {name!r}, a knob of autotune's own")
        plain = isinstance(values, list | tuple) and len(values) > 0
        if not plain or not all(isinstance(v, str | int | float | bool) for v in values):
            raise WorkloadError(
                f"{path.name}: KNOBS[{name!r}] is {values!r}; it must be a list of strings, "
                f"numbers or booleans, baseline first, like {example}"
            )
    return {name: tuple(values) for name, values in knobs.items()}


def _default_optimizer(params: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(params, lr=1e-4)


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def check_loss(loss: object, path: Path) -> Tensor:
    """Return the loss of the first step after checking that it can be trained on.

    Raises:
        WorkloadError: when it is not a scalar tensor with a gradient.
    """
    rule = "compute_loss(model, batch) must return a scalar tensor that depends on the model"
    if not isinstance(loss, Tensor):
        raise WorkloadError(f"{path.name}: compute_loss returned {_kind(loss)}; {rule}")
    if loss.numel() != 1:
        shape = tuple(loss.shape)
        raise WorkloadError(f"{path.name}: the loss has shape {shape}; {rule}; take its mean()")
    if not loss.requires_grad:
        raise WorkloadError(
            f"{path.name}: the loss has no gradient; {rule}; look for .item(), .detach() or "
            "torch.no_grad() on its way"
        )
    return loss
