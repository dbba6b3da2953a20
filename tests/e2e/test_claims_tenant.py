"""A tenant with the role `edit` and ResourceClaims, who wants GPUs that were not granted to him."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from gpushare import names
from gpushare.kube import api as kube, client
from gpushare.kube.client import RestClient
from gpushare.model.gpu import Gpu, HandOver
from testing.claims import template
from testing.tenant import attempts, escape_table
from testing.tenant.attempts import Attempt, Ends, container
from testing.tenant.escape_table import Place
from tests.e2e import checks, disturb
from tests.e2e.claims import API, NODE, Json, allocated, claim_of, claiming, mode, need_server, of_claims
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import System, has_started, make_pod

TENANT, NAMESPACE = "tenant-of-claims", "tenant-c"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS: Final = f"{API}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES: Final = f"{API}/namespaces/{NAMESPACE}/resourceclaimtemplates"
CLAIM: Final = {"claims": [{"name": "gpu"}]}
RUN: Final = {Ends.NOTHING, Ends.GRANTED}
APART: Final = ("preset-node", "limit-", "host-", "exempt-")
"""Parts of names: attempts that need gpu-mem, a scheduler of their own, or device nodes on the node."""


def with_a_claim(attempt: Attempt) -> Attempt:
    """The same with a claim in place of each share, or beside a container that has one."""
    body = deepcopy(attempt.pod)
    containers = [*body["spec"].get("initContainers", ()), *body["spec"]["containers"]]
    granted = [each for each in containers if each.get("resources", {}).get("limits", {}).keys() & {*SHARES}]
    for each in granted:
        each["resources"] = CLAIM
    if not granted:
        body["spec"]["containers"].insert(0, container("holder", resources=CLAIM))
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    body["metadata"]["name"] = attempt.name
    return replace(attempt, pod=body)


SHARES: Final = (names.GPU_MEM, names.GPU_PERCENT)
ON_NODES: Final = [
    with_a_claim(attempt)
    for _, attempt in escape_table.on_each([Place(NODE, HandOver.CDI)])
    if attempt.ends in RUN and not attempt.prints and not any(part in attempt.name for part in APART)
]


@pytest.fixture(scope="module")
def dra(system: System) -> Iterator[Mapping[str, Gpu]]:
    need_server(system)
    gpus = of_claims(system)
    with mode(system, ",".join(f"{gpu.uuid}=dra" for gpu in gpus.values()), len(gpus)):
        yield gpus


@pytest.fixture(scope="module")
def tenant(system: System, dra: Mapping[str, Gpu]) -> Iterator[RestClient]:
    control, kubectl = system.cluster.control, system.cluster.kubectl
    system.create_namespace(NAMESPACE)
    kubectl("create", "rolebinding", "edit", "--clusterrole=edit", f"--user={TENANT}", "-n", NAMESPACE)
    for kind in (["configmap"], ["secret", "generic"]):
        literal = f"--from-literal={names.ENV_VISIBLE_DEVICES}=all"
        kubectl("create", *kind, attempts.CONFIG, literal, "-n", NAMESPACE)
    may = ("auth", "can-i", "create", "resourceclaims", "-n", NAMESPACE, f"--as={TENANT}")
    system.eventually("the tenant has his rights", lambda: kubectl(*may, check=False).returncode == 0)
    found = client.connect(str(control.kubeconfig_for(TENANT, control.authority.issue(TENANT, TENANT))))
    found.create(TEMPLATES, template("one", 1))
    try:
        yield found
    finally:
        found.close()
        system.delete_all(NAMESPACE)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@dataclass(frozen=True, slots=True)
class Tried:
    pod: Json
    shares: list[tuple[str, int]]
    printed: Mapping[str, Mapping[str, str]]


@pytest.fixture(scope="module")
def tried(system: System, tenant: RestClient) -> Mapping[str, Tried]:
    """What became of the pods, by their names; they are gone by now."""
    for attempt in ON_NODES:
        tenant.create(PODS, attempt.pod, timeout_s=30)

    def started() -> bool:
        of_pods = [each["status"].get("containerStatuses", []) for each in system.pods(NAMESPACE)]
        return all(of_pods) and all(has_started(status) for statuses in of_pods for status in statuses)

    system.eventually("all containers have started", started, of=NAMESPACE)
    pods = {each["metadata"]["name"]: each for each in system.pods(NAMESPACE)}
    printed: dict[str, dict[str, Mapping[str, str]]] = {name: {} for name in pods}
    for (name, of), variables in system.environments(NAMESPACE, *pods).items():
        printed[name][of] = variables
    found = {name: Tried(pod, allocated(claim_of(system, pod)), printed[name]) for name, pod in pods.items()}
    system.delete_all(NAMESPACE)
    return found


@pytest.mark.parametrize("attempt", ON_NODES, ids=lambda each: each.name)
def test_a_container_sees_the_gpu_of_its_claim_and_no_other(
    dra: Mapping[str, Gpu], tried: Mapping[str, Tried], attempt: Attempt
) -> None:
    found = tried[attempt.name]
    [(device, memory)] = found.shares
    gpu = dra[device]
    own = checks.Seen(told=str(gpu.uuid), devices=f"nvidia{gpu.index}", openable=str(gpu.index))
    assert memory == 1 << 30
    for each in (*found.pod["spec"].get("initContainers", ()), *found.pod["spec"]["containers"]):
        seen = checks.seen_by(found.printed[each["name"]])
        expected = own if each.get("resources", {}).get("claims") else checks.NOTHING
        if attempt.lies:
            seen = replace(seen, told=expected.told)
        assert seen == expected, each["name"]


def changed(**fields: Any) -> Json:
    """A template with other fields in its request."""
    made = template("sly", 1)
    made["spec"]["spec"]["devices"]["requests"][0]["exactly"] |= fields
    return made


def amount(**amounts: str) -> Json:
    return changed(capacity={"requests": amounts})


def several(count: int, **more: Any) -> Json:
    made = template("sly", 1)
    [request] = made["spec"]["spec"]["devices"]["requests"]
    made["spec"]["spec"]["devices"] |= {"requests": [{**request, "name": f"r{i}"} for i in range(count)], **more}
    return made


CONFIG: Final = [{"requests": ["r0"], "opaque": {"driver": names.DRA_DRIVER, "parameters": {"x": 1}}}]
DISTINCT: Final = [{"distinctAttribute": f"{names.DRA_DRIVER}/uuid"}]
TOLERATIONS: Final = (
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoExecute"},
    *({"key": f"{names.DRA_DRIVER}/{key}", "operator": "Exists"} for key in ("unhealthy", "cordoned")),
    {"key": f"{names.DRA_DRIVER}/unhealthy", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
)
TEMPLATES_REFUSED: Final[Mapping[str, Json]] = {
    "more memory than 64 bits": amount(memory="9223372036854775807"),
    "nearly 64 bits": amount(memory="8Ei"),
    "less than nothing": amount(memory="-1Gi"),
    "nothing": amount(memory="0"),
    "bytes where GiB are meant": amount(memory="3"),
    "more compute than a GPU has": amount(memory="1Gi", compute="101"),
    "compute alone, which is all memory": amount(compute="1"),
    "another capacity": amount(memory="1Gi", cores="1"),
    "capacity of the driver's domain": amount(**{f"{names.DRA_DRIVER}/memory": "1Gi"}),
    "seven requests": several(7),
    "requests that multiply": several(4) | {"spec": {"spec": {"devices": {"requests": [
        {"name": f"r{i}", "exactly": {**changed()["spec"]["spec"]["devices"]["requests"][0]["exactly"], "count": 4}}
        for i in range(4)
    ]}}}},
    "alternatives without end": {**changed(), "spec": {"spec": {"devices": {"requests": [
        {"name": "r", "firstAvailable": [{"name": f"s{i}", "deviceClassName": names.DEVICE_CLASS} for i in range(8)]}
    ]}}}},
    "a share of every GPU": changed(allocationMode="All", count=0),
    "33 GPUs": changed(count=33),
    "distinct GPUs by a count": several(1, constraints=DISTINCT) | {"spec": {"spec": {"devices": {
        "requests": changed(count=2)["spec"]["spec"]["devices"]["requests"], "constraints": DISTINCT}}}},
    "configuration of the driver": several(1, config=CONFIG),
    "access for administrators": changed(adminAccess=True),
    "expressions that take long": changed(selectors=[{"cel": {"expression": f"true{' ' * 1100}"}}]),
    "five expressions": changed(selectors=[{"cel": {"expression": "true"}}] * 5),
    **{f"toleration {i}": changed(tolerations=[each]) for i, each in enumerate(TOLERATIONS)},
}  # fmt: skip


def sly_pod(**spec: Any) -> Json:
    pod = claiming("sly", "one")
    pod["spec"] |= spec
    return pod


TWO: Final = [{"name": name, "resourceClaimTemplateName": "one"} for name in ("gpu", "more")]
EXTENDED: Final = {"limits": {"deviceclass.resource.kubernetes.io/gpushare": "1"}}
PODS_REFUSED: Final[Mapping[str, Json]] = {
    "two claims": sly_pod(resourceClaims=TWO),
    "the claim of another pod": sly_pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "any"}]),
    "a second scheduler": sly_pod(schedulerName=names.SCHEDULER),
    "whole GPUs by a resource": make_pod("sly", None) | {"spec": {"containers": [container(resources=EXTENDED)]}},
}
FORBIDDEN: Final[Mapping[str, tuple[str, Json]]] = {
    "a ResourceSlice": (
        f"{API}/resourceslices",
        {"metadata": {"name": "sly"}, "spec": {"driver": names.DRA_DRIVER, "nodeName": NODE}},
    ),
    "a DeviceClass": (f"{API}/deviceclasses", {"metadata": {"name": "sly"}, "spec": {}}),
}


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
@pytest.mark.parametrize("what", TEMPLATES_REFUSED)
def test_a_template_that_asks_for_too_much_is_refused(tenant: RestClient, what: str, version: str) -> None:
    path = TEMPLATES.replace("/v1/", f"/{version}/")
    body = TEMPLATES_REFUSED[what] | {"apiVersion": f"resource.k8s.io/{version}"}
    with pytest.raises((kube.ForbiddenError, kube.BadRequestError, kube.NotFoundError)):
        tenant.create(path, body, params={"dryRun": "All"})


@pytest.mark.parametrize("what", PODS_REFUSED)
def test_a_pod_that_goes_past_the_bounds_is_refused(tenant: RestClient, what: str) -> None:
    with pytest.raises((kube.ForbiddenError, kube.BadRequestError)):
        tenant.create(PODS, PODS_REFUSED[what], params={"dryRun": "All"})


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_tenant_makes_nothing_by_which_devices_are_offered(tenant: RestClient, what: str) -> None:
    path, body = FORBIDDEN[what]
    with pytest.raises(kube.ForbiddenError):
        tenant.create(path, body)


def test_an_allocation_is_not_the_tenants_to_write(system: System, tenant: RestClient, dra: Mapping[str, Gpu]) -> None:
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine"}}
    made = tenant.create(CLAIMS, claim | {"spec": template("x", 1)["spec"]["spec"]})
    result = {"driver": names.DRA_DRIVER, "pool": NODE, "device": next(iter(dra)), "request": "gpu"}
    forged = {"allocation": {"devices": {"results": [result]}}}
    for path in (f"{CLAIMS}/mine/status", f"{CLAIMS}/mine/binding"):
        with pytest.raises((kube.ForbiddenError, kube.NotFoundError)):
            tenant.replace(path, {**made, "status": forged})
    tenant.replace(f"{CLAIMS}/mine", {**made, "status": forged})  # taken, without its status
    assert not tenant.get(f"{CLAIMS}/mine").get("status")
    with pytest.raises(kube.BadRequestError):
        tenant.patch(f"{CLAIMS}/mine", {"spec": template("x", 20)["spec"]["spec"]})
    with pytest.raises(kube.BadRequestError):
        tenant.patch(f"{TEMPLATES}/one", template("one", 20))
    tenant.delete(f"{CLAIMS}/mine")


def test_a_claim_that_its_owner_deletes_under_a_running_pod_frees_nothing_on_the_node(
    system: System, tenant: RestClient, dra: Mapping[str, Gpu], namespace: str
) -> None:
    """kube-scheduler forgets it, and allocates the same memory to the next pod, which does not start."""
    tenant.create(TEMPLATES, template("most", 20))
    for i in range(len(dra)):
        tenant.create(PODS, claiming(f"holder-{i}", "most"))
    holder, *_ = system.running(NAMESPACE, *(f"holder-{i}" for i in range(len(dra))))
    name = claim_of(system, holder)["metadata"]["name"]
    tenant.delete(f"{CLAIMS}/{name}")
    tenant.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
    system.eventually("the claim is gone", lambda: name not in [c["metadata"]["name"] for c in _claims(system)])
    system.create(namespace, template("most", 20), claiming("next", "most"))
    system.wait_told(namespace, "next", f"has {GPU_GIB - 20} GiB left, and 20 GiB are claimed")
    assert not disturb.container_processes(system.pod(namespace, "next"))
    assert disturb.container_processes(system.pod(NAMESPACE, "holder-0"))
    system.delete(NAMESPACE, "holder-0")
    system.running(namespace, "next")
    system.delete_all(NAMESPACE)


def _claims(system: System) -> list[Json]:
    found: list[Json] = system.api.get(CLAIMS)["items"]
    return found
