"""The pages of the queue and of a job, in a real browser."""

from contextlib import closing

import pytest

from autotune.service.processes import JobProcess
from autotune.service.tokens import digest
from autotune.storage.access import Role
from autotune.storage.driver import this_driver
from autotune.storage.job_records import JobState, NewJob
from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from tests.service.test_command import serving

OUTPUT = "job-2: model.py, 38,410 parameters\n   1     -      633.3     1.00    323 MiB  ok\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server with a job in each state; its one device is taken for ever."""
    folder = tmp_path_factory.mktemp("server")
    with closing(open_store(str(folder / "autotune.db"))) as store:
        for name, role in (("ann", Role.SUBMIT), ("lou", Role.LOOK)):
            store.tokens.add(name, digest(f"token-of-{name}"), role)
        for number in range(1, 6):
            store.jobs.add(
                NewJob(
                    key=str(number),
                    name="gpt-124m" if number == 2 else None,
                    owner="ann" if number != 5 else "bob",
                    priority=number,
                    num_devices=9 if number in (4, 5) else 1,
                    budget_s=3600.0,
                    request={
                        "model": "model.py",
                        "folder": "/",
                        "options": {"numerics": "exact"} if number == 2 else {},
                    },
                )
            )
        for number in (1, 2, 3):
            # Jobs of another machine are left alone.
            store.jobs.claim(number, ["cpu0"], "elsewhere:1:1.0" if number == 2 else this_driver())
        store.create_run(make_run(name="job-2"))
        store.jobs.finish(1, JobState.DONE, exit_code=0, message="CONFIRMED: 2.41 times as fast")
        store.jobs.finish(3, JobState.FAILED, exit_code=3, message="model.py has no build_model")
    output = JobProcess(folder / "autotune-service" / "jobs" / "2").output
    output.parent.mkdir(parents=True)
    output.write_text(OUTPUT)
    with serving(folder, "--port", "0") as (_, address):
        yield address.rstrip("/"), folder


def test_the_queue_shows_all_jobs(server, open_page, keep):
    """With their states, owners and what they concluded, and keeps itself up to date."""
    address, folder = server
    page = open_page(f"{address}/queue?token=token-of-lou")
    page.get_by_role("heading", name="Queue").wait_for()
    rows = page.locator("#queue table tbody tr")
    rows.nth(4).wait_for()
    assert rows.count() == 5
    words = page.locator("#queue").inner_text()
    for said in ("gpt-124m", "CONFIRMED: 2.41 times as fast", "QUEUED", "RUNNING", "FAILED"):
        assert said in words
    assert page.get_by_role("link", name="Queue").is_visible()
    keep(page, "queue")
    with closing(open_store(str(folder / "autotune.db"))) as store:
        store.jobs.cancel(5, "eve")
    page.get_by_text("cancelled by eve while it waited").wait_for()


def test_a_job_shows_what_it_does(server, open_page, keep):
    """Events, the end of the log, the run; what comes is added."""
    address, folder = server
    page = open_page(f"{address}/jobs/2?token=token-of-ann")
    page.get_by_role("heading", name="gpt-124m").wait_for()
    page.get_by_text("633.3").wait_for()
    page.get_by_text("numerics=exact").wait_for()
    page.get_by_text("started on cpu0").wait_for()
    assert page.get_by_role("link", name="run job-2").get_attribute("href") == "/runs/1"
    keep(page, "job")
    output = JobProcess(folder / "autotune-service" / "jobs" / "2").output
    with output.open("a") as file:
        file.write("CONFIRMED at last\n")
    page.get_by_text("CONFIRMED at last").wait_for()


def test_only_who_may_cancel_has_the_button(server, open_page, keep):
    """The owner's click cancels a job that waits; who only looks has nothing to click."""
    address, folder = server
    page = open_page(f"{address}/jobs/4?token=token-of-lou")
    page.get_by_text("What happened").wait_for()
    assert page.get_by_role("button", name="Cancel the job").count() == 0
    page = open_page(f"{address}/jobs/4?token=token-of-ann")
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_text("cancelled by ann while it waited").first.wait_for()
    assert page.get_by_role("button", name="Cancel the job").count() == 0
    with closing(open_store(str(folder / "autotune.db"))) as store:
        assert store.jobs.job("4").state is JobState.CANCELLED
        assert store.audit.latest(limit=1)[0].who == "ann"
    keep(page, "job-cancelled")


def test_a_page_on_a_phone_is_no_wider_than_it(server, open_page, keep):
    """Tables scroll inside."""
    address, _ = server
    viewport = {"width": 390, "height": 800}
    for name, path in (("queue-phone", "/queue"), ("job-phone", "/jobs/2")):
        page = open_page(f"{address}{path}?token=token-of-lou", viewport=viewport)
        page.locator("#page h1").wait_for()
        page.locator("table").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        keep(page, name)


def test_a_job_that_is_not_there_is_named(server, open_page):
    """In a message, not in a traceback."""
    page = open_page(f"{server[0]}/jobs/77?token=token-of-lou")
    page.get_by_text("there is no job '77'").wait_for()


def test_who_only_looks_writes_no_notes(server, open_page):
    """The message says what the token allows."""
    page = open_page(f"{server[0]}/runs/1?token=token-of-lou")
    page.get_by_label("Note").fill("mine")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("may look; this needs one that may submit").wait_for()
