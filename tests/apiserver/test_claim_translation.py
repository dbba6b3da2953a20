"""A namespace whose pods claim what they ask for by gpu-mem: webhook, controller, kube-scheduler and API server."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.units import ResourceConfig
from gpushare.wire import claim_templates
from gpushare.wire.claims import API
from testing import skips
from tests.apiserver.conftest import CLAIMS_SINCE, shared_by_claims
from tests.apiserver.server import Json, Server, pod

NODE = "claims-1"
CHOOSY = {
    names.ANNOTATION_MODEL: 'tesla-t4, !"; true || "',
    names.ANNOTATION_UUID: f"GPU-{NODE}-2, GPU-{NODE}-3",
    names.ANNOTATION_MIN_MEMORY: "10",
    names.ANNOTATION_MIG: "never",
    names.ANNOTATION_LIMIT: names.ENFORCED,
}


@pytest.fixture
def claiming(server: Server, namespace: str) -> Iterator[str]:
    """A namespace, beside a node with two GPUs of each mode."""
    skips.older(server.version, CLAIMS_SINCE, "it has no claims for amounts of memory")
    server.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {names.LABEL_SHARE_BY: names.CLAIMS}}})
    with server.node(NODE, (16,) * 4), shared_by_claims(server, NODE):
        yield namespace


def templates(server: Server, namespace: str) -> list[Json]:
    found: list[Json] = server.api.get(claim_templates.PATH.format(namespace))["items"]
    return found


def claims(server: Server, namespace: str) -> list[Json]:
    found: list[Json] = server.api.get(f"{API}/namespaces/{namespace}/resourceclaims")["items"]
    return found


def results(server: Server, namespace: str) -> list[tuple[str, str]]:
    """Of all claims: the request, and the memory that it has."""
    every = [each["status"]["allocation"]["devices"]["results"] for each in claims(server, namespace)]
    return sorted((one["request"], one["consumedCapacity"]["memory"]) for found in every for one in found)


def test_pods_that_ask_by_gpu_mem_claim_it_of_one_template(server: Server, claiming: str) -> None:
    for name in ("a", "b"):
        made = server.create_pod(claiming, pod(name, 3, None, 5, node=NODE))
        assert not any("limits" in each.get("resources", {}) for each in made["spec"]["containers"])
        assert made["spec"]["schedulerName"] == names.DEFAULT_SCHEDULER
        void = {"name": names.ENV_VISIBLE_DEVICES, "value": names.VISIBLE_DEVICES_NONE}
        assert void in made["spec"]["containers"][1]["env"]
    server.bound(claiming, "a", "b")
    assert len(templates(server, claiming)) == 1
    assert results(server, claiming) == [("gpu-0", "3Gi"), ("gpu-0", "3Gi"), ("gpu-1", "5Gi"), ("gpu-1", "5Gi")]
    marks = [each["metadata"]["annotations"] for each in server.pods(claiming)]
    assert not any(names.ANNOTATION_ALLOCATION in each for each in marks), "gpu-mem of the node is untouched"


def test_what_a_pod_says_of_gpus_is_a_selector_that_the_scheduler_can_evaluate(server: Server, claiming: str) -> None:
    notes = {key: text for key, text in CHOOSY.items() if key not in {names.ANNOTATION_LIMIT, names.ANNOTATION_MODEL}}
    server.create_pod(claiming, pod("fits", 3, annotations={**notes, names.ANNOTATION_MODEL: "T4, !A100"}))
    server.bound(claiming, "fits")
    server.create_pod(claiming, pod("enforced", 3, annotations={names.ANNOTATION_LIMIT: names.ENFORCED}))
    server.create_pod(claiming, pod("other", 3, annotations={names.ANNOTATION_MODEL: "H100"}))
    server.eventually("all have templates", lambda: len(templates(server, claiming)) == 3)

    def waits(name: str) -> bool:
        return "cannot allocate all claims" in str(server.pod(claiming, name)["status"].get("conditions"))

    server.eventually("both wait", lambda: waits("enforced") and waits("other"))


def test_whole_and_several_gpus(server: Server, claiming: str) -> None:
    several = pod("several", 4, annotations={names.ANNOTATION_GPUS: "2"})
    server.create_pod(claiming, several)
    server.bound(claiming, "several")
    assert results(server, claiming) == [("gpu-0", "4Gi"), ("gpu-0", "4Gi")]


def test_no_one_else_makes_a_template_of_that_name(server: Server, claiming: str) -> None:
    found = claim_templates.translate(pod("web", 7), ResourceConfig())
    assert found is not None
    path, tenant = claim_templates.PATH.format(claiming), server.tenant(claiming)
    for who in (tenant, server.api):
        with pytest.raises(kube.ForbiddenError, match="is for templates that gpushare's controller makes"):
            who.create(path, found.template.object())
    tenant.create(path, replace(found.template, prefix="gpu-mem").object())  # as `gpushare convert` names it


def test_what_a_claim_cannot_say_is_refused_and_other_namespaces_are_as_before(server: Server, claiming: str) -> None:
    with pytest.raises(kube.BadRequestError, match="same-gpu-as"):
        server.create_pod(claiming, pod("beside", 3, annotations={names.ANNOTATION_SAME_GPU: "app=web"}))
    server.create_namespace(f"{claiming}-plain")
    made = server.create_pod(f"{claiming}-plain", pod("plain", 3, node=NODE))
    assert "resourceClaims" not in made["spec"]
    server.bound(f"{claiming}-plain", "plain")
    server.delete_pods(f"{claiming}-plain")
    server.api.delete(f"/api/v1/namespaces/{claiming}-plain")
