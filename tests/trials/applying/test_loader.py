"""Whose samples a batch holds: no sample twice, and as many as throughput counts."""

import pytest

from autotune.trials.result import Outcome

LOADERS = {
    "drop_last": "drop_last=False",
    "batch_size": "batch_size=1, drop_last=False, sampler=None, "
    "batch_sampler=torch.utils.data.BatchSampler(range(64), 2, drop_last=True)",
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_whose_batches_count_otherwise_is_refused(name, write_workload, run_plan):
    """Throughput counts `batch_size` samples a step."""
    path = write_workload(
        f"""
        def build_dataloader(dataset, **kwargs):
            own = dict({LOADERS[name]})
            return torch.utils.data.DataLoader(dataset, **(kwargs | own))
        """
    )
    result = run_plan(path)
    assert (result.outcome, result.user_error) == (Outcome.CRASH, True)
    assert f"asked for {name}=" in (result.error or "")


BATCHES = {
    "the dataset makes them": """
        class Batches(torch.utils.data.IterableDataset):
            def __init__(self, rows, size):
                self.batches = torch.utils.data.DataLoader(rows, batch_size=size)
            def __iter__(self):
                return iter(self.batches)

        def build_dataloader(dataset, **kwargs):
            batches = Batches(dataset, kwargs["batch_size"])
            return torch.utils.data.DataLoader(batches, batch_size=None)
        """,
    "a sampler of batches": """
        def build_dataloader(dataset, **kwargs):
            size = kwargs["batch_size"]
            batches = torch.utils.data.BatchSampler(kwargs["sampler"], size, drop_last=True)
            return torch.utils.data.DataLoader(dataset, batch_sampler=batches)
        """,
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_may_be_made_in_other_ways(case, write_workload, run_plan):
    """As long as nothing says that they are of another size."""
    assert run_plan(write_workload(BATCHES[case])).outcome is Outcome.OK
