"""Which implementations of an optimizer are offered."""

import torch

from autotune.trials.applying.optimizer import (
    with_implementation,
)
from autotune.trials.probing.optimizer import own_implementation, steps_with


def test_an_implementation_that_refuses_such_gradients_is_not_offered():
    """Fused SGD is built with an embedding of sparse gradients, and raises at its first step."""
    model = torch.nn.Sequential(torch.nn.Embedding(8, 2, sparse=True), torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert with_implementation(optimizer, "fused").defaults["fused"]
    assert not steps_with(optimizer, "fused", model)
    assert steps_with(optimizer, "foreach", model)
    assert steps_with(optimizer, "fused", model[1])


def test_an_implementation_that_needs_all_gradients_is_not_offered_where_they_come_and_go():
    """Fused SGD with momentum raises at the first gradient that comes late."""
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert steps_with(sgd, "fused", model)
    assert not steps_with(sgd, "fused", model, late=True)
    assert steps_with(sgd, "foreach", model, late=True)
    for other in (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.optim.AdamW(model.parameters()),
    ):
        assert steps_with(other, "fused", model, late=True)


def test_the_users_own_implementation_is_what_all_groups_have():
    """Only what the user's code sets: torch's own choice depends on device and parameters."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    assert own_implementation(torch.optim.AdamW(parameters)) is None
    assert own_implementation(torch.optim.AdamW(parameters, foreach=False)) is None
    assert own_implementation(torch.optim.AdamW(parameters, foreach=True)) == "foreach"
    assert own_implementation(torch.optim.AdamW(parameters, fused=True)) == "fused"
    groups = [{"params": parameters[:1], "fused": True}, {"params": parameters[1:]}]
    assert own_implementation(torch.optim.AdamW(groups)) is None
