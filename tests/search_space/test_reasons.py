"""Why a count is changed, in words."""

from autotune.search_space.knobs import BY_NAME


def test_a_count_has_another_reason_each_way():
    """Fewer threads are not more of them."""
    threads, buckets = BY_NAME["threads"].reasons, BY_NAME["bucket_mb"].reasons
    assert "fewer threads" in threads.why(1, 2)
    assert "more threads" in threads.why(2, 1)
    assert "smaller messages" in buckets.why(1, 25)
    assert "larger messages" in buckets.why(100, 25)
    batch, accumulation = BY_NAME["batch_size"].memory, BY_NAME["accumulation"].memory
    assert batch.why(8, 16) == accumulation.why(4, 2) is not None
    assert batch.why(16, 8) is accumulation.why(2, 4) is None
