"""What the API server refuses by itself of claims for shares of GPUs, and of pods with claims."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pytest

from gpushare import names
from tests.apiserver.policies import pod
from tests.apiserver.server import Json, Server, refusal, refused_by

GROUP: Final = "/apis/resource.k8s.io/v1/namespaces"
NAMESPACE, ADMINS = "claims", "claims-of-admins"
CLASS: Final = names.DEVICE_CLASS
MEMORY, COMPUTE = names.DRA_MEMORY, names.DRA_COMPUTE
KINDS: Final = {"claim": "resourceclaims", "template": "resourceclaimtemplates"}
SHARE: Final = {MEMORY: "3Gi"}


def asks(amounts: Mapping[str, str] | None = SHARE, *, of: str = CLASS, **fields: object) -> Json:
    """The part of a request that an alternative has too."""
    capacity: Json = {} if amounts is None else {"capacity": {"requests": dict(amounts)}}
    return {"deviceClassName": of, **capacity, **fields}


def claim(*requests: Json | list[Json], **devices: object) -> Json:
    """For requests, each of which is a list if it has alternatives."""
    listed = [
        {"name": f"r{i}", "firstAvailable": [{"name": f"a{j}", **one} for j, one in enumerate(each)]}
        if isinstance(each, list)
        else {"name": f"r{i}", "exactly": each}
        for i, each in enumerate(requests)
    ]
    return {"devices": {"requests": listed, **devices}}


def selecting(*expressions: str) -> Json:
    return asks(selectors=[{"cel": {"expression": each}} for each in expressions])


def tolerating(**toleration: str) -> Json:
    return asks(tolerations=[{"operator": "Exists", **toleration}])


def padded(length: int) -> str:
    return "true".ljust(length)


def config(driver: str) -> list[Json]:
    return [{"opaque": {"driver": driver, "parameters": {}}}]


DISTINCT: Final = [{"distinctAttribute": f"{names.DRA_DRIVER}/uuid"}]
SAME: Final = [{"matchAttribute": f"{names.DRA_DRIVER}/uuid"}]
NIC: Final = asks({"x": "1"}, of="nic.example.com", allocationMode="All", tolerations=[{"operator": "Exists"}])
MIXED: Final = [NIC, asks()]
ADMITTED: Final[Mapping[str, Json]] = {
    "share": claim(asks({MEMORY: "3Gi", COMPUTE: "20"})),
    "whole": claim(asks(None)),
    "bounds": claim(asks({MEMORY: "1Pi", COMPUTE: "100"}), asks({MEMORY: "1Mi", COMPUTE: "0"})),
    "alternatives": claim([asks({MEMORY: f"{gib}Gi"}) for gib in (80, 40, 20, 10)]),
    "alternatives-of-many": claim([asks(count=2), asks(count=2)], asks(count=2)),
    "four": claim(*[asks()] * 4, constraints=DISTINCT),
    "same-gpu": claim(asks(), asks(), constraints=SAME),
    "many": claim(asks(count=32)),
    "many-on-one": claim(asks(count=2), constraints=SAME),
    "beside-another": claim(*MIXED),
    "toleration": claim(tolerating(key="example.com/gpu")),
    "configuration-of-another": claim(*MIXED, config=config("nic.example.com")),
    "selectors": claim(selecting(padded(1024), *["true"] * 3)),
    "of-another-class": claim(
        *[[asks({"x": "1"}, of="nic.example.com", count=99, selectors=[{"cel": {"expression": padded(1025)}}])] * 8]
        * 32,
        config=config(names.DRA_DRIVER),
    ),
}
REQUESTS: Final = "may have 4 requests, with each alternative of firstAvailable counted, and this one has "
DEVICES: Final = "may ask for 32 devices in one request, or for 4 in all of several, and this one asks for "
ALL: Final = "allocationMode All takes a share of every GPU of a node; write count"
TWICE: Final = "gives the same GPU twice for a count above 1 beside a distinctAttribute constraint; write a request"
UNKNOWN: Final = "capacity.requests names {}, which no GPU has; write memory, in bytes such as 3Gi, or compute"
AMOUNT: Final = "capacity.requests.memory must be from 1Mi to 1Pi; write bytes with a unit, such as 3Gi"
PERCENT: Final = "capacity.requests.compute must be from 0 to 100; write the per cent"
ALONE: Final = "capacity.requests has compute and no memory, which takes all memory of a GPU; write memory too"
CONFIG: Final = f"the driver {names.DRA_DRIVER} takes no configuration from claims; remove its entry"
TOLERATION: Final = f"a toleration of {names.DRA_DRIVER}/*, or of every key, leads to GPUs that are unhealthy"
SELECTORS: Final = "has more than 4 selectors, or an expression of more than 1024 characters"
REFUSED: Final[Mapping[str, tuple[Json, str]]] = {
    "five": (claim(*[asks()] * 5), f"{REQUESTS}5;"),
    "five-with-others": (claim(*[NIC] * 31, asks()), f"{REQUESTS}32;"),
    "five-alternatives": (claim([asks()] * 2, [asks()] * 3), f"{REQUESTS}5;"),
    "most-of-all": (claim(*[[asks()] * 8] * 32), f"{REQUESTS}256;"),
    "33": (claim(asks(count=33)), f"{DEVICES}33;"),
    "33-alternatives": (claim([asks(), asks(count=33)]), f"{DEVICES}33;"),
    "five-in-two": (claim(asks(count=4), asks()), f"{DEVICES}5;"),
    "five-in-alternatives": (claim([asks(), asks(count=3)], asks(count=2)), f"{DEVICES}5;"),
    "all": (claim(asks(allocationMode="All")), ALL),
    "all-alternatives": (claim([asks(allocationMode="All"), asks()]), ALL),
    "distinct": (claim(asks(count=2), constraints=DISTINCT), TWICE),
    "distinct-beside": (claim(asks(count=2), asks(), constraints=[*SAME, *DISTINCT]), TWICE),
    "unknown": (claim(asks({"memoryy": "3Gi"})), UNKNOWN.format("memoryy")),
    "unknown-too": (claim([asks(), asks({**SHARE, "cores": "3"})]), UNKNOWN.format("cores")),
    # The API takes such a name, and kube-scheduler finds it on no GPU.
    "qualified": (claim(asks({f"{names.DRA_DRIVER}/memory": "3Gi"})), UNKNOWN.format(f"{names.DRA_DRIVER}/memory")),
    "no-memory": (claim(asks({MEMORY: "0"})), AMOUNT),
    "no-unit": (claim(asks({MEMORY: "3"})), AMOUNT),
    "negative-memory": (claim([asks(), asks({MEMORY: "-3Gi"})]), AMOUNT),
    "booked-as-nothing": (claim(asks({MEMORY: "10E"})), AMOUNT),
    "booked-as-less": (claim(asks({MEMORY: str(2**63 - 1)})), AMOUNT),
    "too-much": (claim(asks({MEMORY: str(2**50 + 1)})), AMOUNT),
    "negative-compute": (claim(asks({**SHARE, COMPUTE: "-1"})), PERCENT),
    "too-much-compute": (claim(asks({**SHARE, COMPUTE: "101"})), PERCENT),
    "overflowing-compute": (claim(asks({**SHARE, COMPUTE: "10E"})), PERCENT),
    "compute-alone": (claim(asks(), asks({COMPUTE: "20"})), ALONE),
    "configuration": (claim(asks(), config=config("nic.example.com") + config(names.DRA_DRIVER)), CONFIG),
    "toleration": (claim(tolerating(key=f"{names.DRA_DRIVER}/unhealthy")), TOLERATION),
    "toleration-of-all": (claim([asks(), tolerating()]), TOLERATION),
    "selectors": (claim(selecting(*["true"] * 5)), SELECTORS),
    "long-selector": (claim(selecting("true", padded(1025))), SELECTORS),
}


def create(server: Server, kind: str, spec: Json, namespace: str = NAMESPACE) -> object:
    body = {"metadata": {"name": "x"}, "spec": spec if kind == "claim" else {"spec": spec}}
    return server.api.create(f"{GROUP}/{namespace}/{KINDS[kind]}", body, params={"dryRun": "All"})


@pytest.fixture(scope="module")
def claims(dra: Server) -> Server:
    # Without the first label, Kubernetes itself refuses adminAccess.
    label = {"resource.kubernetes.io/admin-access": "true"}
    dra.create_namespace(NAMESPACE, label)
    dra.create_namespace(ADMINS, {**label, names.LABEL_DRA_ADMIN: "true"})
    dra.eventually(
        "both policies are in force",
        lambda: (
            refusal(lambda: create(dra, "claim", REFUSED["all"][0]))
            and refusal(lambda: dra.admitted(NAMESPACE, having(5)))
        ),
    )
    return dra


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ADMITTED)
def test_it_admits(claims: Server, name: str, kind: str) -> None:
    create(claims, kind, ADMITTED[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(claims: Server, name: str, kind: str) -> None:
    spec, words = REFUSED[name]
    assert words in refused_by(names.CLAIMS_POLICY, lambda: create(claims, kind, spec))


@pytest.mark.parametrize("kind", KINDS)
def test_namespaces_of_administrators_may_watch_every_gpu(claims: Server, kind: str) -> None:
    spec = claim({**tolerating(), "allocationMode": "All", "adminAccess": True})
    create(claims, kind, spec, ADMINS)
    words = refused_by(names.CLAIMS_POLICY, lambda: create(claims, kind, spec))
    assert f"adminAccess is for namespaces with the label {names.LABEL_DRA_ADMIN}=true, which this one has not" in words


CLASS_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
NAMED: Final = {"name": "c", "resourceClaimTemplateName": "x"}


def having(number: int) -> Json:
    """A pod with so many claims."""
    return pod(resourceClaims=[{**NAMED, "name": f"c{i}"} for i in range(number)])


def test_a_pod_has_no_more_claims_than_kube_scheduler_can_search(claims: Server) -> None:
    for number in (0, 1):
        claims.admitted(NAMESPACE, having(number))
    words = refused_by(names.CLAIM_PODS_POLICY, lambda: claims.admitted(NAMESPACE, having(2)))
    assert "a pod may have 1 resourceClaims in this cluster, and this one has 2; write one claim" in words


def test_a_claim_is_of_one_pod_and_no_resource_stands_for_one(claims: Server) -> None:
    named = {"name": "c", "resourceClaimName": "x"}
    words = refused_by(names.CLAIM_PODS_POLICY, lambda: claims.admitted(NAMESPACE, pod(resourceClaims=[named])))
    assert "a claim that several pods name is counted once" in words
    for field in ("containers", "initContainers"):
        asking = {"name": "x", "image": "x", "resources": {"limits": {f"{CLASS_RESOURCE}gpushare": "1"}}}
        made: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}]} | {field: [asking]}
        words = refused_by(names.CLAIM_PODS_POLICY, partial(claims.admitted, NAMESPACE, pod(**made)))
        assert "asks for whole GPUs past the bounds of claims" in words
    others = {"name": "x", "image": "x", "resources": {"limits": {f"{CLASS_RESOURCE}nic": "1"}}}
    claims.admitted(NAMESPACE, pod(containers=[others]))


def test_claims_are_left_to_the_scheduler_that_allocates_all(claims: Server) -> None:
    words = refused_by(
        names.CLAIM_PODS_POLICY,
        lambda: claims.admitted(NAMESPACE, pod(resourceClaims=[NAMED], schedulerName=names.SCHEDULER)),
    )
    assert "gpushare-scheduler allocates no resourceClaims" in words
