"""An installation as the manifests make it, healthy in all its parts, and ways to break it."""

import base64
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Unpack

import orjson
import yaml

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Grant
from gpushare.wire import allocations, hand_over
from gpushare_cli.doctor import command, snapshot
from gpushare_cli.doctor.command import Diagnosis
from testing.builders import make_allocation, make_container, make_grant, make_inventory, make_node, make_pod
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube
from testing.manifests import tree

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
NS = names.NAMESPACE
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "Endpoints": "/api/v1/namespaces/{}/endpoints",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
}
BUNDLE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").decode()
ENDPOINTS = {
    names.WEBHOOK_SERVICE: f"https:{names.WEBHOOK_SERVICE}:443",
    names.CONTROLLER_SERVICE: f"{names.CONTROLLER_SERVICE}:12345",
}
METRICS = {
    names.WEBHOOK_SERVICE: "# HELP x y\ngpushare_webhook_certificate_ttl_seconds 5292000.0\n",
    names.CONTROLLER_SERVICE: "gpushare_ledger_differences 0.0\ngpushare_ready 1.0\n"
    f'gpushare_extender_requests_total{{outcome="scored",verb="{names.OTHERS_VERB}"}} 7.0\n',
}
PLUGIN = "gpushare-device-plugin"


def skewed() -> ManualClock:
    """A machine whose clock is wrong; the API server's counts."""
    return ManualClock(600, began=NOW)


class DoctorKube(FakeKube):
    """Takes dry runs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.replies["/version"] = server("v1.30.2")
        self.admit: Callable[[JsonObject], JsonObject] = completed

    def create(self, path: str, body: JsonObject, **options: Unpack[kube.WriteOptions]) -> JsonObject:
        assert options.get("params") == {"dryRun": "All"}, "the doctor changes nothing"
        assert path == "/api/v1/namespaces/default/pods"
        return self.admit(body)

    def says(self, service: str, path: str, reply: Reply | kube.KubeError) -> None:
        """What an endpoint of a Service says from now on."""
        self.replies[kube.proxy_path(NS, ENDPOINTS[service], path)] = reply


Change = Callable[[DoctorKube], object]


def server(version: str) -> Reply:
    return Reply(status=200, text=orjson.dumps({"major": "1", "gitVersion": version}).decode(), at=NOW)


def completed(pod: JsonObject) -> JsonObject:
    """What the webhook makes of it."""
    container = pod["spec"]["containers"][0]
    field = f"metadata.annotations['{names.PREFIX_DEVICES}{container['name']}']"
    env = [{"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}]
    labels = {names.LABEL_MANAGED: "true"}
    spec = {**pod["spec"], "schedulerName": names.SCHEDULER, "containers": [{**container, "env": env}]}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(**parts: float) -> str:
    return stamp(NOW - timedelta(**parts))


def healthy(
    overlay: str = "production", version: str = "v1.30.2", items: Sequence[JsonObject] | None = None
) -> DoctorKube:
    """Two nodes with four T4 each, one of which runs a pod; of an overlay, or of items that were applied."""
    api = DoctorKube()
    api.replies["/version"] = server(version)
    minor = int(version.split(".")[1])
    for item in items or tree.listed(f"overlays/{overlay}"):
        if item["kind"] in PATHS:
            seed(api, _as_running(item, minor))
    for name in ("kube-system", "default"):
        labels = {"kubernetes.io/metadata.name": name}
        seed(api, {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    for service, count in ((names.WEBHOOK_SERVICE, 2), (names.CONTROLLER_SERVICE, 1)):
        addresses = [{"ip": f"10.0.0.{number}"} for number in range(count)]
        metadata = {"name": service, "namespace": NS}
        seed(api, {"kind": "Endpoints", "metadata": metadata, "subsets": [{"addresses": addresses}]})
        api.says(service, "readyz", Reply(status=200, text="ok"))
        api.says(service, "metrics", Reply(status=200, text=METRICS[service]))
    for name in (names.LEASE, names.SCHEDULER):
        spec = {"holderIdentity": f"{name}-0_ab12", "renewTime": ago(seconds=2), "leaseDurationSeconds": 15}
        seed(api, {"kind": "Lease", "metadata": {"name": name, "namespace": NS}, "spec": spec})
    for number in range(2):
        seed(api, own_pod(f"{names.CONTROLLER_SERVICE}-{number}", names.CONTROLLER_SERVICE))
        gpu_node(api, f"node-{'ab'[number]}")
    held = make_allocation("web", make_grant(0), node="node-a")
    seed(api, bound_pod("web", held_by=held))
    return api


def with_whole_gpus(overlay: str, version: str, server: str) -> DoctorKube:
    """The same with `manifests/whole-gpus` in the overlay."""
    gpus = "simulated" if overlay.startswith("simulated") else "nvidia"
    api = healthy(version=version, items=tree.installed(server, gpus, whole_gpus=True))
    for name in ("node-a", "node-b"):
        edit(api, "Node", name, lambda node: node["status"]["allocatable"].update({names.GPU: "4"}))
    return api


def _as_running(item: JsonObject, minor: int) -> JsonObject:
    """An object of the manifests, with what the cluster adds to it."""
    kind, name = item["kind"], item["metadata"]["name"]
    if kind == "Deployment":
        item = {**item, "status": {"readyReplicas": item["spec"]["replicas"]}}
    if name == names.HAND_OVER:
        item = {**item, **hand_over.data("envvar")}
    if kind.endswith("WebhookConfiguration"):
        item = {**item, "webhooks": [_with_bundle(webhook) for webhook in item["webhooks"]]}
    if name == names.SCHEDULER and kind == "Deployment":
        item = copy.deepcopy(item)  # the manifests are read once
        item["spec"]["template"]["spec"]["containers"][0]["image"] = f"registry.k8s.io/kube-scheduler:v1.{minor}.0"
    return item


def _with_bundle(webhook: JsonObject) -> JsonObject:
    return {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": BUNDLE}}


def path_of(kind: str, name: str, namespace: str = NS) -> str:
    return f"{PATHS[kind].format(namespace)}/{name}"


def seed(api: FakeKube, item: JsonObject) -> None:
    api.seed(PATHS[item["kind"]].format(item["metadata"].get("namespace", "")), item)


def edit(api: FakeKube, kind: str, name: str, change: Callable[[JsonObject], object], namespace: str = NS) -> None:
    api.edit(path_of(kind, name, namespace), change)


def vanish(api: FakeKube, kind: str, name: str, namespace: str = NS) -> None:
    api.vanish(path_of(kind, name, namespace))


def own_pod(name: str, app: str, *, ready: bool = True, node: str = "node-a") -> JsonObject:
    pod = make_pod(make_container(), name=name, namespace=NS, node=node, labels={"app.kubernetes.io/name": app})
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return pod


def gpu_node(api: DoctorKube, name: str, *, labels: Mapping[str, str] | None = None, with_plugin: bool = True) -> None:
    inventory = make_inventory(15, 15, 15, 15, node=name)
    node = make_node(inventory)
    node["metadata"]["labels"] = {"gpushare": "true"} if labels is None else dict(labels)
    node["status"]["allocatable"] = allocatable(inventory)
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    seed(api, node)
    if with_plugin:
        seed(api, own_pod(f"{PLUGIN}-{name}", PLUGIN, node=name))


def allocatable(inventory: NodeInventory) -> dict[str, str]:
    healthy_gpus = inventory.healthy
    return {
        names.GPU_MEM: str(sum(inventory.unit.floor(gpu.grantable_mib) for gpu in healthy_gpus)),
        names.GPU_PERCENT: str(100 * len(healthy_gpus)),
        "cpu": "8",
    }


def bound_pod(name: str, *, node: str = "node-a", held_by: Any = None, created: str = "", **fields: Any) -> JsonObject:
    notes = {names.ANNOTATION_ALLOCATION: allocations.encode(held_by)} if held_by else {}
    pod = make_pod(name=name, node=node, annotations={**notes, **fields.pop("annotations", {})}, **fields)
    pod["metadata"]["creationTimestamp"] = created or ago(hours=1)
    return pod


def twice(grant: Grant) -> Change:
    """Two pods that hold the same of a GPU."""
    allocations = [make_allocation(name, grant, node="node-b") for name in "ab"]
    pods = [bound_pod(held.pod.name, node="node-b", held_by=held) for held in allocations]
    return seeded(*pods)


def daemon_pod(workload: str, *, node: str = "node-a", namespace: str = "kube-system", image: str = "x") -> JsonObject:
    """A pod of somebody else's DaemonSet."""
    pod = make_pod(make_container(image=image), name=f"{workload}-x7k2p", namespace=namespace, node=node)
    pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": workload, "controller": True}]
    return pod


def deployed_pod(workload: str, *, namespace: str = "kube-system") -> JsonObject:
    """A pod of somebody else's Deployment."""
    pod = make_pod(make_container(), name=f"{workload}-5d8f7c9b4-x7k2p", namespace=namespace, node="node-a")
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": f"{workload}-5d8f7c9b4", "controller": True}]
    return pod


def diagnosis(api: DoctorKube, namespace: str = NS) -> Diagnosis:
    said: list[str] = []
    return command.diagnose(snapshot.take(api, skewed(), namespace, said.append))


def lines(api: DoctorKube, check: str = "") -> list[str]:
    """Every finding, or those of a check: severity, check and object; problem; fix."""
    return [line for line in formatted(diagnosis(api)) if not check or line.split()[1] == check]


def after(change: Change) -> list[str]:
    """The findings of a healthy cluster after a change."""
    api = healthy()
    change(api)
    return lines(api)


def together(*changes: Change) -> Change:
    """One change that makes all of them."""

    def change(api: DoctorKube) -> None:
        for each in changes:
            each(api)

    return change


def edited(kind: str, name: str, change: Callable[[JsonObject], object]) -> Change:
    """An object of the installation, or one without a namespace, is changed."""
    return partial(edit, kind=kind, name=name, change=change)


def put(kind: str, name: str, *path: str | int, value: object = None, namespace: str = NS) -> Change:
    """A field has this value; without one it is gone."""

    def change(item: Any) -> None:
        *parents, last = path
        for key in parents:
            item = item[key]
        if value is None:
            del item[last]
        else:
            item[last] = value

    return partial(edit, kind=kind, name=name, change=change, namespace=namespace)


def without_webhook(name: str) -> Change:
    def change(config: JsonObject) -> None:
        config["webhooks"] = [each for each in config["webhooks"] if each["name"] != name]

    return edited("MutatingWebhookConfiguration", names.MUTATING_WEBHOOK, change)


def seeded(*items: JsonObject) -> Change:
    return together(*(partial(seed, item=item) for item in items))


def answers(service: str, path: str, reply: str | Reply | kube.KubeError) -> Change:
    """A Service says this, such as a page."""
    return lambda api: api.says(service, path, Reply(status=200, text=reply) if isinstance(reply, str) else reply)


def endpoints(service: str, count: int) -> Change:
    subsets = [{"addresses": [{"ip": "10.0.0.1"}] * count}] if count else []
    return put("Endpoints", service, "subsets", value=subsets)


def scheduler_file(change: Callable[[Any], object]) -> Change:
    """The file of the second scheduler is another one."""

    def edit_text(item: JsonObject) -> None:
        value = yaml.safe_load(item["data"]["scheduler.yaml"])
        change(value)
        item["data"]["scheduler.yaml"] = yaml.safe_dump(value)

    return edited("ConfigMap", names.SCHEDULER, edit_text)


def missing(kind: str, *objects: str) -> Change:
    """Objects are gone."""
    return together(*(partial(vanish, kind=kind, name=name) for name in objects))


def setting(**values: str) -> Change:
    """Of all components."""
    wanted = {f"GPUSHARE_{key}": value for key, value in values.items()}
    return edited("ConfigMap", names.CONFIG, lambda found: found["data"].update(wanted))


def forbidden(path: str) -> Change:
    """This may not be read."""
    return lambda api: api.fail_next(lambda call: call.path == path, kube.ForbiddenError("no"), times=9)


def formatted(found: Diagnosis) -> Iterator[str]:
    for check, each in found.findings:
        fix = f" | {each.fix}" if each.fix else ""
        yield f"{each.severity.word} {check} {each.object} | {each.problem}{fix}"
