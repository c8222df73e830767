"""What a job's process is to run: the command line of `autotune run`, its folder and variables."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.service.environment import job_environment, storage_for_job
from autotune.service.processes import Order
from autotune.service.request import JobRequest
from autotune.service.settings import ServiceSettings
from autotune.storage.job_records import JobRecord
from autotune.storage.location import locate

WORKLOAD = "workload"
"""The key under which a stored request has the folder of its unpacked archive."""
PLAN_FILE = "plan.yaml"


def order_for(
    job: JobRecord,
    settings: ServiceSettings,
    server_environment: Mapping[str, str] = os.environ,
) -> Order:
    """Return what a job's process is to run on the devices that the job has."""
    folder = settings.job_folder(job.id).resolve()
    storage, secrets = storage_for_job(
        locate(settings.storage), settings.folder.resolve(), server_environment
    )
    return Order(
        command=_command(job, settings, folder, storage),
        working_dir=working_dir(job, settings),
        environment={
            **job_environment(server_environment, settings.passed),
            **secrets,
            **settings.devices.environment(job.devices),
        },
        cores=settings.devices.cores_of(job.devices),
    )


def request_of(job: JobRecord) -> JobRequest:
    """Return what a job was asked to do."""
    document = {name: value for name, value in job.new.request.items() if name != WORKLOAD}
    return JobRequest.from_dict(document)


def working_dir(job: JobRecord, settings: ServiceSettings) -> Path:
    """Return the folder of a job's workload."""
    unpacked = job.new.request.get(WORKLOAD)
    if unpacked is not None:
        return (settings.workloads / str(unpacked)).resolve()
    return Path(str(job.new.request["folder"]))


def _command(
    job: JobRecord, settings: ServiceSettings, folder: Path, storage: str
) -> Sequence[str]:
    if settings.stand_in is not None:
        return settings.stand_in(job, folder)
    request = request_of(job)
    own = [f"--storage={storage}", f"--name={job.run_name}", f"--out={folder / PLAN_FILE}"]
    if settings.ray_address is not None:
        own.append(f"--ray-address={settings.ray_address}")
    if job.run_id is None:
        own.append("--fresh")
    # With -P, a file of the workload's such as random.py is no module of autotune's.
    python = request.python or settings.python
    return [python, "-P", "-m", "autotune", "run", *own, *request.run_words()]
