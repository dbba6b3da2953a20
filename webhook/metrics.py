"""Metrics of the webhook. The only module here that uses `prometheus_client`."""

from collections.abc import Callable
from enum import Enum
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Outcome(Enum):
    """How a request ended."""

    UNTOUCHED = "untouched"
    MUTATED = "mutated"
    DENIED = "denied"
    MALFORMED = "malformed"
    """The body was no review; nothing that an API server sends."""
    FAILED = "failed"
    """A fault of the webhook."""


class Metrics:
    """The counters of one server, in a registry of their own."""

    CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self, certificate_days_left: Callable[[], float | None]) -> None:
        self._registry = CollectorRegistry()
        self._admissions = Counter(
            "gpushare_webhook_admissions",
            "Admission requests by webhook and outcome.",
            ("webhook", "outcome"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpushare_webhook_admission_duration_seconds",
            "Time from a request's arrival to its answer.",
            ("webhook",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        days = Gauge(
            "gpushare_webhook_certificate_days_left",
            "Days until the served certificate expires; NaN while there is none.",
            registry=self._registry,
        )
        days.set_function(lambda: _or_nan(certificate_days_left()))

    def answered(self, webhook: str, outcome: Outcome, *, seconds: float) -> None:
        """Count one request."""
        self._admissions.labels(webhook=webhook, outcome=outcome.value).inc()
        self._seconds.labels(webhook=webhook).observe(seconds)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return prometheus_client.generate_latest(self._registry)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
