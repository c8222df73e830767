"""Texts by which a lost rank is recognised in the errors of the others; imports no torch."""

# What NCCL's watchdog writes before it aborts a process because of another one. It aborts for the
# process's own CUDA errors as well, so its name alone says nothing.
WATCHDOG_TEXTS = (
    "Watchdog caught collective operation timeout",
    "NCCL communicator was aborted",
    "remote process exited",
    "ncclRemoteError",
)
# What gloo and NCCL say when the other side of a connection is gone or does not come.
PEER_TEXTS = (
    *WATCHDOG_TEXTS,
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "gloo/transport/",
    "ncclSystemError",
)
