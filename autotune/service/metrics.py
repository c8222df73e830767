"""The server's figures for Prometheus, read from the store when they are asked for."""

from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from autotune.dashboard.source import Source
from autotune.service.settings import ServiceSettings
from autotune.storage.job_records import JobState
from autotune.storage.sql import SqlStore

LATELY_S = 600.0
"""Seconds over which trials are counted for trials per minute."""


class Metrics:
    """The route `/metrics`.

    Args:
        source: opens the store.
        settings: how jobs run.
    """

    def __init__(self, source: Source, settings: ServiceSettings) -> None:
        self._source = source
        self._settings = settings

    @property
    def router(self) -> APIRouter:
        """The route."""
        router = APIRouter()
        router.add_api_route("/metrics", self.metrics, tags=["metrics"], response_class=Response)
        return router

    def metrics(self) -> Response:
        """Return the figures in the text format of Prometheus."""
        with self._source.store() as store:
            registry = CollectorRegistry()
            registry.register(_StoreCollector(store, self._settings))
            text = generate_latest(registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


class _StoreCollector(Collector):
    """Reads the figures from a store."""

    def __init__(self, store: SqlStore, settings: ServiceSettings) -> None:
        self._store = store
        self._settings = settings

    def collect(self) -> Iterator[Metric]:
        """Yield all figures."""
        jobs = GaugeMetricFamily("autotune_jobs", "Jobs by state.", labels=["state"])
        for state, count in self._store.jobs.counts().items():
            jobs.add_metric([state.value], count)
        yield jobs
        running = self._store.jobs.jobs(states=[JobState.RUNNING])
        taken = sum(len(job.devices) for job in running)
        yield GaugeMetricFamily("autotune_devices_in_use", "Devices that jobs hold.", taken)
        known = len(self._settings.devices.ids)
        yield GaugeMetricFamily("autotune_devices", "Devices that jobs may have.", known)
        trials = CounterMetricFamily(
            "autotune_trials", "Trials that have ended, by outcome.", labels=["outcome"]
        )
        for outcome, count in self._store.outcomes().items():
            trials.add_metric([outcome], count)
        yield trials
        rate = self._store.num_trials_since(LATELY_S) * 60 / LATELY_S
        yield GaugeMetricFamily(
            "autotune_trials_per_minute", "Trials that ended, over the last ten minutes.", rate
        )
