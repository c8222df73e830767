"""Where nothing can be compared, the report says so and blames no plan."""

import pytest

from tests.trials.numerics import workloads as w

IMPOSSIBLE = {
    "the optimizer steps in the backward pass": (
        """
        def build_optimizer(params):
            params = list(params)
            for parameter in params:
                parameter.register_post_accumulate_grad_hook(use)
            return torch.optim.SGD(params, lr=0.1)

        def use(parameter):
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
        """,
        "no gradients to compare",
    ),
    "eager fp32 is not finite": (
        """
        def compute_loss(model, batch):
            return model(batch[0]).sum() * float("inf")
        """,
        "does not stay finite",
    ),
    "each model has other parameters": (
        """
        sizes = iter(range(4, 100))

        def build_model():
            return nn.Sequential(nn.Linear(16, (size := next(sizes))), nn.Linear(size, 3))
        """,
        "has the shape",
    ),
    "each model has other names": (
        """
        names = iter("abcdefgh")

        def build_model():
            model = nn.Sequential()
            model.add_module(next(names), nn.Linear(16, 3))
            return model
        """,
        "is not in both of two models",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_comparison_that_cannot_be_made_says_why(case, write_workload):
    """No deviation is made up, so the plan has not failed."""
    source, words = IMPOSSIBLE[case]
    report = w.checked(write_workload(source, base=w.HEAD), {"precision": "bf16"})
    assert words in report.unchecked
    assert not report.deviations
    assert report.passed
    assert report.seconds > 0.0


def test_a_model_that_cannot_be_copied_is_compared(write_workload):
    """Two are built, and weights go from one to the other by name."""
    source = """
        import threading

        def build_model():
            model = nn.Sequential(nn.Linear(16, 3))
            model.lock = threading.Lock()
            return model
    """
    report = w.checked(write_workload(source, base=w.HEAD), {"precision": "bf16"})
    assert report.passed
    assert report.deviations
