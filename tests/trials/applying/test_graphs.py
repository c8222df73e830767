"""A recorded step: what it needs, and that it trains as another. Its graphs are stood in for."""

import pytest
import torch

from autotune.trials.applying.graphs import RecordedStep, check_tensors, has_same_shapes
from autotune.trials.applying.python_state import python_state
from autotune.trials.failure import InvalidPlanError
from tests.trials.replayed_on_cpu import stand_in

BATCH = {"x": torch.zeros(4, 3), "y": (torch.zeros(4, dtype=torch.int64),)}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"x": torch.ones(4, 3), "y": (torch.ones(4, dtype=torch.int64),)}, True),
        ({"x": torch.ones(2, 3), "y": (torch.ones(2, dtype=torch.int64),)}, False),
        ({"x": torch.ones(4, 3), "y": (torch.ones(4),)}, False),
        ({"x": torch.ones(4, 3)}, False),
        ({"x": torch.ones(4, 3), "y": (4,)}, False),
    ],
)
def test_only_a_batch_like_the_recorded_one_is_replayed(other, expected):
    """The graph reads fixed places of fixed sizes."""
    assert has_same_shapes(other, BATCH) is expected


def test_a_batch_of_more_than_tensors_is_not_recorded():
    """A number would stay what it was in the recorded step."""
    check_tensors(BATCH)
    with pytest.raises(InvalidPlanError, match="type float"):
        check_tensors({**BATCH, "temperature": 0.5})


class Descent(torch.optim.Optimizer):
    """Takes its rate as a tensor, as capturable optimizers of torch do on a GPU."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                change = p.grad + group["weight_decay"] * p
                if "mean" in self.state[p]:
                    change = self.state[p]["mean"].mul_(0.5).add_(change)
                else:
                    self.state[p]["mean"] = change
                p.sub_(group["lr"] * change)


class Trained:
    """A linear model, its optimizer, and a step of both that is recorded or not."""

    def __init__(self, monkeypatch):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = Descent(self.model.parameters())
        self.calls = 0
        self.graphs = stand_in(
            monkeypatch,
            lambda: [
                *self.model.parameters(),
                *(s["mean"] for s in self.optimizer.state.values()),
            ],
        )
        self.recorded = RecordedStep(
            self.train,
            lambda batch: batch,
            lambda: python_state(self.model, self.optimizer, self.loss),
            self.optimizer,
            torch.device("cpu"),
            non_blocking=False,
        )

    @staticmethod
    def loss(model, batch):
        """Of a batch of inputs alone."""
        return (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

    def train(self, batch):
        """One step in Python."""
        self.calls += 1
        loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


BATCHES = [torch.randn(4, 3, generator=torch.Generator().manual_seed(k)) for k in range(8)]


def test_a_recorded_step_trains_like_one_that_is_not(monkeypatch):
    """On each batch, also on one of another shape, with Python running only until then."""
    plain, recorded = Trained(monkeypatch), Trained(monkeypatch)
    batches = [*BATCHES[:6], BATCHES[6][:2], BATCHES[7]]
    expected = [plain.train(batch) for batch in batches]
    got = [recorded.recorded(batch) for batch in batches]
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(recorded.model.weight, plain.model.weight)
    assert recorded.calls == 3 + 1 + 1  # before, while it is recorded, and the other shape


def test_data_that_is_on_the_device_stays_as_it_is(monkeypatch):
    """The graph's input is refilled, so it must not be a part of the user's data."""
    data = torch.stack(BATCHES)
    trained = Trained(monkeypatch)
    for batch in data:
        trained.recorded(batch)
    torch.testing.assert_close(data, torch.stack(BATCHES))


def test_a_new_learning_rate_reaches_the_recorded_step(monkeypatch):
    """As a loop of one's own sets it: a number in the place of the tensor."""
    plain, recorded = Trained(monkeypatch), Trained(monkeypatch)
    for k, batch in enumerate(BATCHES):
        for one in (plain, recorded):
            one.optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
        torch.testing.assert_close(recorded.recorded(batch), plain.train(batch))
    torch.testing.assert_close(recorded.model.weight, plain.model.weight)
    assert len(recorded.graphs) == 1


def test_another_setting_of_the_optimizer_is_recorded_anew(monkeypatch):
    """A graph holds numbers as they were."""
    plain, recorded = Trained(monkeypatch), Trained(monkeypatch)
    for k, batch in enumerate([*BATCHES, *BATCHES]):
        for one in (plain, recorded):
            one.optimizer.param_groups[0]["weight_decay"] = 0.0 if k < 6 else 0.5
        torch.testing.assert_close(recorded.recorded(batch), plain.train(batch))
    torch.testing.assert_close(recorded.model.weight, plain.model.weight)
    assert len(recorded.graphs) == 2


def test_a_state_that_was_loaded_is_recorded_anew(monkeypatch):
    """As when one goes back to a checkpoint: the graph still reads and writes the old one.

    A state from before the first step is made in a real one: a graph would make it each time.
    """
    plain, recorded = Trained(monkeypatch), Trained(monkeypatch)
    fresh = [one.optimizer.state_dict() for one in (plain, recorded)]
    for k, batch in enumerate([*BATCHES, *BATCHES]):
        if k == 5:
            for one, state in zip((plain, recorded), fresh, strict=True):
                one.optimizer.load_state_dict(state)
        torch.testing.assert_close(recorded.recorded(batch), plain.train(batch))
    torch.testing.assert_close(recorded.model.weight, plain.model.weight)
    assert len(recorded.graphs) == 2


def test_a_step_that_python_remembers_is_refused_before_it_is_recorded(monkeypatch):
    """What is looked for is in test_python_state.py."""
    trained = Trained(monkeypatch)
    trained.model.register_forward_hook(lambda *_: setattr(trained.model, "n", trained.calls))
    for batch in BATCHES[:2]:
        trained.recorded(batch)
    with pytest.raises(InvalidPlanError, match="from 2 to 3"):
        trained.recorded(BATCHES[2])
    assert not trained.graphs


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), RuntimeError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
        (RuntimeError("operation not permitted when stream is capturing"), InvalidPlanError),
    ],
)
def test_memory_that_runs_out_in_a_recording_is_no_invalid_plan(monkeypatch, error, kind):
    """The memory model learns from the one; the other says what to do."""
    trained = Trained(monkeypatch)

    def fail(*_):
        raise error

    for batch in BATCHES[:3]:
        trained.recorded(batch)
    trained.loss = fail
    with pytest.raises(kind) as raised:
        trained.recorded(BATCHES[3])
    assert (raised.type is InvalidPlanError) == ("cuda_graph=off" in str(raised.value))
