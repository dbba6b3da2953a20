"""Metrics of the webhook. The only module here that uses `prometheus_client`."""

from collections.abc import Callable
from enum import Enum
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from gpushare import names
from gpushare.runtime import exposition

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Outcome(Enum):
    UNTOUCHED = "untouched"
    MUTATED = "mutated"
    DENIED = "denied"
    MALFORMED = "malformed"  # the body was no review; nothing that an API server sends
    FAILED = "failed"  # a fault of the webhook


class Metrics:
    CONTENT_TYPE: Final = exposition.CONTENT_TYPE

    def __init__(self, certificate_left_s: Callable[[], float], ca_left_s: Callable[[], float]) -> None:
        self._registry = exposition.registry(names.WEBHOOK)
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
        for name, of, reading in (
            ("gpushare_webhook_certificate_ttl_seconds", "the served certificate", certificate_left_s),
            ("gpushare_webhook_ca_ttl_seconds", "the CA that has signed it", ca_left_s),
        ):
            left = Gauge(
                name, f"Time until {of} expires; negative if it has, NaN while there is none.", registry=self._registry
            )
            left.set_function(reading)

    def expect(self, webhook: str) -> None:
        """Have its series before the first request: nothing increases that was not there before."""
        for outcome in Outcome:
            self._admissions.labels(webhook=webhook, outcome=outcome.value)
        self._seconds.labels(webhook=webhook)

    def answered(self, webhook: str, outcome: Outcome, *, seconds: float) -> None:
        self._admissions.labels(webhook=webhook, outcome=outcome.value).inc()
        self._seconds.labels(webhook=webhook).observe(seconds)

    def exposition(self) -> bytes:
        return exposition.page(self._registry)
