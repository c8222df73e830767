"""Tells a webhook when a job has ended, as JSON that Slack and others take."""

import json
import logging
import queue
import threading
import urllib.request
from urllib.parse import urlsplit

from autotune.errors import UsageError
from autotune.storage.job_records import JobRecord

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MAX_WAITING = 1000
"""Messages that wait for a slow webhook; more are left out."""


class Webhook:
    """Sends messages in a thread of its own: whatever fails there, the queue goes on.

    Args:
        url: where to send them.
        address: of the server, for the link to the job.
    """

    def __init__(self, url: str, address: str) -> None:
        self._url = url
        self._address = address
        self._messages: queue.Queue[str] = queue.Queue(MAX_WAITING)
        threading.Thread(target=self._send_all, name="webhook", daemon=True).start()

    def ended(self, job: JobRecord) -> None:
        """Tell that a job has ended; returns at once."""
        try:
            self._messages.put_nowait(message(job, self._address))
        except queue.Full:
            logger.warning("%s is too slow; a message was left out", _shown(self._url))

    def _send_all(self) -> None:
        while True:
            text = self._messages.get()
            try:
                _send(self._url, text)
            except (OSError, ValueError) as error:
                logger.warning("the webhook %s failed: %s", _shown(self._url), error)


def check_webhook(url: str) -> None:
    """Check the address of a webhook.

    Raises:
        UsageError: when it is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"--webhook {url!r} is no address; write it like https://host/path")


def message(job: JobRecord, address: str) -> str:
    """Return the message about a job that has ended."""
    return (
        f"{job.shown_name} of {job.new.owner} is {job.state.value}: {job.message} "
        f"({address}jobs/{job.id})"
    )


def _send(url: str, text: str) -> None:
    request = urllib.request.Request(  # noqa: S310  checked by `check_webhook`
        url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310  the same
        pass


def _shown(url: str) -> str:
    """Return the webhook without its path, which is a secret at Slack."""
    return f"https://{urlsplit(url).hostname}/..."
