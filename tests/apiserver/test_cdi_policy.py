"""What the API server refuses by itself: annotations by which runtimes and NVIDIA's NRI plugin choose devices."""

from collections.abc import Iterator
from functools import partial

import pytest

from gpushare import names
from gpushare.kube import api as kube
from localcluster.provision import Version
from testing import skips
from tests.apiserver.policies import TEAM, admit, deny, pod
from tests.apiserver.server import Json, Server, refused_by

MESSAGE = "annotations of cdi.k8s.io or one of its subdomains choose devices past the scheduler; remove them"
KEY = "nvidia.cdi.k8s.io/pod"
KEYS = ["cdi.k8s.io/x", "cdi.k8s.io/vendor-class_x", KEY, "nvidia.cdi.k8s.io/container.main", "a.b.cdi.k8s.io/x"]
OTHERS = ["x", "cdi.k8s.io", "notcdi.k8s.io/x", "cdi.k8s.io.example.com/x", "k8s.io/cdi.k8s.io"]
OLD = "old"
RESIZE_SINCE = Version(1, 33)
MOST = 5_000
"""Annotations, far above what anyone writes."""


@pytest.fixture(scope="module")
def existing(policies: Server) -> Iterator[str]:
    """A pod from before the policy, with such an annotation."""
    exempt = f"/api/v1/namespaces/{TEAM}"
    policies.api.patch(exempt, {"metadata": {"labels": {names.LABEL_ISOLATION: "disabled"}}})
    policies.eventually("the namespace is exempt", lambda: created(policies, pod(name=OLD, annotations={KEY: "x"})))
    policies.api.patch(exempt, {"metadata": {"labels": {names.LABEL_ISOLATION: None}}})
    policies.eventually("it is not", lambda: not created(policies, pod(name="probe", annotations={KEY: "x"}), dry=True))
    yield OLD
    policies.delete_pod(TEAM, OLD)


def created(server: Server, value: Json, *, dry: bool = False) -> bool:
    try:
        (server.admitted if dry else server.create_pod)(TEAM, value)
    except kube.BadRequestError:
        return False
    return True


@pytest.mark.parametrize("key", KEYS)
def test_devices_by_cdi_are_refused(policies: Server, key: str) -> None:
    assert names.is_cdi(key)
    assert MESSAGE in deny(policies, names.CDI_POLICY, pod(annotations={"a": "b", key: "nvidia.com/gpu=all"}))


@pytest.mark.parametrize("key", OTHERS)
def test_other_annotations_pass(policies: Server, key: str) -> None:
    assert not names.is_cdi(key)
    admit(policies, pod(annotations={key: "x"}))


@pytest.mark.parametrize("path", [f"pods/{OLD}/binding", "bindings"])
def test_a_binding_brings_none(policies: Server, existing: str, path: str) -> None:
    def bind(**annotations: str) -> object:
        body = {"metadata": {"name": existing, "annotations": annotations}, "target": {"kind": "Node", "name": "n"}}
        return policies.api.create(f"/api/v1/namespaces/{TEAM}/{path}", body, {"dryRun": "All"})

    assert MESSAGE in refused_by(names.CDI_POLICY, lambda: bind(**{KEY: "nvidia.com/gpu=0"}))
    bind(x="y")


@pytest.mark.parametrize("subresource", ["", "status", "ephemeralcontainers", "resize"])
def test_no_update_of_a_pod_adds_or_changes_one_and_what_was_there_may_stay_or_go(
    policies: Server, existing: str, subresource: str
) -> None:
    if subresource == "resize":
        skips.older(policies.version, RESIZE_SINCE, "it has no such subresource")
    path = kube.pod_path(TEAM, existing, subresource)

    def update(**annotations: str | None) -> Json:
        body = {"metadata": {"annotations": annotations}}
        return policies.api.patch(path, body, kind=kube.PatchKind.STRATEGIC, params={"dryRun": "All"})

    for refused in ({KEY: "other"}, {"cdi.k8s.io/x": "nvidia.com/gpu=all"}):
        if subresource in {"ephemeralcontainers", "resize"}:
            assert update(**refused)["metadata"]["annotations"] == {KEY: "x"}  # the API server leaves them as they are
        else:
            assert MESSAGE in refused_by(names.CDI_POLICY, partial(update, **refused))
    update(a="b")
    update(**{KEY: None})


def test_as_many_annotations_as_a_pod_can_have_cost_no_more_than_an_api_server_allows(policies: Server) -> None:
    """Every pod of the cluster comes here, and its status every time that it changes."""
    many = {f"a{i}": "" for i in range(MOST)}
    policies.create_pod(TEAM, pod(name="many", annotations=many))
    policies.api.patch(kube.pod_path(TEAM, "many", "status"), {"status": {"phase": "Running"}}, timeout_s=30)
    policies.api.patch(kube.pod_path(TEAM, "many"), {"metadata": {"annotations": {"b": ""}}}, timeout_s=30)
    policies.delete_pod(TEAM, "many")
