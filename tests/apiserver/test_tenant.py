"""A tenant with the role `edit`, who wants GPUs that were not granted to him: P7 and P8 as the API server decides them.

What a node shows to the containers of pods that get so far is tried in tests/e2e/test_tenant.py.
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from localcluster.provision import Version
from testing import reviews, skips
from testing.tenant import attempts, changes, escape_table
from testing.tenant.attempts import ALL, MIG, POLICY, Attempt, Ends, container, first, pod, variable
from testing.tenant.changes import BINDINGS, PODS, UNBOUND, WEBHOOK, Change, Reach
from testing.tenant.escape_table import RUNNING, WORKLOADS
from tests.apiserver.policies import TEAM
from tests.apiserver.server import Json, Server, refusal

NODE: Final = "node-1"
GUARDED, HARDENED = "tenant-a", "tenant-b"
INSIDER: Final = "insider"
"""A tenant who may also bind pods and write their status, as operators of other systems may."""
TRIES: Final = 5
POD_SECURITY_SINCE: Final = Version(1, 23)
EVENTS_SINCE: Final = Version(1, 22)
SUBRESOURCES: Final = {"ephemeralcontainers": Version(1, 25), "resize": Version(1, 33)}
"""Since when servers have them."""
ATTEMPTS: Final = tuple(escape_table.all_attempts(NODE))
INSIDERS: Final = [
    {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["pods/status", "pods/ephemeralcontainers", "pods/resize"],
        "verbs": ["patch", "update"],
    },
]
GRANTED, VOID = "granted", "void"
OURS: Final = re.compile(r"""'gpushare-[a-z-]+'|\.gpushare\.dev" denied the request""")
"""What a refusal by one of our policies or webhooks says."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A tenant's namespace, in which some pods are on a node already."""

    server: Server
    tenant: RestClient
    insider: RestClient

    @property
    def has_policies(self) -> bool:
        return self.server.running.has_policies

    def ends(self, attempt: Attempt) -> Ends:
        return attempt.ends if self.has_policies else attempt.old_ends or attempt.ends

    def admitted(self, attempt: Attempt) -> Json:
        """As it would be stored, asked again where the server has skipped a slow webhook, as the documents say.

        A hole in the webhook is there every time.
        """
        ask = partial(self.server.admitted, GUARDED, named(attempt.pod, attempt.name), self.tenant)
        for _ in range(TRIES):
            with contextlib.suppress(kube.ForbiddenError, kube.BadRequestError):  # by a policy instead
                made = ask()
                if visible(made) == wanted(attempt.pod):
                    return made
            time.sleep(1)
        return ask()


@pytest.fixture(scope="module")
def tenancy(server: Server) -> Iterator[Tenancy]:
    server.create_namespace(GUARDED)
    tenant, insider = server.tenant(GUARDED), server.tenant(GUARDED, user=INSIDER)
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{GUARDED}"
    server.api.create(f"{rights}/roles", {"metadata": {"name": INSIDER}, "rules": INSIDERS})
    server.bind_role(GUARDED, "Role", INSIDER, INSIDER)
    with server.node(NODE, (26, 26)):
        share = container(limits={names.GPU_MEM: 1})
        own = {PODS[True]: pod(share), PODS[False]: pod(), UNBOUND: pod(share, schedulerName="none")}
        for name, body in own.items():
            server.create_pod(GUARDED, named(body, name), tenant)
        server.bound(GUARDED, *PODS.values())
        for name in PODS.values():
            server.set_phase(GUARDED, name, "Running")
        yield Tenancy(server, tenant, insider)
        server.delete_pods(GUARDED)
    server.api.delete(f"/api/v1/namespaces/{GUARDED}")


def named(body: Json, name: str) -> Json:
    return {**body, "metadata": {**body["metadata"], "name": name}}


def containers(body: Json) -> list[Json]:
    return [*body["spec"].get("initContainers", ()), *body["spec"]["containers"]]


def visible(body: Json) -> Mapping[str, str]:
    """Container -> what the variable by which NVIDIA's runtime chooses devices says; empty if it is open or missing."""
    result = {}
    for each in containers(body):
        found = [entry for entry in each.get("env", ()) if entry["name"] == names.ENV_VISIBLE_DEVICES]
        own = reviews.visible(each["name"])
        result[each["name"]] = GRANTED if found == [own] else VOID if found == [variable(VOID)] else ""
    return result


def wanted(body: Json) -> Mapping[str, str]:
    """The same as it should be, by what the containers ask for; what another plugin grants, it chooses itself."""
    shares = {names.GPU_MEM: GRANTED, names.GPU_PERCENT: GRANTED, MIG: ""}
    result = {}
    for each in containers(body):
        limits = each.get("resources", {}).get("limits", {})
        result[each["name"]] = next((shares[key] for key in shares if limits.get(key, "0") != "0"), VOID)
    return result


def is_guarded(annotation: str) -> bool:
    return names.is_reserved(annotation) or names.is_cdi(annotation)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda each: each.name)
def test_the_api_server_refuses_a_pod_or_leaves_in_it_what_it_may_see(tenancy: Tenancy, attempt: Attempt) -> None:
    if tenancy.ends(attempt) is Ends.REFUSED:
        error = refusal(lambda: tenancy.server.admitted(GUARDED, named(attempt.pod, attempt.name), tenancy.tenant))
        assert error is not None
        assert attempt.says in str(error)
        return
    made = tenancy.admitted(attempt)
    assert [key for key in made["metadata"].get("annotations", {}) if is_guarded(key)] == []
    assert visible(made) == wanted(attempt.pod)


@pytest.mark.parametrize("attempt", [each for each in ATTEMPTS if each.same_as], ids=lambda each: each.name)
def test_of_attempts_that_are_alike_the_webhook_makes_the_same_pod(tenancy: Tenancy, attempt: Attempt) -> None:
    """So that nodes need to be tried with one of them."""
    if tenancy.ends(attempt) not in RUNNING:
        skips.expected("an attempt of which no pod runs on this version is not tried on nodes")
    [other] = [each for each in ATTEMPTS if each.name == attempt.same_as]
    assert not other.same_as
    assert essence(tenancy.admitted(attempt)) == essence(tenancy.admitted(other))


def essence(body: Json) -> Json:
    """Of a pod: all that a node can see, but for its name."""
    marks = dict(body["metadata"].get("annotations", {}))
    marks.pop(names.ANNOTATION_OVERRIDDEN, None)  # it tells people that the webhook has changed something
    text = json.dumps({"spec": body["spec"], "marks": marks, "labels": body["metadata"].get("labels", {})})
    tokens = [each["name"] for each in body["spec"].get("volumes", ()) if "kube-api-access" in each["name"]]
    for token in tokens:
        text = text.replace(token, "token")
    value: Json = json.loads(text)
    return value


@pytest.mark.parametrize("attempt", [each for each in ATTEMPTS if each.ends is Ends.WAITS], ids=lambda each: each.name)
def test_what_no_node_has_waits(tenancy: Tenancy, attempt: Attempt) -> None:
    if tenancy.ends(attempt) is not Ends.WAITS:
        skips.expected("on this version it is refused, which another test sees")
    server = tenancy.server
    server.create_pod(GUARDED, named(attempt.pod, attempt.name), tenancy.tenant)
    # Each scheduler takes a pod that is younger.
    others = {"younger": pod(container(limits={names.GPU_MEM: 1})), "younger-idle": pod()}
    for name, body in others.items():
        server.create_pod(GUARDED, named(body, name), tenancy.tenant)
    server.bound(GUARDED, *others)
    assert "nodeName" not in server.pod(GUARDED, attempt.name)["spec"]
    for name in (attempt.name, *others):
        server.delete_pod(GUARDED, name)


@pytest.fixture(scope="module")
def hardened(server: Server) -> Iterator[RestClient]:
    server.create_namespace(HARDENED, {"pod-security.kubernetes.io/enforce": "baseline"})
    yield server.tenant(HARDENED)
    server.api.delete(f"/api/v1/namespaces/{HARDENED}")


@pytest.mark.parametrize("attempt", [each for each in ATTEMPTS if each.ends in RUNNING], ids=lambda each: each.name)
def test_pod_security_stops_what_only_the_node_would_otherwise(
    server: Server, hardened: RestClient, attempt: Attempt
) -> None:
    skips.older(server.version, POD_SECURITY_SINCE, "Pod Security is not on by default")
    error = refusal(lambda: server.admitted(HARDENED, named(attempt.pod, attempt.name), hardened))
    assert ("violates PodSecurity" in str(error)) == (not attempt.is_baseline), error


@pytest.mark.parametrize("attempt", [each for each in ATTEMPTS if each.without_webhook], ids=lambda each: each.name)
def test_a_policy_refuses_what_no_webhook_was_asked_about(without_class_policy: Server, attempt: Attempt) -> None:
    error = refusal(lambda: without_class_policy.admitted(TEAM, named(attempt.pod, attempt.name)))
    assert attempt.without_webhook in str(error)


def guarded(body: Json) -> tuple[Any, ...]:
    """Of a pod: what no tenant may change."""
    metadata = body["metadata"]
    fixed = {*names.REQUEST_ANNOTATIONS, *names.WEBHOOK_ANNOTATIONS}
    marks = {key: value for key, value in metadata.get("annotations", {}).items() if is_guarded(key) or key in fixed}
    labels = {key: metadata.get("labels", {}).get(key) for key in (names.LABEL_MANAGED, names.LABEL_GPU_COUNT)}
    return marks, labels, *seeing(body)


def seeing(body: Json) -> tuple[Any, ...]:
    return tuple((each["name"], each["env"], each.get("resources")) for each in body["spec"]["containers"])


@pytest.mark.parametrize("change", list(changes.changes()), ids=lambda each: each.name)
def test_what_a_running_pod_was_granted_stays(tenancy: Tenancy, change: Change) -> None:
    server, name = tenancy.server, PODS[change.holds]
    skips.older(server.version, SUBRESOURCES.get(change.subresource, server.version), "it has no such subresource")
    path = kube.pod_path(GUARDED, name, change.subresource)
    as_user = tenancy.insider if change.subresource else tenancy.tenant
    before = server.pod(GUARDED, name)
    assert not change.holds or names.ANNOTATION_ALLOCATION in before["metadata"]["annotations"]
    answer = refusal(lambda: as_user.patch(path, change.body, kind=change.kind, timeout_s=30))
    after = server.pod(GUARDED, name)
    assert seeing(after) == seeing(before)
    if tenancy.has_policies or not change.since_130:
        assert guarded(after) == guarded(before)
        by = WEBHOOK if change.by == POLICY and not tenancy.has_policies else change.by
        assert by in str(answer) if by else answer is None
        for field, marks in change.body.get("metadata", {}).items() if by == WEBHOOK else ():
            assert any(f"{WEBHOOK}{field}[{key}]: " in str(answer) for key in marks)


def test_a_tenant_may_still_annotate_and_label_his_pods(tenancy: Tenancy) -> None:
    body = {"metadata": {"annotations": {"team": "a"}, "labels": {"team": "a"}}}
    made = tenancy.tenant.patch(kube.pod_path(GUARDED, PODS[True]), body)
    assert made["metadata"]["annotations"]["team"] == made["metadata"]["labels"]["team"] == "a"


def test_an_ephemeral_container_sees_nothing(tenancy: Tenancy) -> None:
    """It is added by somebody who may; the role `edit` may not in every release."""
    skips.older(tenancy.server.version, SUBRESOURCES["ephemeralcontainers"], "ephemeral containers are off")
    debug = {"spec": {"ephemeralContainers": [container("debug", env=[ALL])]}}
    path = kube.pod_path(GUARDED, PODS[True], "ephemeralcontainers")
    made = tenancy.insider.patch(path, debug, kind=kube.PatchKind.STRATEGIC, params={"dryRun": "All"}, timeout_s=30)
    [found] = made["spec"]["ephemeralContainers"]
    assert found["env"] == [variable(VOID)]


@pytest.mark.parametrize("reach", list(changes.reaches(GUARDED, NODE)), ids=lambda each: each.name)
def test_nothing_beside_his_own_pods_is_his(tenancy: Tenancy, reach: Reach) -> None:
    body = () if reach.body is None else (reach.body,)
    answer = refusal(lambda: getattr(tenancy.tenant, reach.verb)(reach.path, *body, timeout_s=30))
    assert isinstance(answer, kube.ForbiddenError), answer


def test_an_event_that_he_writes_is_about_a_pod_of_his_namespace(tenancy: Tenancy) -> None:
    """By its namespace, the dashboard tells how many of the Events that it shows are whose."""
    skips.older(tenancy.server.version, EVENTS_SINCE, "the role edit may not write Events")
    path, own = f"/api/v1/namespaces/{GUARDED}/events", tenancy.server.pod(GUARDED, PODS[True])
    event, *_ = changes.forged_events(own, datetime.now(UTC))
    tenancy.tenant.create(path, event, timeout_s=30)
    of_others = {**event, "involvedObject": {**event["involvedObject"], "namespace": TEAM}}
    assert "does not match event.namespace" in str(refusal(lambda: tenancy.tenant.create(path, of_others)))


@pytest.mark.parametrize("name", sorted(BINDINGS))
def test_a_binding_brings_no_devices(tenancy: Tenancy, name: str) -> None:
    """By somebody who may bind pods, but is not the controller."""
    metadata = {"name": UNBOUND, "annotations": dict(BINDINGS[name])}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": "no-such-node"}}
    for path in (f"/api/v1/namespaces/{GUARDED}/pods/{UNBOUND}/binding", f"/api/v1/namespaces/{GUARDED}/bindings"):
        answer = refusal(partial(tenancy.insider.create, path, binding, params={"dryRun": "All"}, timeout_s=30))
        ours = OURS.search(str(answer)) is not None
        assert ours == tenancy.has_policies, answer  # before 1.30 it is not checked: docs/install.md
    found = tenancy.server.pod(GUARDED, UNBOUND)
    assert "nodeName" not in found["spec"]
    assert not any(map(is_guarded, found["metadata"].get("annotations", {})))


@pytest.mark.parametrize("kind", sorted(WORKLOADS))
def test_a_workload_gets_no_more_than_a_pod(tenancy: Tenancy, kind: str) -> None:
    server = tenancy.server
    version, plural, spec = WORKLOADS[kind]
    label = {"kind": kind.lower()}
    marks = {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all", "devices.gpushare.dev/c0": "all"}
    policy = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = pod(
        container(env=[ALL]), marks=marks, labels=label, initContainers=[first(env=[ALL])], **policy, **attempts.NVIDIA
    )
    selector = {} if kind == "Job" else {"selector": {"matchLabels": label}}
    path = f"/apis/{version}/namespaces/{GUARDED}/{plural}"
    template = {key: template[key] for key in ("metadata", "spec")}
    body = {"metadata": {"name": kind.lower()}, "spec": {**spec, **selector, "template": template}}
    tenancy.tenant.create(path, body, timeout_s=30)
    chosen = f"kind={kind.lower()}"
    made = server.eventually(f"a pod of the {kind}", lambda: server.pods(GUARDED, chosen))
    for each in made:
        assert visible(each) == {"i0": VOID, "c0": VOID}
        assert not any(map(is_guarded, each["metadata"].get("annotations", {})))
    tenancy.tenant.delete(f"{path}/{kind.lower()}", {"propagationPolicy": "Background"}, timeout_s=30)


@pytest.mark.parametrize(
    ("amount", "fields", "said"),
    [
        ("0", {}, "0 asks for nothing; remove the entry or write at least 1"),
        ("10G", {}, "10G has a suffix, but the resource is counted in units"),
        ("1", {"nodeName": NODE}, "spec.nodeName bypasses the scheduler"),
    ],
)
def test_kubectl_prints_how_to_repair_a_bad_request(tenancy: Tenancy, amount: str, fields: Json, said: str) -> None:
    body = named(pod(container(limits={names.GPU_MEM: amount}), **fields), "tried")
    argv = ("apply", "--dry-run=server", "--validate=false", "-n", GUARDED, "-f", "-")
    assert said in tenancy.server.running.kubectl(*argv, input=json.dumps(body), check=False).stderr
