"""Figures for Prometheus, and the webhook."""

import json
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autotune.errors import UsageError
from autotune.service.webhook import Webhook, check_webhook
from autotune.storage.job_records import JobState
from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.service.conftest import run_until
from tests.service.test_server import add


@pytest.fixture
def received():
    """The address of a webhook, and what it gets."""
    messages = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            messages.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", messages
    server.shutdown()
    thread.join()
    server.server_close()


def test_prometheus_reads_the_figures(caller, url):
    """Jobs by state, devices, trials by outcome; for those with a token."""
    caller.submit()
    with closing(open_store(url)) as store:
        store.jobs.claim(1, ["cpu0"], "box:1:1.0")
        run = store.create_run(make_run())
        for number, outcome in enumerate((Outcome.OOM, Outcome.CRASH, Outcome.OOM), 1):
            store.start_trial(run.id, number, run.new.baseline, Purpose.LADDER, "", "")
            store.finish_trial(run.id, number, TrialResult(outcome=outcome), 1.0)
    caller.submit()
    assert caller._client.get("/metrics").status_code == 401
    headers = {"Authorization": "Bearer token-of-lou"}
    text = caller._client.get("/metrics", headers=headers).text
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["autotune_jobs", "queued"] == 1
    assert samples["autotune_jobs", "running"] == 1
    assert samples["autotune_devices_in_use",] == 1
    assert samples["autotune_devices",] == 2
    assert samples["autotune_trials_total", "oom"] == 2
    assert samples["autotune_trials_total", "crash"] == 1
    assert samples["autotune_trials_per_minute",] == pytest.approx(0.3)


def test_the_end_of_a_job_is_told(make_loop, received):
    """As JSON that Slack takes, with a link to the job."""
    address, messages = received
    loop = make_loop()
    loop._ended = Webhook(address, "http://box:8060/").ended
    add(loop, name="mine")
    run_until(loop, lambda: messages)
    assert messages == [{"text": "mine of ann is done: ended (http://box:8060/jobs/1)"}]


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/hook", "http://no.such.host.invalid/"])
def test_a_webhook_that_fails_does_not_hurt_the_queue(make_loop, address, caplog):
    """Its jobs end as they do without; a line says what happened."""
    loop = make_loop()
    loop._ended = Webhook(address, "http://box:8060/").ended
    for number in range(3):
        add(loop, number)
    run_until(loop, lambda: loop.store.jobs.counts()[JobState.DONE] == 3)
    run_until(loop, lambda: "failed" in caplog.text)
    assert "/hook" not in caplog.text


@pytest.mark.parametrize("url", ["slack", "file:///etc/passwd", "http://"])
def test_what_is_no_address_is_refused(url):
    """Before the server starts."""
    with pytest.raises(UsageError, match="is no address"):
        check_webhook(url)
