"""Runs a trial with an empty compiler cache.

A recorded table tells how long each plan takes. With a shared cache, that would depend on the
order of recording, as a plan like an earlier one finds its kernels compiled.
"""

import os
import tempfile

from autotune.trials.rank import run_trial


def run(request):
    """Run a trial as `run_trial` does, with a compiler cache of its own."""
    with tempfile.TemporaryDirectory(prefix="cold-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")  # noqa: PTH118
        yield from run_trial(request)
