"""Reads all that the checks look at, everything at the same time. Changes nothing: its one POST is a dry run."""

from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import methodcaller
from typing import Any, Final, TypeVar

import orjson

from gpushare import names
from gpushare.errors import GpuShareError, SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi, Reply
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading, usage
from gpushare_cli.doctor import foreign, objects
from gpushare_cli.scheduler_config import CONTROLLER_PORT, ServerVersion
from gpushare_cli.usage import NodeUse

TRIAL_NAMESPACE: Final = "default"
TRIAL_CONTAINER: Final = "main"
WEBHOOK_PORT: Final = 443
_ONE_S: Final = 10.0
_ASK_S: Final = 5.0
_TRIAL_S: Final = 20.0  # the API server waits up to 10 s for a webhook
_AT_ONCE: Final = 32
_DRA_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")  # from Kubernetes 1.34, 1.33, 1.32 on
_QUIET_S: Final = 4.0  # after this long without an end, a word about what is still being read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In the place of a part of the snapshot that could not be read."""

    what: str  # in words that a sentence can go on from
    error: kube.KubeError


class UnreadableError(GpuShareError):
    """A check looked at such a part."""

    def __init__(self, part: Unreadable) -> None:
        super().__init__(f"{part.what}: {part.error}")
        self.part = part


def read(part: T | Unreadable) -> T:
    """A part that was read; UnreadableError, which is reported once for all checks, if it was not."""
    if isinstance(part, Unreadable):
        raise UnreadableError(part)
    return part


Object = JsonObject | None | Unreadable
Objects = tuple[JsonObject, ...] | Unreadable
Text = Reply | Unreadable

_READ: Final = "read"
_INSIDE: Final = "namespaces/{namespace}"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_APPS: Final = f"/apis/apps/v1/{_INSIDE}"
_MAPS: Final = f"/api/v1/{_INSIDE}/configmaps"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/{_INSIDE}/leases"
_WEBHOOK: Final = f"https:{names.WEBHOOK}:{WEBHOOK_PORT}"
_CONTROLLER: Final = f"{names.CONTROLLER}:{CONTROLLER_PORT}"


def part(method: str, *arguments: object) -> Any:
    """A part, and the reader's method that reads it; `{namespace}` in a path is the installation's."""
    return field(metadata={_READ: methodcaller(method, *arguments)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    namespace: str  # of the installation
    server: ServerVersion
    now: datetime  # when it was asked, by the clock of the API server if it told

    installed: Object = part("one", f"/api/v1/{_INSIDE}")
    namespaces: Objects = part("many", "/api/v1/namespaces")
    settings: Object = part("one", f"{_MAPS}/{names.CONFIG}")  # the ConfigMap that all components share
    hand_over: Object = part("one", f"{_MAPS}/{names.HAND_OVER}")  # what the controller says of the nodes
    refused_classes: Object = part("one", f"{_MAPS}/{names.RUNTIME_CLASS_POLICY}")  # those of NVIDIA
    runtime_classes: Objects = part("many", "/apis/node.k8s.io/v1/runtimeclasses")

    mutating: Object = part("one", f"{_ADMISSION}/mutatingwebhookconfigurations/{names.MUTATING_WEBHOOK}")
    validating: Object = part("one", f"{_ADMISSION}/validatingwebhookconfigurations/{names.VALIDATING_WEBHOOK}")
    policies: Objects = part("policies", f"{_ADMISSION}/validatingadmissionpolicies")
    policy_bindings: Objects = part("policies", f"{_ADMISSION}/validatingadmissionpolicybindings")
    webhook_deployment: Object = part("one", f"{_APPS}/deployments/{names.WEBHOOK}")
    webhook_endpoints: Object = part("one", f"/api/v1/{_INSIDE}/endpoints/{names.WEBHOOK}")
    webhook_ready: Text = part("ask", _WEBHOOK, "readyz")
    webhook_metrics: Text = part("metrics", _WEBHOOK)
    admitted: JsonObject | Unreadable = part("admitted")  # what the trial pod comes back as

    controller_deployment: Object = part("one", f"{_APPS}/deployments/{names.CONTROLLER}")
    controller_endpoints: Object = part("one", f"/api/v1/{_INSIDE}/endpoints/{names.CONTROLLER}")
    controller_lease: Object = part("one", f"{_LEASES}/{names.LEASE}")
    controller_ready: Text = part("ask", _CONTROLLER, "readyz")
    controller_metrics: Text = part("metrics", _CONTROLLER)

    scheduler_deployment: Object = part("one", f"{_APPS}/deployments/{names.SCHEDULER}")
    scheduler_settings: Object = part("one", f"{_MAPS}/{names.SCHEDULER}")
    scheduler_lease: Object = part("one", f"{_LEASES}/{names.SCHEDULER}")

    plugin: Object = part("one", f"{_APPS}/daemonsets/{names.PLUGIN}")  # the DaemonSet
    usage: Mapping[NodeName, NodeUse] | Unreadable  # where device plugins are to read it
    daemonsets: Objects = part("many", "/apis/apps/v1/daemonsets", foreign.needs_every_gpu)  # of all namespaces
    nodes: Objects = part("many", "/api/v1/nodes")
    nvidia_configs: Objects = part("nvidia_configs")  # ConfigMaps by which NVIDIA's plugin shares GPUs itself
    resource_slices: Objects = part("dra", "resourceslices")  # what DRA drivers offer
    device_classes: Objects = part("dra", "deviceclasses")
    unhealthy: Objects = part("many", reading.CONFIG_MAPS, reading.is_unhealthy_list)  # ConfigMaps
    pods: Objects = part("pods")  # with GPUs or ResourceClaims, the installation's own, and other GPU plugins'


def take(api: KubeApi, clock: Clock, namespace: str, say: Callable[[str], None]) -> Snapshot:
    """Read an installation and the cluster around it; KubeError or WireError if the server tells no version."""
    version, now = _server(api, clock)
    reader = _Reader(api, namespace)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = [each for each in fields(Snapshot) if _READ in each.metadata]
        reads: dict[str, Future[Any]] = {part.name: pool.submit(part.metadata[_READ], reader) for part in parts}
        reads["usage"] = pool.submit(lambda: reader.usage(reads["plugin"].result(), reads["settings"].result()))
        waiting = set(reads.values())
        while waiting:
            _, waiting = futures.wait(waiting, timeout=_QUIET_S)
            if waiting:
                left = sorted(part for part, read in reads.items() if read in waiting)
                say(f"still reading {', '.join(left).replace('_', ' ')}")
    return Snapshot(
        namespace=namespace, server=version, now=now, **{part: read.result() for part, read in reads.items()}
    )


def _server(api: KubeApi, clock: Clock) -> tuple[ServerVersion, datetime]:
    answer = api.ask("/version", timeout_s=_ONE_S)
    if not answer.is_good:
        raise kube.error_of(answer.status, answer.brief)
    try:
        return ServerVersion.parse(str(orjson.loads(answer.text)["gitVersion"])), answer.at or clock.now()
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise kube.ServerFaultError(f"/version: no answer of an API server: {answer.brief}") from error
    except SettingsError as error:
        raise WireError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Reader:
    """None of its methods raises a KubeError."""

    api: KubeApi
    namespace: str

    def one(self, path: str) -> Object:
        path = path.format(namespace=self.namespace)
        part = _tried(_what(path), lambda: self.api.get(path, timeout_s=_ONE_S))
        return None if isinstance(part, Unreadable) and isinstance(part.error, kube.NotFoundError) else part

    def many(self, path: str, keep: Callable[[JsonObject], bool] = lambda _: True) -> Objects:
        return _tried(_what(path), lambda: tuple(reading.listed(self.api, path, {}, keep=keep)))

    def ask(self, service: str, path: str) -> Text:
        there = kube.proxy_path(self.namespace, service, path)
        return _tried(self._endpoint(service, path), lambda: self.api.ask(there, timeout_s=_ASK_S))

    def metrics(self, service: str) -> Text:
        """Anything but a page of metrics is no answer."""
        page = self.ask(service, "metrics")
        if isinstance(page, Unreadable) or page.is_good:
            return page
        return Unreadable(self._endpoint(service, "metrics"), kube.error_of(page.status, page.brief))

    def admitted(self) -> JsonObject | Unreadable:
        path = f"/api/v1/namespaces/{TRIAL_NAMESPACE}/pods"
        return _tried(
            f"a dry run of a new pod in namespace {TRIAL_NAMESPACE}",
            lambda: self.api.create(path, trial_pod(), params={"dryRun": "All"}, timeout_s=_TRIAL_S),
        )

    def policies(self, collection: str) -> Objects:
        """Those of the installation, or their bindings, that exist; on servers without such policies, none."""
        present = [self.one(f"{collection}/{name}") for name in names.POLICIES]
        unread = next((each for each in present if isinstance(each, Unreadable)), None)
        return unread or tuple(each for each in present if isinstance(each, dict))

    def usage(self, plugin: Object, shared: Object) -> Mapping[NodeName, NodeUse] | Unreadable:
        """Of all nodes with a plugin that is to read it; none if the plugins are not."""
        if isinstance(plugin, Unreadable) or isinstance(shared, Unreadable) or not objects.reads_usage(plugin, shared):
            return {}  # what cannot be read is reported by itself
        try:
            return _tried(f"pods of {names.PLUGIN}", lambda: usage.read_all(self.api, self.namespace))
        except WireError:
            return {}  # checks of pods say what is odd about it

    def nvidia_configs(self) -> Objects:
        found: list[JsonObject] = []
        for namespace in names.ADDON_NAMESPACES:
            part = self.many(f"/api/v1/namespaces/{namespace}/configmaps", lambda each: bool(foreign.sharing(each)))
            if isinstance(part, Unreadable):
                return part
            found += part
        return tuple(found)

    def dra(self, collection: str) -> Objects:
        """All objects of dynamic resource allocation; on servers without it, none."""
        for version in _DRA_VERSIONS:
            part = self.many(f"/apis/resource.k8s.io/{version}/{collection}")
            if not (isinstance(part, Unreadable) and isinstance(part.error, kube.NotFoundError)):
                return part
        return ()

    def pods(self) -> Objects:
        def concerns(pod: JsonObject) -> bool:
            try:
                is_own = pods_wire.ref(pod).namespace == self.namespace
                has_claims = pods_wire.has_claims(pod)
                return is_own or has_claims or reading.concerns_gpus(pod) or foreign.foreign_pod(pod) is not None
            except WireError:
                return True  # a check says what is odd about it

        return self.many("/api/v1/pods", concerns)

    def _endpoint(self, service: str, path: str) -> str:
        return f"/{path} of service/{self.namespace}/{service.removeprefix('https:').partition(':')[0]}"


def _tried(what: str, read: Callable[[], T]) -> T | Unreadable:
    try:
        return read()
    except kube.KubeError as error:
        return Unreadable(what, error)


def _what(path: str) -> str:
    """An API path in words: `nodes`, `lease gpushare-system/gpushare-controller`."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        return f"{rest[2]}/{rest[1]}" + "".join(f"/{part}" for part in rest[3:])
    return "/".join(rest)


def trial_pod() -> JsonObject:
    """A pod that asks for one unit, and that the strictest policies and quotas of a namespace would let in."""
    amounts = {"cpu": "10m", "memory": "16Mi"}
    container = {
        "name": TRIAL_CONTAINER,
        "image": "registry.k8s.io/pause:3.9",  # never pulled
        "resources": {"requests": amounts, "limits": {**amounts, names.GPU_MEM: "1"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpushare-doctor-"},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }
