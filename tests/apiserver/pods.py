"""Pods as their authors write them; they are gone when they are deleted, as no kubelet ends their containers."""

from collections.abc import Mapping

from testing.builders import make_container
from tests.apiserver.server import Json


def pod(
    name: str,
    *gib: int | None,
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: object,
) -> Json:
    """GiB for each container, None for one that asks for nothing."""
    containers = [make_container(f"c{i}", each) for i, each in enumerate(gib)]
    chosen: Json = {} if node is None else {"nodeSelector": {"kubernetes.io/hostname": node}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0, **chosen, **spec},
    }
