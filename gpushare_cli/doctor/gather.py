"""Reads all that the checks look at, everything at the same time. Changes nothing: its one POST is a dry run."""

from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

import orjson

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading as lists
from gpushare_cli import usage
from gpushare_cli.doctor import foreign, objects, own, trial
from gpushare_cli.doctor.snapshot import READ, Object, Objects, Snapshot, Text, Unread
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.usage import NodeUse

_ONE_S: Final = 10.0
_ASK_S: Final = 5.0
_TRIAL_S: Final = 20.0  # the API server waits up to 10 s for a webhook
_AT_ONCE: Final = 32
_DRA_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")  # from Kubernetes 1.34, 1.33, 1.32 on
_QUIET_S: Final = 4.0  # after this long without an end, a word about what is still being read

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The API server, by its own words."""

    version: ServerVersion
    now: datetime


def server(api: KubeApi, clock: Clock) -> Server:
    """The first thing that is asked. The clock is for a server that does not say what time it is.

    Raises:
        KubeError: it does not answer, or not to us.
        WireError: it is of a version that no one knows.
    """
    answer = api.ask("/version", timeout_s=_ONE_S)
    if not answer.is_good:
        raise kube.error_of(answer.status, answer.brief)
    try:
        value = orjson.loads(answer.text)
        version = str(value["gitVersion"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise kube.ServerFaultError(f"/version: no answer of an API server: {answer.brief}") from error
    try:
        return Server(version=ServerVersion.parse(version), now=answer.at or clock.now())
    except SettingsError as error:
        raise WireError(str(error)) from error


def gather(api: KubeApi, server: Server, namespace: str, say: Say) -> Snapshot:
    """Read the cluster, and say every few seconds what is still being read."""
    reader = _Reader(api, namespace)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        how = {each.name: each.metadata[READ] for each in fields(Snapshot) if READ in each.metadata}
        reads: dict[str, Future[Any]] = {part: pool.submit(read, reader) for part, read in how.items()}
        waiting = set(reads.values())
        while waiting:
            _, waiting = futures.wait(waiting, timeout=_QUIET_S)
            if waiting:
                left = sorted(part for part, read in reads.items() if read in waiting)
                say(f"still reading {', '.join(left).replace('_', ' ')}")
    parts = {part: read.result() for part, read in reads.items()}
    return Snapshot(namespace=namespace, server=server.version, now=server.now, **parts)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads that never raise a KubeError."""

    api: KubeApi
    namespace: str

    def one(self, path: str) -> Object:
        """An object; None if there is none."""
        path = path.format(namespace=self.namespace)
        try:
            return self.api.get(path, timeout_s=_ONE_S)
        except kube.NotFoundError:
            return None
        except kube.KubeError as error:
            return Unread(_what(path), error)

    def many(self, path: str, keep: Callable[[JsonObject], bool] = lambda _: True) -> Objects:
        """All objects of a collection that are kept."""
        try:
            return tuple(lists.listed(self.api, path, {}, keep=keep))
        except kube.KubeError as error:
            return Unread(_what(path), error)

    def ask(self, service: str, path: str) -> Text:
        """What a Service's endpoint says."""
        try:
            return self.api.ask(kube.proxy_path(self.namespace, service, path), timeout_s=_ASK_S)
        except kube.KubeError as error:
            return Unread(_endpoint(self.namespace, service, path), error)

    def metrics(self, service: str) -> Text:
        """What it measures; anything but a page of metrics is no answer."""
        page = self.ask(service, "metrics")
        if isinstance(page, Unread) or page.is_good:
            return page
        return Unread(_endpoint(self.namespace, service, "metrics"), kube.error_of(page.status, page.brief))

    def admitted(self) -> JsonObject | Unread:
        """A new pod as it would be stored."""
        path = f"/api/v1/namespaces/{own.TRIAL_NAMESPACE}/pods"
        try:
            return self.api.create(path, trial.pod(), {"dryRun": "All"}, timeout_s=_TRIAL_S)
        except kube.KubeError as error:
            return Unread(f"a dry run of a new pod in namespace {own.TRIAL_NAMESPACE}", error)

    def policies(self, collection: str) -> Objects:
        """Those of the installation, or their bindings, that exist; on servers without such policies, none."""
        present = [self.one(f"{collection}/{name}") for name in names.POLICIES]
        unread = next((each for each in present if isinstance(each, Unread)), None)
        return unread or tuple(each for each in present if each is not None and not isinstance(each, Unread))

    def usage(self) -> Mapping[NodeName, NodeUse] | Unread:
        """Of all nodes with a plugin that is to read it; none if the plugins are not."""
        plugin = self.one(f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{names.PLUGIN}")
        shared = self.one(f"/api/v1/namespaces/{self.namespace}/configmaps/{names.CONFIG}")
        if isinstance(plugin, Unread) or isinstance(shared, Unread) or not objects.reads_usage(plugin, shared):
            return {}  # what cannot be read is reported by itself
        try:
            return usage.read_all(self.api, self.namespace)
        except kube.KubeError as error:
            return Unread(f"pods of {names.PLUGIN}", error)
        except WireError:
            return {}  # checks of pods say what is odd about it

    def daemonsets(self) -> Objects:
        """Those that need every GPU of their nodes."""
        return self.many("/apis/apps/v1/daemonsets", keep=foreign.needs_every_gpu)

    def nvidia_configs(self) -> Objects:
        """ConfigMaps in the namespaces of GPU add-ons that have NVIDIA's plugin share GPUs."""
        found: list[JsonObject] = []
        for namespace in names.ADDON_NAMESPACES:
            part = self.many(f"/api/v1/namespaces/{namespace}/configmaps", keep=foreign.shares)
            if isinstance(part, Unread):
                return part
            found += part
        return tuple(found)

    def dra(self, collection: str) -> Objects:
        """All objects of dynamic resource allocation; on servers without it, none."""
        for version in _DRA_VERSIONS:
            part = self.many(f"/apis/resource.k8s.io/{version}/{collection}")
            if not (isinstance(part, Unread) and isinstance(part.error, kube.NotFoundError)):
                return part
        return ()

    def unhealthy(self) -> Objects:
        """ConfigMaps that say which GPUs must not be used."""
        return self.many(lists.CONFIG_MAPS, keep=lists.is_unhealthy_list)

    def pods(self) -> Objects:
        """Pods that any check looks at."""

        def is_meant(pod: JsonObject) -> bool:
            try:
                is_own = pods_wire.ref(pod).namespace == self.namespace
                return is_own or lists.concerns_gpus(pod) or foreign.foreign_pod(pod) is not None
            except WireError:
                return True  # a check says what is odd about it

        return self.many("/api/v1/pods", keep=is_meant)


def _endpoint(namespace: str, service: str, path: str) -> str:
    return f"/{path} of service/{namespace}/{service.removeprefix('https:').partition(':')[0]}"


def _what(path: str) -> str:
    """An API path in words: `nodes`, `lease gpushare-system/gpushare-controller`."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        return f"{rest[2]}/{rest[1]}" + "".join(f"/{part}" for part in rest[3:])
    return "/".join(rest)
