"""The numerics check: losses beside eager fp32 from the same start."""

from autotune.search_space.knobs import Numerics
from autotune.search_space.plan import Plan
from autotune.trials.numerics.check import widest_class


def test_the_numerics_check_can_fail(write_workload, run_plan):
    """A model that needs fp32 is caught in bf16."""
    path = write_workload(
        """
        class Fragile(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(16, 3)
            def forward(self, x):
                big = self.linear(x) + 1000.0  # bf16 keeps steps of 4 up there
                return (big - 1000.0).float() if big.dtype == torch.float32 else big.float() * 2

        def build_model():
            return Fragile()
        """
    )
    report = run_plan(path, {"precision": "bf16"}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    # Linear gives bf16, and the branch above multiplies its error: the losses part.
    assert not report.passed
    assert report.worst is not None
    assert report.worst.seen > report.worst.allowed


def test_the_tolerance_follows_the_widest_class():
    """Precision is allowed more than rounding, rounding more than exact knobs."""
    base = Plan.of({"batch_size": 4, "precision": "fp32", "workers": 0, "compile_mode": "off"})
    changes = [{"workers": 2}, {"compile_mode": "default"}, {"precision": "bf16", "workers": 2}]
    classes = [widest_class(Plan.of({**base.values, **change}), base) for change in changes]
    assert classes == [Numerics.EXACT, Numerics.ROUNDING, Numerics.PRECISION]


def test_compiled_dropout_is_no_difference(write_workload, run_plan):
    """The compiler draws other random numbers than eager code; the check makes both the same."""
    path = write_workload(
        """
        def build_model():
            return nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        """
    )
    report = run_plan(path, {"compile_mode": "default"}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    assert report.passed


KEEPING = """
KEPT = []

def build_model():
    from kept import part
    if not KEPT:
        KEPT.append(nn.Linear(16, 3))
    return nn.Sequential(part, KEPT[0])

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), index % 3

def build_dataset():
    return Rows()

def collate_fn(samples):
    batch = torch.utils.data.default_collate(samples)
    return [*batch, (number for number in range(3))]

def compute_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)
"""


def test_a_model_that_the_workload_keeps_is_compared_from_the_same_start(write_workload, run_plan):
    """It was trained for the reference when it is built once more. Its batch cannot be copied."""
    path = write_workload(KEEPING)
    (path.parent / "kept.py").write_text("from torch import nn\npart = nn.Linear(16, 16)\n")
    report = run_plan(path, {"precision": "bf16"}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    assert report.passed
