"""The reason that a change of a setting is given."""

from autotune.agent.forecast.levers import in_words
from autotune.agent.forecast.memory import why_less


def test_a_count_has_another_reason_each_way():
    """Fewer threads are not more of them."""
    assert "fewer threads" in in_words("threads", 1, 2)
    assert "more threads" in in_words("threads", 2, 1)
    assert "smaller messages" in in_words("bucket_mb", 1, 25)
    assert "larger messages" in in_words("bucket_mb", 100, 25)
    assert why_less("batch_size", 8, 16) == why_less("accumulation", 4, 2) is not None
    assert why_less("batch_size", 16, 8) is why_less("accumulation", 2, 4) is None
