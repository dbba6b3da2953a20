"""A tenant with the role `edit`, who wants GPUs that were not granted to him: P7 and P8 under attack.

Pods are created many at a time, before the first test, so that the suite does not wait for each of them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube import client, config
from gpushare.kube.client import RestClient
from gpushare.model.gpu import HandOver
from localcluster.provision import Version
from testing.tenant import attempts, changes, escape_table
from testing.tenant.attempts import ALL, Attempt, Ends, container, first, pod
from testing.tenant.changes import BINDINGS, PODS, UNBOUND, Change, Reach
from testing.tenant.escape_table import WORKLOADS, Place
from tests.e2e import nvidia, seen
from tests.e2e.conftest import CDI_NODES, PLACES
from tests.e2e.seen import Grants
from tests.e2e.system import Json, System, is_incomplete, why_not

pytestmark = pytest.mark.e2e

NODE: Final = "node-1"
TENANT: Final = "tenant"
INSIDER: Final = "insider"
"""A tenant who may also bind pods and write their status, as operators of other systems may."""
GUARDED: Final = "tenant-a"
SKIPPED: Final = "tenant-b"
"""Where the isolation webhook is not called, as if it had not answered."""
TRIES: Final = 5
AT_ONCE: Final = 80
"""Attempts that are made before their pods are looked at."""
POLICIES_SINCE: Final = Version(1, 30)
POD_SECURITY_SINCE: Final = Version(1, 23)
OTHER_NODE: Final = "node-2"
BEFORE: Final = [
    Place(node, HandOver.CDI if int(node.removeprefix("node-")) in CDI_NODES else HandOver.ENVVAR) for node in PLACES
]
AFTER: Final = Place(OTHER_NODE, HandOver.VOLUME_MOUNTS)
"""A node that hands over in another way when the others have been tried."""
ATTEMPTS: Final = tuple(escape_table.on_each([*BEFORE, AFTER]))
WITHOUT_WEBHOOK: Final = tuple(each for each in escape_table.all_attempts(NODE) if each.without_webhook)
GUARDED_BY_PODS: Final = "tenant-c"
"""Where Pod Security admits nothing beyond `baseline`."""
INSIDERS: Final = [
    {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["pods/status", "pods/ephemeralcontainers", "pods/resize"],
        "verbs": ["patch", "update"],
    },
]


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of everything that was tried before the first test."""

    system: System
    tenant: RestClient
    insider: RestClient
    answers: dict[tuple[str, str], kube.KubeError | None] = field(default_factory=dict)
    """Namespace and attempt -> why it was refused; None if it was not."""
    pods: dict[str, Json] = field(default_factory=dict)
    environments: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    grants: Grants = field(default_factory=lambda: Grants({}))

    @property
    def has_policies(self) -> bool:
        return self.system.cluster.version >= POLICIES_SINCE

    def ends(self, attempt: Attempt) -> Ends:
        return attempt.ends if self.has_policies else attempt.old_ends or attempt.ends


def attempted(call: Callable[[], object]) -> kube.KubeError | None:
    """Why the API server refused it; an answer that did not come is no refusal."""
    try:
        call()
    except (kube.UnreachableError, kube.ServerFaultError):
        raise
    except kube.KubeError as error:
        return error
    return None


def user(system: System, name: str) -> RestClient:
    control = system.cluster.control
    return client.connect(str(control.kubeconfig_for(name, control.authority.issue(name, name))))


def grant(system: System, namespace: str) -> None:
    kubectl = system.cluster.kubectl
    kubectl("create", "namespace", namespace)
    kubectl(
        "create", "rolebinding", "edit", "--clusterrole=edit", f"--user={TENANT}", f"--user={INSIDER}", "-n", namespace
    )
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": INSIDER},
        "rules": INSIDERS,
    }
    literal = f"--from-literal={names.ENV_VISIBLE_DEVICES}=all"
    system.create(namespace, role)
    kubectl("create", "rolebinding", INSIDER, f"--role={INSIDER}", f"--user={INSIDER}", "-n", namespace)
    kubectl("create", "configmap", attempts.CONFIG, literal, "-n", namespace)
    kubectl("create", "secret", "generic", attempts.CONFIG, literal, "-n", namespace)
    system.eventually(
        "service account",
        lambda: kubectl("get", "serviceaccount", "default", "-n", namespace, check=False).returncode == 0,
    )


def skip_isolation(system: System) -> Callable[[], None]:
    """Have the isolation webhook not called for one namespace; returns what undoes it."""
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{names.MUTATING_WEBHOOK}"
    hooks = system.api.get(path)["webhooks"]
    isolating = {"isolation.gpushare.dev", "gpu.gpushare.dev"} & {hook["name"] for hook in hooks}
    name = "isolation.gpushare.dev" if "isolation.gpushare.dev" in isolating else "gpu.gpushare.dev"
    number = [hook["name"] for hook in hooks].index(name)
    where = f"/webhooks/{number}/namespaceSelector/matchExpressions"
    before = hooks[number]["namespaceSelector"]["matchExpressions"]
    skipped = {"key": "e2e", "operator": "NotIn", "values": [SKIPPED]}
    system.cluster.kubectl("label", "namespace", SKIPPED, f"e2e={SKIPPED}")

    def write(expressions: list[Json]) -> None:
        body = [{"op": "replace", "path": where, "value": expressions}]
        system.api.patch(path, body, kind=kube.PatchKind.JSON)

    write([*before, skipped])
    return lambda: write(before)


@pytest.fixture(scope="module")
def tried(system: System) -> Iterator[Tried]:
    tenant, insider = user(system, TENANT), user(system, INSIDER)
    result = Tried(system, tenant, insider, grants=replace(Grants.of(system), under_nvidia=True))
    for namespace in (GUARDED, SKIPPED):
        grant(system, namespace)
    undo = skip_isolation(system)
    try:
        with nvidia.runtime(system, result.grants.inventories):
            create(result)
            with nvidia.handing_over(system, system.cluster.node(AFTER.node), AFTER.way):
                create_after(result)
        create_without_webhook(result)
        yield result
    finally:
        undo()
        tenant.close()
        insider.close()
        for namespace in (GUARDED, SKIPPED):
            system.delete_all(namespace)
            system.cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def create(tried: Tried) -> None:
    """As the tenant."""
    path = f"/api/v1/namespaces/{GUARDED}/pods"
    ready = partial(tried.tenant.create, path, named(pod(), "probe", {}), {"dryRun": "All"}, timeout_s=30)
    tried.system.eventually("the tenant has his rights", lambda: attempted(ready) is None)
    own = {
        PODS[True]: (pod(container(limits={names.GPU_MEM: 1})), Ends.GRANTED),
        PODS[False]: (pod(), Ends.NOTHING),
    }
    unbound = pod(container(limits={names.GPU_MEM: 1}), schedulerName="none")
    for name, (body, ends) in own.items():
        created(tried, path, named(body, name, {"e2e": "victims"}), Attempt(name=name, what=name, pod=body, ends=ends))
    tried.tenant.create(path, named(unbound, UNBOUND, {}), timeout_s=30)
    try_all(tried, "before", [attempt for place, attempt in ATTEMPTS if place is not AFTER])


def create_after(tried: Tried) -> None:
    """The same on a node that hands over in another way."""
    probe = named(pod(container(limits={names.GPU_MEM: 1})), "probe", {})
    path = f"/api/v1/namespaces/{GUARDED}/pods"
    tried.system.eventually(
        "GPU pods get the RuntimeClass that this node needs",
        lambda: tried.tenant.create(path, probe, {"dryRun": "All"}, timeout_s=30)["spec"].get("runtimeClassName"),
    )
    try_all(tried, "after", [attempt for place, attempt in ATTEMPTS if place is AFTER])


def try_all(tried: Tried, run: str, listed: Sequence[Attempt]) -> None:
    """So many at a time that the kubelets start them before their own deadlines."""
    for begin in range(0, len(listed), AT_ONCE):
        label = f"{run}-{begin}"
        attempt_all(tried, label, listed[begin : begin + AT_ONCE])
        settle(tried, label)
        ended = f"/api/v1/namespaces/{GUARDED}/pods?labelSelector=e2e%3D{label}"
        tried.system.api.delete(ended, {"gracePeriodSeconds": 0}, timeout_s=300)


def attempt_all(tried: Tried, run: str, listed: Sequence[Attempt]) -> None:
    path = f"/api/v1/namespaces/{GUARDED}/pods"
    for attempt in listed:
        labels = {"e2e": run} if tried.ends(attempt) in escape_table.RUNNING else {}
        body = named(attempt.pod, attempt.name, labels)
        tried.answers[GUARDED, attempt.name] = attempted(partial(created, tried, path, body, attempt))


def create_without_webhook(tried: Tried) -> None:
    """What goes past the webhook on an old server; last, because amounts that overflow there let other pods fit too."""
    # The API server learns of the changed webhook within a second or two.
    probe = named(pod(), "probe", {})
    other = f"/api/v1/namespaces/{SKIPPED}/pods"

    def is_skipped() -> bool:
        made = tried.tenant.create(
            other, {**probe, "metadata": {"generateName": "probe-"}}, {"dryRun": "All"}, timeout_s=30
        )
        return "env" not in made["spec"]["containers"][0]

    tried.system.eventually("the isolation webhook is skipped", is_skipped, timeout_s=60)
    for attempt in WITHOUT_WEBHOOK:
        body = named(attempt.pod, attempt.name, {})
        tried.answers[SKIPPED, attempt.name] = attempted(partial(tried.tenant.create, other, body, timeout_s=30))


def created(tried: Tried, path: str, body: Json, attempt: Attempt) -> None:
    """Create a pod, and create it again where the server has skipped a slow webhook, as the documents say it may.

    A hole in the webhook is there every time.
    """
    ends = tried.ends(attempt)
    for left in reversed(range(TRIES)):
        time.sleep(0 if left == TRIES - 1 else TRIES - left)
        try:
            made = tried.tenant.create(path, body, timeout_s=30)
        except (kube.UnreachableError, kube.ServerFaultError):
            raise
        except kube.KubeError:
            # By a policy, where the webhook would have made a harmless pod of it.
            if left and ends is not Ends.REFUSED:
                continue
            raise
        was_skipped = WAS_SKIPPED.get(ends)
        if not left or was_skipped is None or not was_skipped(made):
            return
        name = made["metadata"]["name"]
        tried.system.cluster.kubectl("delete", "pod", "-n", GUARDED, name, "--force", "--grace-period=0")


def _has_no_void(pod: Json) -> bool:
    void = {"name": names.ENV_VISIBLE_DEVICES, "value": names.VISIBLE_DEVICES_NONE}
    listed = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    return not any(void in each.get("env", ()) for each in listed)


def _is_created(_pod: Json) -> bool:
    """That it was created at all: the webhook refuses it."""
    return True


WAS_SKIPPED: Final[Mapping[Ends, Callable[[Json], bool]]] = {
    Ends.NOTHING: _has_no_void,
    Ends.GRANTED: is_incomplete,
    Ends.REFUSED: _is_created,
}
"""For attempts that end so: whether the webhook was not asked about a pod."""


def named(body: Json, name: str, labels: Mapping[str, str]) -> Json:
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "name": name, "labels": {**metadata["labels"], **labels}}}


def settle(tried: Tried, run: str, timeout_s: float = 600.0) -> None:
    """Wait for the containers that should run, and read what they see."""
    selector = f"e2e in ({run},victims)"

    def waiting() -> list[Json]:
        listed = tried.system.pods(GUARDED, selector)
        return [each for each in listed if len(started(each)) < len(each["spec"]["containers"])]

    end = time.monotonic() + timeout_s
    while (left := waiting()) and time.monotonic() < end:
        time.sleep(1)
    assert not left, (why_not(left), tried.system.events(GUARDED)[-20:])
    tried.environments.update(printed(tried.system, selector))
    tried.pods.update({each["metadata"]["name"]: each for each in tried.system.pods(GUARDED)})


def printed(system: System, selector: str) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """What every container of some pods sees, init containers included: (pod, container) -> variables."""

    def all_printed() -> dict[tuple[str, str], Mapping[str, str]]:
        result: dict[tuple[str, str], Mapping[str, str]] = {}
        for each in system.pods(GUARDED, selector):
            for listed in (*each["spec"].get("initContainers", ()), *each["spec"]["containers"]):
                variables = system.environment(each, listed["name"])
                if variables is None:
                    return {}
                result[each["metadata"]["name"], listed["name"]] = variables
        return result

    return system.eventually("logs of all containers", all_printed)


def started(pod: Json) -> list[str]:
    """Names of the application containers that run or have run."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return [each["name"] for each in statuses if {"running", "terminated"} & (each["state"] | each["lastState"]).keys()]


@pytest.mark.parametrize("attempt", [each for _, each in ATTEMPTS], ids=lambda each: each.name)
def test_a_pod_gets_no_gpu_that_was_not_granted(tried: Tried, attempt: Attempt) -> None:
    answer, ends = tried.answers[GUARDED, attempt.name], tried.ends(attempt)
    if ends is Ends.REFUSED:
        assert answer is not None
        assert attempt.says in str(answer)
        return
    assert answer is None, answer
    found = tried.pods[attempt.name]
    marks = found["metadata"].get("annotations", {})
    written = {key: value for key, value in attempt.pod["metadata"]["annotations"].items() if _is_guarded(key)}
    assert not marks.items() & written.items()
    if ends is Ends.WAITS:
        assert started(found) == []
        return
    listed = [*found["spec"].get("initContainers", ()), *found["spec"]["containers"]]
    printed = {each["name"]: tried.environments[attempt.name, each["name"]] for each in listed}
    last = printed[listed[-1]["name"]]
    assert {name: last.get(name) for name in attempt.prints} == attempt.prints
    if ends is Ends.ESCAPES:
        return
    assert (ends is Ends.GRANTED) == (names.ANNOTATION_ALLOCATION in marks)
    told = {name: seen.by(each) for name, each in printed.items()}
    granted = {name: tried.grants.to(found, name) for name in printed}
    if attempt.lies:
        told = {name: replace(each, told=granted[name].told) for name, each in told.items()}
    assert told == granted


@pytest.fixture(scope="module")
def hardened(system: System) -> Iterator[str]:
    kubectl = system.cluster.kubectl
    kubectl("create", "namespace", GUARDED_BY_PODS)
    kubectl("label", "namespace", GUARDED_BY_PODS, "pod-security.kubernetes.io/enforce=baseline")
    kubectl("create", "rolebinding", "edit", "--clusterrole=edit", f"--user={TENANT}", "-n", GUARDED_BY_PODS)
    path = f"/api/v1/namespaces/{GUARDED_BY_PODS}"
    system.eventually("service account", lambda: system.exists(f"{path}/serviceaccounts/default"))
    yield f"{path}/pods"
    kubectl("delete", "namespace", GUARDED_BY_PODS, "--wait=false")


def test_pod_security_stops_what_only_the_node_would_otherwise(tried: Tried, hardened: str) -> None:
    if tried.system.cluster.version < POD_SECURITY_SINCE:
        pytest.skip("Pod Security is on by default from Kubernetes 1.23 on")
    wrong = []
    for attempt in escape_table.all_attempts(NODE):
        body = named(attempt.pod, attempt.name, {})
        answer = attempted(partial(tried.tenant.create, hardened, body, {"dryRun": "All"}, timeout_s=30))
        is_refused = "violates PodSecurity" in str(answer)
        if is_refused == attempt.is_baseline and attempt.ends in escape_table.RUNNING:
            wrong.append(f"{attempt.name}: {answer}")
    assert not wrong


def _is_guarded(annotation: str) -> bool:
    return names.is_reserved(annotation) or names.is_cdi(annotation)


@pytest.mark.parametrize("attempt", WITHOUT_WEBHOOK, ids=lambda each: each.name)
def test_nor_while_the_isolation_webhook_is_skipped(tried: Tried, attempt: Attempt) -> None:
    """Before 1.30 such a pod comes as its author wrote it: docs/install.md says what to do."""
    answer = tried.answers[SKIPPED, attempt.name]
    assert (answer is not None) == tried.has_policies, answer
    assert answer is None or attempt.without_webhook in str(answer)


def guarded(pod: Json) -> tuple[Any, ...]:
    """Of a pod: what no tenant may change."""
    metadata = pod["metadata"]
    fixed = {*names.REQUEST_ANNOTATIONS, *names.WEBHOOK_ANNOTATIONS}
    marks = {key: value for key, value in metadata.get("annotations", {}).items() if _is_guarded(key) or key in fixed}
    labels = {key: metadata.get("labels", {}).get(key) for key in (names.LABEL_MANAGED, names.LABEL_GPU_COUNT)}
    return marks, labels, *seeing(pod)


def seeing(pod: Json) -> tuple[Any, ...]:
    """Of a pod: what its containers see."""
    spec = pod["spec"]
    return tuple((each["name"], each["env"], each.get("resources")) for each in spec["containers"])


@pytest.mark.parametrize("change", list(changes.changes()), ids=lambda each: each.name)
def test_what_a_running_pod_was_granted_stays(tried: Tried, change: Change) -> None:
    name = PODS[change.holds]
    path = kube.pod_path(GUARDED, name, change.subresource)
    as_user = tried.insider if change.subresource else tried.tenant
    before = tried.system.pod(GUARDED, name)
    answer = attempted(lambda: as_user.patch(path, change.body, kind=change.kind, timeout_s=30))
    after = tried.system.pod(GUARDED, name)
    assert seeing(after) == seeing(before)
    if tried.has_policies or not change.since_130:
        assert guarded(after) == guarded(before)
        assert not change.is_refused or answer is not None


def test_an_ephemeral_container_sees_nothing(tried: Tried) -> None:
    """It is added by somebody who may; the role `edit` may not in every release."""
    name = PODS[True]
    debug = {"spec": {"ephemeralContainers": [container("debug", env=[ALL])]}}
    path = kube.pod_path(GUARDED, name, "ephemeralcontainers")
    answer = attempted(lambda: tried.insider.patch(path, debug, kind=kube.PatchKind.STRATEGIC, timeout_s=30))
    if tried.system.cluster.version < Version(1, 25):
        assert answer is not None  # not stable, and off
        return
    assert answer is None, answer

    printed = tried.system.eventually(
        "the debugging container prints",
        lambda: tried.system.environment(tried.system.pod(GUARDED, name), "debug"),
    )
    assert printed is not None
    assert seen.by(printed) == seen.NOTHING


@pytest.mark.parametrize("reach", list(changes.reaches(GUARDED, NODE)), ids=lambda each: each.name)
def test_nothing_beside_his_own_pods_is_his(tried: Tried, reach: Reach) -> None:
    body = () if reach.body is None else (reach.body,)
    answer = attempted(lambda: getattr(tried.tenant, reach.verb)(reach.path, *body, timeout_s=30))
    assert isinstance(answer, kube.ForbiddenError | kube.NotFoundError), answer


@pytest.mark.parametrize("name", sorted(BINDINGS))
def test_a_binding_brings_no_devices(tried: Tried, name: str) -> None:
    """By somebody who may bind pods, but is not the controller."""
    metadata = {"name": UNBOUND, "annotations": dict(BINDINGS[name])}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": "no-such-node"}}
    for path in (f"/api/v1/namespaces/{GUARDED}/pods/{UNBOUND}/binding", f"/api/v1/namespaces/{GUARDED}/bindings"):
        answer = attempted(partial(tried.insider.create, path, binding, {"dryRun": "All"}, timeout_s=30))
        assert (answer is not None) == tried.has_policies  # before 1.30 it is not checked: docs/install.md
    found = tried.system.pod(GUARDED, UNBOUND)
    assert "nodeName" not in found["spec"]
    assert not any(map(_is_guarded, found["metadata"].get("annotations", {})))


@pytest.mark.parametrize("kind", sorted(WORKLOADS))
def test_a_workload_gets_no_more_than_a_pod(tried: Tried, kind: str) -> None:
    version, plural, spec = WORKLOADS[kind]
    label = {"e2e": kind.lower()}
    marks = {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all", "devices.gpushare.dev/c0": "all"}
    policy = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = pod(
        container(env=[ALL]), marks=marks, labels=label, initContainers=[first(env=[ALL])], **policy, **attempts.NVIDIA
    )
    selector = {} if kind == "Job" else {"selector": {"matchLabels": label}}
    body = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": kind.lower()},
        "spec": {**spec, **selector, "template": {key: template[key] for key in ("metadata", "spec")}},
    }
    path = f"/apis/{version}/namespaces/{GUARDED}/{plural}"
    tried.tenant.create(path, body, timeout_s=30)
    chosen = f"e2e={kind.lower()}"
    try:
        tried.system.eventually(
            f"a pod of the {kind} runs", lambda: [each for each in tried.system.pods(GUARDED, chosen) if started(each)]
        )
        environments = printed(tried.system, chosen)
        assert {seen.by(each) for each in environments.values()} == {seen.NOTHING}
        for each in tried.system.pods(GUARDED, chosen):
            assert not any(map(_is_guarded, each["metadata"].get("annotations", {})))
    finally:
        options = {"propagationPolicy": "Background"}
        tried.tenant.delete(f"{path}/{kind.lower()}", options, timeout_s=30)


@pytest.fixture(scope="module")
def plugin(system: System) -> Iterator[RestClient]:
    """With a token of the device plugin on the first node."""
    label = f"app.kubernetes.io/name={names.PLUGIN}"
    [own] = [each for each in system.pods(names.NAMESPACE, label) if each["spec"]["nodeName"] == NODE]
    reference = {"kind": "Pod", "apiVersion": "v1", "name": own["metadata"]["name"], "uid": own["metadata"]["uid"]}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "boundObjectRef": reference},
    }
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/{names.PLUGIN}/token"
    token = str(system.api.create(path, request)["status"]["token"])
    admin = config.load(str(system.cluster.kubeconfig))
    mine = RestClient(replace(admin, cert_file=None, key_file=None, token_source=lambda: token))
    yield mine
    mine.close()


NODES: Final[Mapping[str, tuple[str, str, Json]]] = {
    "inventory-of-another": ("node-2", "", {"metadata": {"annotations": {names.ANNOTATION_INVENTORY: "x"}}}),
    "amounts-of-another": ("node-2", "status", {"status": {"capacity": {names.GPU_COUNT: "99"}}}),
    "cordon": (NODE, "", {"metadata": {"annotations": {names.ANNOTATION_CORDON: "0"}}}),
    "label": (NODE, "", {"metadata": {"labels": {"x": "y"}}}),
    "label-by-status": (NODE, "status", {"metadata": {"labels": {"x": "y"}}}),
    "taint": (NODE, "", {"spec": {"unschedulable": True}}),
    "cpu": (NODE, "status", {"status": {"capacity": {"cpu": "999"}}}),
    "other-gpus": (NODE, "status", {"status": {"allocatable": {attempts.MIG: "9"}}}),
    "condition": (NODE, "status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
}


@pytest.mark.parametrize("name", sorted(NODES))
def test_a_plugin_that_was_taken_over_changes_no_other_node(system: System, plugin: RestClient, name: str) -> None:
    node, subresource, body = NODES[name]
    path, kind = kube.node_path(node, subresource), kube.PatchKind.STRATEGIC
    params = {"dryRun": "All"}
    answer = attempted(lambda: plugin.patch(path, body, kind=kind, params=params, timeout_s=30))
    assert (answer is not None) == (system.cluster.version >= POLICIES_SINCE)


def test_it_publishes_its_own(system: System, plugin: RestClient) -> None:
    node = system.api.get(kube.node_path(NODE))
    notes = {names.ANNOTATION_INVENTORY: node["metadata"]["annotations"][names.ANNOTATION_INVENTORY]}
    amounts = {names.GPU_COUNT: "4", names.GPU_CORE: "400"}
    bodies: dict[str, Json] = {
        "": {"metadata": {"annotations": notes}},
        "status": {"status": {"capacity": amounts, "allocatable": amounts}},
    }
    for subresource, body in bodies.items():
        path = kube.node_path(NODE, subresource)
        plugin.patch(path, body, kind=kube.PatchKind.STRATEGIC, params={"dryRun": "All"}, timeout_s=30)
