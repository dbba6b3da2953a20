"""A tenant with the role `edit`, who wants GPUs that were not granted to him: P7 and P8 under attack, on nodes.

What the API server refuses or changes is tried in tests/apiserver/test_tenant.py. Pods are created many at a time,
before the first test, so that the suite does not wait for each of them.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from gpushare import names
from gpushare.kube import api as kube, client
from gpushare.kube.client import RestClient
from gpushare.model.gpu import HandOver, NodeInventory
from localcluster import process
from localcluster.node import Node
from testing.tenant import attempts, escape_table
from testing.tenant.attempts import Attempt, Ends, container, pod
from testing.tenant.escape_table import Place
from testing.tenant.escapes import GPU_NODES
from tests.e2e.checks import Grants, seen_by
from tests.e2e.conftest import CDI_NODES, PLACES
from tests.e2e.system import Json, System, has_started, is_incomplete

TENANT, NAMESPACE = "tenant", "tenant-a"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRY_RUN: Final = {"dryRun": "All"}
TRIES: Final = 5
AT_ONCE: Final = 80
"""Attempts that are made before their pods are looked at."""
BEFORE: Final = [
    Place(node, HandOver.CDI if int(node.removeprefix("node-")) in CDI_NODES else HandOver.ENVVAR) for node in PLACES
]
AFTER: Final = Place("node-2", HandOver.VOLUME_MOUNTS)
"""A node that hands over in another way when the others have been tried."""
ATTEMPTS: Final = tuple(escape_table.on_each([*BEFORE, AFTER]))


CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
CONFIG: Final = """\
accept-nvidia-visible-devices-envvar-when-unprivileged = {by_variable}
accept-nvidia-visible-devices-as-volume-mounts = {by_mounts}
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["{runc}"]
[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
annotation-prefixes = ["cdi.k8s.io/"]
"""
"""As NVIDIA's documents have it: who lets mounts choose takes the variable from unprivileged containers."""


def cdi_spec(inventory: NodeInventory) -> Json:
    """What `nvidia-ctk cdi generate` would write of simulated GPUs: each by number and UUID, and all of them."""
    edits = {
        gpu: {"path": f"/dev/nvidia{gpu.index}", "type": "c", "major": 60, "minor": gpu.index} for gpu in inventory.gpus
    }
    devices = [(name, [node]) for gpu, node in edits.items() for name in (str(gpu.index), str(gpu.uuid))]
    devices.append(("all", list(edits.values())))
    listed = [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name, nodes in devices]
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": listed}


@contextlib.contextmanager
def nvidias_runtime(system: System, inventories: Mapping[str, NodeInventory]) -> Iterator[None]:
    """NVIDIA's runtime is the handler `nvidia` of every node, and the GPUs have device nodes there."""
    for node in system.cluster.nodes:
        inventory = inventories[node.name]
        (node.cdi_dir / "nvidia.json").write_text(json.dumps(cdi_spec(inventory)))
        made = [f"[ -e nvidia{gpu.index} ] || mknod nvidia{gpu.index} c 60 {gpu.index}" for gpu in inventory.gpus]
        process.run([*node.enter, "sh", "-ec", f"mkdir -p {GPU_NODES}; cd {GPU_NODES}; {'; '.join(made)}"])
        configure(system, node, inventory.hand_over)
    before = replace_class(system, "nvidia")
    try:
        yield
    finally:
        replace_class(system, before)
        for node in system.cluster.nodes:
            node.nvidia_config.unlink()
            (node.cdi_dir / "nvidia.json").unlink()


def replace_class(system: System, handler: str) -> str:
    """Have the RuntimeClass of GPU pods name another handler, which takes a new one. Returns the former."""
    path = f"{CLASSES}/{names.RUNTIME_CLASS}"
    found = system.api.get(path)
    metadata = {key: value for key, value in found["metadata"].items() if key in {"name", "labels", "annotations"}}
    system.api.delete(path)
    system.api.create(CLASSES, {**found, "metadata": metadata, "handler": handler})
    return str(found["handler"])


def configure(system: System, node: Node, way: HandOver) -> None:
    """The node's administrator sets NVIDIA's runtime up for a way to hand GPUs over."""
    by_mounts = str(way is HandOver.VOLUME_MOUNTS).lower()
    by_variable = str(way is not HandOver.VOLUME_MOUNTS).lower()
    runc = system.cluster.program("runc")
    node.nvidia_config.write_text(CONFIG.format(by_mounts=by_mounts, by_variable=by_variable, runc=runc))


@contextlib.contextmanager
def handing_over(system: System, node: Node, way: HandOver) -> Iterator[None]:
    def by() -> HandOver:
        return system.inventories()[node.name].hand_over

    before, label = by(), system.node(node.name)["metadata"]["labels"].get(names.LABEL_HAND_OVER)
    system.label(node.name, names.LABEL_HAND_OVER, way.value)
    system.eventually("its plugin knows", lambda: by() is way)
    configure(system, node, way)
    try:
        yield
    finally:
        configure(system, node, before)
        system.label(node.name, names.LABEL_HAND_OVER, label)
        system.eventually("its plugin knows", lambda: by() is before)


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of everything that was tried before the first test."""

    system: System
    tenant: RestClient
    pods: dict[str, Json] = field(default_factory=dict)
    environments: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    grants: Grants = field(default_factory=lambda: Grants({}))


@pytest.fixture(scope="module")
def tried(system: System) -> Iterator[Tried]:
    control = system.cluster.control
    tenant = client.connect(str(control.kubeconfig_for(TENANT, control.authority.issue(TENANT, TENANT))))
    result = Tried(system, tenant, grants=replace(Grants.of(system), under_nvidia=True))
    grant(system)
    try:
        with nvidias_runtime(system, result.grants.inventories):
            try_all(result, "before", [attempt for place, attempt in ATTEMPTS if place is not AFTER])
            with handing_over(system, system.cluster.node(AFTER.node), AFTER.way):
                probe = named(pod(container(limits={names.GPU_MEM: 1})), "probe", {})
                system.eventually(
                    "GPU pods get the RuntimeClass that this node needs",
                    lambda: tenant.create(PATH, probe, params=DRY_RUN, timeout_s=30)["spec"].get("runtimeClassName"),
                )
                try_all(result, "after", [attempt for place, attempt in ATTEMPTS if place is AFTER])
        yield result
    finally:
        tenant.close()
        system.delete_all(NAMESPACE)
        system.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def grant(system: System) -> None:
    """The tenant's rights, and what his pods refer to."""
    kubectl = system.cluster.kubectl
    system.create_namespace(NAMESPACE)
    kubectl("create", "rolebinding", "edit", "--clusterrole=edit", f"--user={TENANT}", "-n", NAMESPACE)
    literal = f"--from-literal={names.ENV_VISIBLE_DEVICES}=all"
    kubectl("create", "configmap", attempts.CONFIG, literal, "-n", NAMESPACE)
    kubectl("create", "secret", "generic", attempts.CONFIG, literal, "-n", NAMESPACE)
    may = ("auth", "can-i", "create", "pods", "-n", NAMESPACE, f"--as={TENANT}")
    system.eventually("the tenant has his rights", lambda: kubectl(*may, check=False).returncode == 0)


def try_all(tried: Tried, run: str, listed: Sequence[Attempt]) -> None:
    """So many at a time that the kubelets start them before their own deadlines."""
    for begin in range(0, len(listed), AT_ONCE):
        label = f"{run}-{begin}"
        for attempt in listed[begin : begin + AT_ONCE]:
            created(tried, named(attempt.pod, attempt.name, {"e2e": label}), attempt)
        settle(tried, label)
        tried.system.api.delete(f"{PATH}?labelSelector=e2e%3D{label}", {"gracePeriodSeconds": 0}, timeout_s=300)


def created(tried: Tried, body: Json, attempt: Attempt) -> None:
    """Create a pod, and create it again where the server has skipped a slow webhook, as the documents say it may.

    A hole in the webhook is there every time.
    """
    for left in reversed(range(TRIES)):
        time.sleep(0 if left == TRIES - 1 else TRIES - left)
        try:
            made = tried.tenant.create(PATH, body, timeout_s=30)
        except (kube.ForbiddenError, kube.BadRequestError):
            # By a policy, where the webhook would have made a harmless pod of it.
            if left:
                continue
            raise
        was_skipped = WAS_SKIPPED.get(attempt.ends)
        if not left or was_skipped is None or not was_skipped(made):
            return
        tried.system.delete(NAMESPACE, made["metadata"]["name"], force=True)


def containers(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def has_no_void(pod: Json) -> bool:
    void = {"name": names.ENV_VISIBLE_DEVICES, "value": names.VISIBLE_DEVICES_NONE}
    return not any(void in each.get("env", ()) for each in containers(pod))


WAS_SKIPPED: Final[Mapping[Ends, Callable[[Json], bool]]] = {Ends.NOTHING: has_no_void, Ends.GRANTED: is_incomplete}
"""For attempts that end so: whether the webhook was not asked about a pod."""


def named(body: Json, name: str, labels: Mapping[str, str]) -> Json:
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "name": name, "labels": {**metadata["labels"], **labels}}}


def settle(tried: Tried, run: str) -> None:
    """Wait for the containers that should run, and read what they see."""
    selector = f"e2e={run}"

    def started() -> bool:
        listed = tried.system.pods(NAMESPACE, selector)
        of_pods = [each["status"].get("containerStatuses", []) for each in listed]
        return all(of_pods) and all(has_started(status) for statuses in of_pods for status in statuses)

    tried.system.eventually(f"all containers of {run} have started", started, of=NAMESPACE)
    pods = {each["metadata"]["name"]: each for each in tried.system.pods(NAMESPACE, selector)}
    tried.environments.update(tried.system.environments(NAMESPACE, *pods))
    tried.pods.update(pods)


@pytest.mark.parametrize("attempt", [each for _, each in ATTEMPTS], ids=lambda each: each.name)
def test_a_pod_gets_no_gpu_that_was_not_granted(tried: Tried, attempt: Attempt) -> None:
    found = tried.pods[attempt.name]
    marks = found["metadata"].get("annotations", {})
    printed = {each["name"]: tried.environments[attempt.name, each["name"]] for each in containers(found)}
    *_, last = printed.values()
    assert {name: last.get(name) for name in attempt.prints} == attempt.prints
    if attempt.ends is Ends.ESCAPES:
        return
    assert (attempt.ends is Ends.GRANTED) == (names.ANNOTATION_ALLOCATION in marks)
    told = {name: seen_by(each) for name, each in printed.items()}
    granted = {name: tried.grants.to(found, name) for name in printed}
    if attempt.lies:
        told = {name: replace(each, told=granted[name].told) for name, each in told.items()}
    assert told == granted
