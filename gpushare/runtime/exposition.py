"""What every component tells Prometheus of itself, and how. Imported by components that have metrics only."""

import platform
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

import gpushare

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
LONGEST: Final = 253
"""Characters of a label's value: the longest name that Kubernetes has. What tenants and nodes write may be longer."""


def registry(component: str) -> CollectorRegistry:
    # A second series for each counter and histogram, with its age. Nothing asks for it.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # the library's
    found = CollectorRegistry()
    ProcessCollector(registry=found)
    labels = {"component": component, "version": gpushare.__version__, "python_version": platform.python_version()}
    build = Gauge("gpushare_build_info", "1, with the component and its version", list(labels), registry=found)
    build.labels(**labels).set(1)
    return found


def page(metrics: CollectorRegistry) -> bytes:
    return prometheus_client.generate_latest(metrics)


def short(value: str) -> str:
    return value[:LONGEST]
