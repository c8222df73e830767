"""The search service under load: are jobs lost or repeated, how long does a submission take.

    python benchmarks/service.py [--storage URL]

Eight clients send 200 jobs at once to a server with four slots; then 40 more, and the queue is
worked off, while the server is killed ten times. Jobs are `sleep 1` in place of `autotune run`,
so that the queue is what is measured. Prints the times of submissions, and what was found wrong.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from autotune.service.client import Client
from autotune.service.tokens import digest, new_token
from autotune.storage.access import Role
from autotune.storage.job_records import ENDED
from autotune.storage.sql import open_store

NUM_CLIENTS, NUM_JOBS, NUM_LATE_JOBS, NUM_SLOTS, NUM_KILLS = 8, 200, 40, 4, 10
JOB_S = 1.0
# A job may start before one that came while the loop was choosing, and so was not seen.
SEEN_S = 1.0


def serve(storage, folder, port):
    """Run a server with stand-ins for `autotune run`, until it is killed."""
    from autotune.dashboard.serve import listen  # noqa: PLC0415  only the server has the extra
    from autotune.service.devices import Devices  # noqa: PLC0415
    from autotune.service.running import run_server  # noqa: PLC0415
    from autotune.service.settings import ServiceSettings  # noqa: PLC0415

    started = Path(folder) / "started"
    settings = ServiceSettings(
        storage=storage,
        folder=Path(folder),
        devices=Devices(kind="cpu", ids=tuple(f"cpu{n}" for n in range(NUM_SLOTS)), cores={}),
        stand_in=lambda job, _: ["sh", "-c", f"echo {job.id} >> {started}; sleep {JOB_S}"],
    )
    with listen("127.0.0.1", port) as listener:
        run_server(
            settings, listener, f"http://127.0.0.1:{port}/", say=print, started=lambda: None
        )


class Server:
    """A server process that can be killed and started anew at the same address."""

    def __init__(self, storage, folder):
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self._words = ["serve", storage, str(folder), str(self.port)]
        self.process = None
        self.start()

    def start(self):
        """Start the process."""
        self.process = subprocess.Popen([sys.executable, __file__, *self._words])

    def kill(self):
        """Kill the process."""
        self.process.kill()
        self.process.wait()


def submit_all(address, token, model, num_jobs):
    """Send jobs from all clients at once; return the seconds that each submission took."""
    times = []

    def send(number):
        client = Client(address, token, patience_s=60.0)
        choose = random.Random(number)  # noqa: S311  no secret
        for _ in range(num_jobs // NUM_CLIENTS):
            began = time.perf_counter()
            client.submit(model, folder=model.parent, priority=choose.randint(-2, 2))
            times.append(time.perf_counter() - began)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    return threads, times


def wait_until(is_reached, limit_s=300.0):
    until = time.monotonic() + limit_s
    while not is_reached():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)


def num_started(folder):
    file = folder / "started"
    return len(file.read_text().split()) if file.exists() else 0


def passed_over(store, jobs):
    """Return pairs of jobs of which the first started though the second was more urgent."""
    begun = {
        job.id: next(event.at for event in store.jobs.events(job.id) if event.kind == "running")
        for job in jobs
    }
    return [
        (job.id, other.id)
        for job in jobs
        for other in jobs
        if (-other.new.priority, other.id) < (-job.new.priority, job.id)
        and begun[other.id] > begun[job.id]
        and (begun[job.id] - other.created_at).total_seconds() > SEEN_S
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="default: a new SQLite file")
    storage = parser.parse_args().storage
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "client").mkdir()
        model = folder / "client" / "model.py"
        model.write_text("pass\n" * 1000)
        print(
            json.dumps(measured(storage or str(folder / "autotune.db"), folder, model), indent=2)
        )


def measured(storage, folder, model):
    token = new_token()
    with closing(open_store(storage)) as store:
        store.tokens.add(f"benchmark-{os.getpid()}", digest(token), Role.SUBMIT)
    server = Server(storage, folder / "service")
    address = f"http://127.0.0.1:{server.port}"
    client = Client(address, token, patience_s=60.0)
    client.jobs()
    began = time.monotonic()
    threads, times = submit_all(address, token, model, NUM_JOBS)
    for thread in threads:
        thread.join()
    submitted_s = time.monotonic() - began
    late, late_times = submit_all(address, token, model, NUM_LATE_JOBS)
    for _ in range(NUM_KILLS):
        seen = num_started(folder / "service")
        wait_until(lambda: num_started(folder / "service") >= seen + 5)  # noqa: B023  it ends here
        server.kill()
        server.start()
    for thread in late:
        thread.join()
    with closing(open_store(storage)) as store:
        wait_until(lambda: all(job.state in ENDED for job in store.jobs.jobs()))
        total_s = time.monotonic() - began
        jobs = store.jobs.jobs()
        started = list(map(int, (folder / "service" / "started").read_text().split()))
        result = {
            "store": store.url.partition("://")[0] if "://" in store.url else "sqlite",
            "jobs": len(jobs),
            "lost": NUM_JOBS + NUM_LATE_JOBS - len(set(started)),
            "repeated": len(started) - len(set(started)),
            "not done": sum(job.state.value != "done" for job in jobs),
            "started again": sum(job.num_starts > 1 for job in jobs),
            "passed over": len(passed_over(store, jobs)),
            "kills": NUM_KILLS,
            "submit p50 ms": round(1000 * statistics.median(times), 1),
            "submit p95 ms": round(1000 * statistics.quantiles(times, n=20)[-1], 1),
            "submit max ms": round(1000 * max(times), 1),
            "200 submitted s": round(submitted_s, 1),
            "all done s": round(total_s, 1),
            "late submit max s": round(max(late_times), 1),
        }
    server.process.terminate()
    server.process.wait()
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
