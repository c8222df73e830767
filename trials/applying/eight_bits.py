"""Linear layers that multiply in 8 bits, by torchao; the rest computes under autocast to bf16.

Each product casts its weight and its input by a scale of its own, and takes the result in bf16.
Weights stay the parameters that they are. The model's last layer, whose scores go into the loss,
stays as it is, and so do layers with a side that is no multiple of 16, which the kernels lack.
"""

import dataclasses
import importlib
import warnings
from typing import Any

from torch import nn

from autotune.search_space.plan import Plan
from autotune.trials.failure import InvalidPlanError

_RECIPE = "tensorwise"  # one scale for a whole tensor: the fastest of torchao's recipes
_MULTIPLE = 16


def in_eight_bits(
    model: nn.Module, blocks: list[nn.Module], plan: Plan, device_kind: str
) -> tuple[nn.Module, list[nn.Module]]:
    """Return the model and its blocks, with linear layers in fp8 where the plan asks for it.

    A CPU has no such kernels: there the same numbers are computed in fp32.

    Raises:
        InvalidPlanError: when torchao is missing, or the model has no layer that fits.
    """
    if plan.get("precision", "fp32") != "fp8":
        return model, blocks
    chosen = _fitting_layers(model)
    if not chosen:
        raise InvalidPlanError(
            f"precision=fp8: no linear layer but the last has sides that are multiples of "
            f"{_MULTIPLE}; use precision=bf16"
        )
    names = {module: name for name, module in model.named_modules()}
    model = _converted(model, chosen, emulate=device_kind == "cpu")
    return model, [model.get_submodule(names[block]) for block in blocks]


def _fitting_layers(model: nn.Module) -> set[nn.Module]:
    """Return the linear layers that are converted; those of other classes run their own code."""
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    sides = {layer: (layer.in_features, layer.out_features) for layer in layers[:-1]}
    return {layer for layer, both in sides.items() if not any(side % _MULTIPLE for side in both)}


def _converted(model: nn.Module, chosen: set[nn.Module], *, emulate: bool) -> nn.Module:
    torchao = _torchao()
    recipe = torchao.Float8LinearConfig.from_recipe_name(_RECIPE)
    # Batches have any number of rows, which a product in the backward pass sums over.
    config = dataclasses.replace(recipe, emulate=emulate, pad_inner_dim=True)
    converted: nn.Module = torchao.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: module in chosen
    )
    return converted


def _torchao() -> Any:
    try:
        with warnings.catch_warnings():  # of kernels that it lacks for this version of torch
            warnings.simplefilter("ignore")
            return importlib.import_module("torchao.float8")
    except ImportError as error:
        raise InvalidPlanError(
            "precision=fp8 needs torchao; pip install 'torch-autotune[fp8]'"
        ) from error
