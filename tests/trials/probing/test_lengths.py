"""What the probe finds out about samples of uneven length."""

import pytest

from autotune.search_space.space import Narrowing, build_space
from autotune.trials.probing.probe import probe
from tests.search_space.machines import CPU_MACHINE
from tests.trials.padded_texts import PADDED_TEXTS

PROBLEMS = {
    "the samples themselves do not differ": """
        import itertools
        longer = itertools.count(40)
        def collate_fn(texts):
            full = [torch.nn.functional.pad(text, (0, 31 - len(text))) for text in texts]
            return {"words": torch.stack(full).repeat(1, next(longer))}
        class Even(Texts):
            def __getitem__(self, index):
                return torch.ones(31).long()
        def build_dataset():
            return Even()
        """,
    "the dataset is iterable": """
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return (Texts()[index] for index in range(64))
        def build_dataset():
            return Stream()
        """,
    "another length each time": """
        class Cut(Texts):
            def __getitem__(self, index):
                return torch.ones(int(torch.randint(1, 30, ()))).long()
        def build_dataset():
            return Cut()
        """,
    "do not pad short samples": """
        def collate_fn(texts):
            return {"words": torch.cat(texts)[None]}
        """,
    "does not use the sampler": """
        def build_dataloader(dataset, sampler, **kwargs):
            return torch.utils.data.DataLoader(dataset, shuffle=True, **kwargs)
        """,
    "give the dataset an attribute `lengths`": """
        import time
        class Slow(Texts):
            def __len__(self):
                return 100_000
            def __getitem__(self, index):
                time.sleep(0.001)
                return super().__getitem__(index % 64)
        def build_dataset():
            return Slow()
        """,
}


@pytest.mark.parametrize("reason", PROBLEMS)
def test_samples_that_cannot_be_grouped_are_told(reason, write_workload):
    """With what is in the way, in words."""
    facts = probe(write_workload(PROBLEMS[reason], base=PADDED_TEXTS), CPU_MACHINE, 0)
    assert reason in (facts.length_problem or "")
    assert facts.length_gain is None
    assert reason in build_space(facts, CPU_MACHINE).out["length_bucketing"]


def test_uneven_texts_may_be_grouped_where_that_is_allowed(write_workload):
    """It changes which samples are together, so it is in only by `--allow length_bucketing`."""
    facts = probe(write_workload(base=PADDED_TEXTS), CPU_MACHINE, 0)
    assert facts.length_problem is None
    assert facts.length_gain is not None
    assert 1.2 < facts.length_gain < 3
    space = build_space(facts, CPU_MACHINE)
    assert "--allow length_bucketing" in space.out["length_bucketing"]
    allowed = build_space(facts, CPU_MACHINE, Narrowing(allow=("length_bucketing",)))
    assert allowed.by_name["length_bucketing"].values == (False, True)


def test_a_dataset_that_tells_its_lengths_may_be_slow(write_workload):
    """Its samples need not be read to group them."""
    slow = PROBLEMS["give the dataset an attribute `lengths`"]
    told = slow.replace(
        "return Slow()", "slow = Slow(); slow.lengths = LENGTHS[:50] * 2_000; return slow"
    )
    facts = probe(write_workload(told, base=PADDED_TEXTS), CPU_MACHINE, 0)
    assert facts.length_problem is None
