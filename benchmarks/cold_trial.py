"""A trial that compiles everything itself, whatever was compiled before it.

A table says what each plan costs. With a shared cache that would depend on the order in which the
plans were recorded: the second one of a kind compiles in no time.
"""

import os
import tempfile

from autotune.trials.rank import run_trial


def run(request):
    """Yield what `run_trial` does, with a compiler cache of its own."""
    with tempfile.TemporaryDirectory(prefix="cold-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")  # noqa: PTH118
        yield from run_trial(request)
