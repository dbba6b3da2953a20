"""The cluster of `dashboard --demo` and `top --demo`: in memory, with simulated GPUs, and pods that come, wait and go.

GPUs, pods and what they use are made up. Where a pod goes, or why it waits, is decided as the controller does.
"""

import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar, cast

from gpushare import names, units
from gpushare.identity import NodeName, PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import EventType, JsonObject, KubeApi, Page, Params, Reply
from gpushare.model.gpu import GpuHealth, Limit, NodeInventory
from gpushare.model.ledger import Allocation
from gpushare.runtime.clock import Clock
from gpushare.units import GIB, MIB
from gpushare.wire import allocations, inventory as inventory_wire, profile, requests
from gpushare_cli import reading, world
from gpushare_cli.reading import Objects
from gpushare_cli.usage import READ, USED
from gpushare_cli.world import World

T = TypeVar("T")
NOTE: Final = "Demonstration: simulated nodes, nothing is read from a cluster"
STEP_S: Final = 2.0
_BEFORE: Final = 100  # steps of which the first picture has the history
_CONFIG: Final[JsonObject] = {"data": {"GPUSHARE_WHOLE_GPUS": "true"}}
_COMES: Final = 0.6  # the chance of a new pod at a step
_GREEDY: Final = 0.25  # that it uses more than it was granted
_MOST_WAITING: Final = 4
_PORT: Final = 8081
_MOST_EVENTS: Final = 200
_LOG: Final = 1000  # changes, far more than of a step
_PERIOD: Final = 90  # steps
_CORDONED: Final = range(5, 35)  # of these, a GPU
_FAULTY: Final = range(50, 75)
_STAYS: Final = 15  # steps for which a pod is there that has ended
_A100: Final[JsonObject] = {"model": "NVIDIA A100-SXM4-40GB", "memoryMiB": 40960}
_MIG: Final = [{"profile": name, "memoryMiB": mib} for name, mib in (("3g.20gb", 19968), ("2g.10gb", 9856))]
_NODES: Final[Mapping[str, tuple[Limit, Sequence[JsonObject]]]] = {  # what holds limits, and GPUs as in a profile
    "a100-1": (Limit.ADVISORY, [_A100, {**_A100, "mig": _MIG}]),
    "h100-1": (Limit.CGROUP, [{"model": "NVIDIA H100 80GB HBM3", "memoryMiB": 81920, "count": 2}]),
    "l4-1": (Limit.MPS, [{"model": "NVIDIA L4", "memoryMiB": 24576, "count": 4}]),
    "t4-1": (Limit.WATCHDOG, [{"model": "Tesla T4", "memoryMiB": 15360, "count": 2}]),
}
_Workload = tuple[str, str, str, int, Mapping[str, str], int]
_WORKLOADS: Final[Sequence[_Workload]] = (  # namespace, name, resource, amount, annotations, steps
    ("notebooks", "jupyter", names.GPU_MEM, 4, {}, 90),
    ("notebooks", "jupyter-big", names.GPU_MEM, 9, {}, 70),
    ("serving", "embed", names.GPU_PERCENT, 25, {}, 120),
    ("serving", "llm-8b", names.GPU_MEM, 18, {}, 100),
    ("serving", "llm-70b", names.GPU_MEM, 24, {names.ANNOTATION_GPUS: "2"}, 45),
    ("research", "finetune", names.GPU_MEM, 32, {}, 50),
    ("research", "train", names.GPU, 1, {names.ANNOTATION_MODEL: "L4"}, 40),
    ("vision", "detect", names.GPU_MEM, 6, {}, 60),
    ("vision", "label", names.GPU_MEM, 5, {}, 50),
    ("batch", "score", names.GPU_MEM, 3, {}, 30),
)


class MemoryApi:
    """As much of a KubeApi as a picture reads. An object is replaced when it changes, and never altered."""

    def __init__(self) -> None:
        self.pages: Mapping[str, str] = {}  # what `ask` is told, by path
        self._objects: dict[str, dict[str, JsonObject]] = {}  # by resource and name: no two namespaces share one
        self._log: deque[tuple[int, str, JsonObject]] = deque(maxlen=_LOG)  # version, resource, event of a watch
        self._version = 1
        self._changed = threading.Condition()

    def put(self, resource: str, obj: JsonObject, kind: str = "MODIFIED") -> JsonObject:
        """An object as it is now, or with DELETED as it was last."""
        with self._changed:
            self._version += 1
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
            self._log.append((self._version, resource, {"type": kind, "object": obj}))
            known = self._objects.setdefault(resource, {})
            known[obj["metadata"]["name"]] = obj
            if kind == "DELETED":
                del known[obj["metadata"]["name"]]
            if resource == "events" and len(known) > _MOST_EVENTS:
                del known[next(iter(known))]
            self._changed.notify_all()
        return obj

    def listed(self, resource: str) -> list[JsonObject]:
        with self._changed:
            return list(self._objects.get(resource, {}).values())

    def get(self, _path: str) -> JsonObject:
        """The installation's settings: no other single object is read."""
        return _CONFIG

    def list_page(
        self, path: str, _params: Params | None = None, *, keep: Callable[[JsonObject], T], **_: float
    ) -> Page[T]:
        with self._changed:
            found = [keep(obj) for obj in self.listed(path.rpartition("/")[2]) if _is_in(path, obj)]
            return Page(items=found, version=str(self._version))

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        seen = int(params["resourceVersion"])
        while True:
            with self._changed:
                while self._version == seen:
                    if not self._changed.wait(timeout_s):
                        return
                news = [(of, event) for version, of, event in self._log if version > seen]
                if len(news) < self._version - seen:
                    raise kube.GoneError("too old")
                seen = self._version
            resource = path.rpartition("/")[2]
            yield from (event for of, event in news if of == resource and _is_in(path, event["object"]))
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}}

    def ask(self, path: str, **_: float) -> Reply:
        return Reply(status=200, text=self.pages[path])


def _is_in(path: str, obj: JsonObject) -> bool:
    _, namespaced, rest = path.partition("/namespaces/")
    return not namespaced or rest.partition("/")[0] == obj["metadata"].get("namespace")


@dataclass(slots=True)
class _Life:  # of a pod
    steps: int  # that it still runs, once it has a place; below 0 it has ended
    allocation: Allocation | None = None
    most: float = 0.0  # up to how much of its grant it uses
    used: float = 0.2


class Script:
    """What happens in the cluster, step by step. The same seed and times make the same cluster."""

    def __init__(self, api: MemoryApi, seed: int = 3) -> None:
        self._api, self._rng, self._numbers = api, random.Random(seed), itertools.count(1)  # noqa: S311 - no secret
        self._settings, self._step = reading.settings_of(_CONFIG), -1
        self._lives: dict[str, _Life] = {}  # by the pod's name
        self._inventories: dict[str, NodeInventory] = {}
        for name, (limit, gpus) in _NODES.items():
            found = profile.inventory({"gpus": gpus}, NodeName(name), GIB)
            held = tuple(gpu if gpu.mig else replace(gpu, limit=limit) for gpu in found.gpus)
            self._inventories[name] = replace(found, gpus=held)
            api.put("pods", _plugin(name))

    def step(self, now: datetime) -> None:
        self._step += 1
        if self._step % _PERIOD in {0, _CORDONED.start, _CORDONED.stop, _FAULTY.start, _FAULTY.stop}:
            self._publish_nodes()
        waiting = [pod for pod in self._pods() if not self._runs(pod, now)]
        if len(waiting) < _MOST_WAITING and self._rng.random() < _COMES:
            kinds = {pod["metadata"]["name"].rpartition("-")[0] for pod in waiting}
            waiting.append(self._new(self._rng.choice([each for each in _WORKLOADS if each[1] not in kinds]), now))
        found: World | None = None
        for pod in waiting:
            found = found or self._world()
            if self._place(pod, found, now):
                found = None
        self._use(now)

    def _pods(self) -> tuple[JsonObject, ...]:
        return tuple(pod for pod in self._api.listed("pods") if pod["metadata"]["name"] in self._lives)

    def _world(self) -> World:
        return world.of(Objects(nodes=tuple(self._api.listed("nodes")), pods=self._pods()), self._settings)

    def _publish_nodes(self) -> None:
        phase = self._step % _PERIOD
        for name, inventory in self._inventories.items():
            last, gpus = inventory.gpus[-1], inventory.gpus
            if name == "t4-1" and phase in _FAULTY:
                fault = "Xid 79: GPU has fallen off the bus"
                gpus = (*gpus[:-1], replace(last, health=GpuHealth.UNHEALTHY, reason=fault))
            notes = {names.ANNOTATION_INVENTORY: inventory_wire.encode(replace(inventory, gpus=gpus))}
            if name == "l4-1" and phase in _CORDONED:
                notes[names.ANNOTATION_CORDON] = last.uuid
            self._api.put("nodes", {"metadata": {"name": name, "annotations": notes}})

    def _new(self, workload: _Workload, now: datetime) -> JsonObject:
        namespace, kind, resource, amount, notes, steps = workload
        name = f"{kind}-{next(self._numbers)}"
        self._lives[name] = _Life(int(steps * self._rng.uniform(0.5, 1.5)))
        metadata = {"name": name, "namespace": namespace, "uid": name, "annotations": notes}
        spec = {"containers": [{"name": "main", "resources": {"limits": {resource: amount}}}]}
        pod = {"metadata": {**metadata, "creationTimestamp": _stamp(now)}, "spec": spec, "status": {"phase": "Pending"}}
        return self._api.put("pods", pod)

    def _runs(self, pod: JsonObject, now: datetime) -> bool:
        """Let a pod that has a place run for a step, end, and go. Whether it has one."""
        name = pod["metadata"]["name"]
        life = self._lives[name]
        if life.allocation is None:
            return False
        life.steps -= 1
        if life.steps == 0:
            ended = {"name": "main", "state": {"terminated": {"finishedAt": _stamp(now)}}}
            self._api.put("pods", {**pod, "status": {"phase": "Succeeded", "containerStatuses": [ended]}})
        elif life.steps < -_STAYS:
            del self._lives[name]
            self._api.put("pods", pod, "DELETED")
        return True

    def _place(self, pod: JsonObject, found: World, now: datetime) -> bool:
        """Bind a pod if it fits. Whether it does."""
        request = requests.of_pod(pod, found.resource_config)
        assert request is not None  # noqa: S101 - for the type checker: each asks for GPUs
        answers = world.ask(found, pod, request, found.policies(request))
        option, life = answers[0].option, self._lives[request.pod.name]
        condition = {"type": "PodScheduled", "lastTransitionTime": _stamp(now)}
        if option is None:
            reason, [before] = world.summary(answers), pod["status"].get("conditions", [{}])
            said = f"0/{len(answers)} nodes are available: {reason}"
            if not before:
                self._tell(request.pod, "Unschedulable", reason, now)
            if before.get("message") != said:
                condition |= {"status": "False", "reason": "Unschedulable", "message": said}
                self._api.put("pods", {**pod, "status": {"phase": "Pending", "conditions": [condition]}})
            return False
        inventory, [grant] = self._inventories[option.node], option.grants
        life.allocation = Allocation(pod=request.pod, node=option.node, grants=option.grants, labels=request.labels)
        is_held = inventory.by_uuid[grant.gpus[0]].limit_of(grant.memory_mib).enforced or grant.whole
        life.most = 1.2 if self._rng.random() < _GREEDY and not is_held else 0.95
        notes = allocations.binding_annotations(life.allocation, inventory, int(now.timestamp() * 1e9), request)
        metadata = {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **notes}}
        status = {"phase": "Running", "conditions": [condition | {"status": "True"}]}
        spec = {**pod["spec"], "nodeName": option.node}
        self._api.put("pods", {**pod, "metadata": metadata, "spec": spec, "status": status})
        return True

    def _use(self, now: datetime) -> None:
        """Move what pods use, and write the pages of metrics of the device plugins."""
        pages = {name: [f'{READ}{{UUID="{gpu.uuid}"}} 0' for gpu in of.gpus] for name, of in self._inventories.items()}
        for life in self._lives.values():
            if life.allocation is None or life.steps <= 0:
                continue
            before, pod, [grant] = life.used, life.allocation.pod, life.allocation.grants
            life.used = min(life.most, max(0.2, life.used + self._rng.uniform(-0.08, 0.1)))
            node = self._inventories[life.allocation.node]
            for gpu in map(node.by_uuid.__getitem__, grant.gpus):
                granted = gpu.memory_mib if grant.whole else grant.memory_mib
                used = int(life.used * granted)
                of = f'namespace="{pod.namespace}",pod="{pod.name}",container="main",UUID="{gpu.uuid}"'
                pages[node.node].append(f"{USED}{{{of}}} {used * MIB}")
                if before <= 1 < life.used and gpu.limit is Limit.WATCHDOG:
                    amounts = f"uses {units.memory(used)} of GPU {gpu.uuid}, of which it was granted"
                    said = f"container main {amounts} {units.memory(granted)}; use less, or ask for more"
                    self._tell(pod, "OverGrant", said, now)
        self._api.pages = {_page_of(name): "\n".join(lines) for name, lines in pages.items()}

    def _tell(self, pod: PodRef, reason: str, message: str, now: datetime) -> None:
        reason = f"{names.EVENT_PREFIX}{reason}"
        event = kube.event(pod, EventType.WARNING, reason, message, component="gpushare", now=now)
        self._api.put("events", {**event, "metadata": {**event["metadata"], "uid": event["metadata"]["name"]}})


def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _plugin(node: str) -> JsonObject:
    name, ports = f"{names.PLUGIN}-{node}", [{"name": "metrics", "containerPort": _PORT}]
    metadata = {"name": name, "namespace": names.NAMESPACE, "uid": name}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "plugin", "ports": ports}]}}


def _page_of(node: str) -> str:
    return kube.pod_path(names.NAMESPACE, f"{names.PLUGIN}-{node}:{_PORT}", "proxy/metrics")


def begun(clock: Clock) -> KubeApi:
    """A cluster that has some minutes behind it, and goes on until the process ends."""
    api = MemoryApi()
    script = Script(api)
    for i in range(_BEFORE, 0, -1):
        script.step(clock.now() - timedelta(seconds=i * STEP_S))

    def go_on() -> None:
        never = threading.Event()
        while not clock.wait(never, STEP_S):
            script.step(clock.now())

    threading.Thread(target=go_on, name="demo", daemon=True).start()
    return cast("KubeApi", api)  # of which a picture only reads
