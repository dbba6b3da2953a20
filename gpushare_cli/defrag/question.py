"""Which pod needs room, and what makes it: reads the pod and the cluster, and decides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from gpushare.cluster import defrag, snapshot
from gpushare.cluster.defrag import Plan
from gpushare.cluster.drain import Permissions
from gpushare.cluster.pod_records import Pending
from gpushare.cluster.snapshot import PodToPlace
from gpushare.errors import InvalidRequestError, SettingsError, WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import KubeApi
from gpushare.model.request import PodRequest
from gpushare.wire import pods as pods_wire
from gpushare.wire import requests
from gpushare_cli import reading, schedulable, world, yamls
from gpushare_cli.defrag import pods
from gpushare_cli.defrag.pods import Prepared
from gpushare_cli.explain import workloads
from gpushare_cli.explain.workloads import Target
from gpushare_cli.simulate import objects
from gpushare_cli.simulate import workloads as new_pods
from gpushare_cli.world import World

Object = Mapping[str, Any]
STDIN: Final = "-"
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How room is to be made for one pod."""

    pod: Object
    exists: bool
    """The API server knows it; else it is from a file."""
    installation: str
    permissions: Permissions
    most: int

    @property
    def name(self) -> str:
        """As people write it."""
        ref = pods_wire.ref(self.pod)
        return f"{ref.namespace}/{ref.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found in the cluster as it is."""

    prepared: Prepared
    fits: tuple[NodeName, ...]
    """Nodes that have room already."""
    soon: tuple[NodeName, ...]
    """Nodes that have it as soon as pods have ended whose deletion was asked for."""
    plan: Plan | None
    why_not: str
    """Why it fits nowhere, in the controller's words."""
    notes: tuple[str, ...]


def named(api: KubeApi, target: Target, namespace: str) -> Object:
    """A pod of the cluster that waits.

    Raises:
        KubeError: it cannot be read.
        SettingsError: it is on a node already, is being deleted, is not to be placed yet, or is no pod.
    """
    if target.kind != workloads.POD:
        raise SettingsError(f"{target.kind.word}/{target.name}: name one pod, or give its manifest with -f")
    (pod,) = workloads.pods(api, workloads.POD, namespace, target.name)
    if node := pods_wire.node_of(pod):
        raise SettingsError(f"pod {namespace}/{target.name} is on {node} already")
    if pod["metadata"].get("deletionTimestamp"):
        raise SettingsError(f"pod {namespace}/{target.name} is being deleted")
    if gates := schedulable.gates(pod):
        which = ", ".join(gates)
        raise SettingsError(f"pod {namespace}/{target.name} waits for others to remove its scheduling gates: {which}")
    return pod


def from_file(path: str, stdin: TextIO) -> Object:
    """The pod of a manifest, or that of a workload with one replica.

    Raises:
        WireError: the file cannot be read.
        SettingsError: it has no pod, or several.
    """
    name = "standard input" if path == STDIN else path
    try:
        text = stdin.read() if path == STDIN else Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WireError(f"{name}: {error}") from error
    found = objects.collect([(name, yamls.load_all(text, name))])
    made, _ = new_pods.expand(found.wanted, (), ())
    if len(made) != 1:
        raise SettingsError(f"{name}: has {len(made)} pods; give one pod, or a workload with one replica")
    return made[0].value


def look(api: KubeApi, question: Question) -> Answer:
    """Read the cluster and decide. Changes nothing.

    Raises:
        KubeError: the cluster cannot be read.
        WireError: an object cannot be read.
        SettingsError: the pod asks for no GPU, or for one in a way that cannot be understood.
    """
    seen = _read(api, question)
    fits = snapshot.fits(seen.pod, seen.prepared.snapshot)
    soon = () if fits else snapshot.fits(seen.pod, snapshot.after(seen.prepared.snapshot, seen.prepared.ending))
    plan = None if fits or soon else defrag.plan(seen.pod, seen.prepared.snapshot, most=question.most)
    done = fits or soon or plan
    answered = () if done else world.ask(seen.state, question.pod, seen.request, seen.prepared.snapshot.policies)
    return Answer(
        prepared=seen.prepared,
        fits=fits,
        soon=soon,
        plan=plan,
        why_not=world.summary(answered) if answered else "",
        notes=(*seen.notes, *([_rivals(seen)] if plan and seen.rivals else [])),
    )


def _rivals(seen: "_Seen") -> str:
    named = ", ".join(seen.rivals[:_NAMED]) + (", ..." if len(seen.rivals) > _NAMED else "")
    return f"other pods wait for GPUs ({named}); kube-scheduler may give the room to one of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The cluster at one moment, and the pod in it."""

    pod: PodToPlace
    request: PodRequest
    prepared: Prepared
    state: World
    rivals: tuple[str, ...]
    """Other pods that wait for GPUs."""
    notes: tuple[str, ...]


def _read(api: KubeApi, question: Question) -> _Seen:
    cluster = reading.everything(api)
    budgets, note = reading.budgets(api)
    set_there = reading.settings(api, question.installation, pods_wire.ref(question.pod).namespace)
    found = world.of(cluster, set_there)
    request = _request(question, found)
    policies = found.policies()
    pod = pods.to_place(question.pod, request)
    missing = schedulable.overlooked(question.pod, with_host=True)
    notes = [*cluster.notes, note, f"not evaluated: {', '.join(missing)}" if missing else ""]
    return _Seen(
        pod=pod,
        request=request,
        prepared=pods.prepare({pod.ref.uid: question.pod}, found, budgets, policies, question.permissions),
        state=found,
        rivals=tuple(str(record.ref) for record in _waiting(found) if record.ref.uid != pod.ref.uid),
        notes=tuple(filter(None, notes)),
    )


def _waiting(found: World) -> Iterator[Pending]:
    for value, record in found.pods:
        if isinstance(record, Pending) and record.request is not None and not schedulable.gates(value):
            yield record


def rest(api: KubeApi, question: Question, begun: Plan, left: Sequence[PodUid]) -> Plan | None:
    """What of a plan is still to be done, in the cluster as it is now; None if it cannot be any more.

    Makes no other plan, which takes long in a large cluster: an eviction follows at once.
    """
    seen = _read(api, question)
    return defrag.again(seen.pod, seen.prepared.snapshot, begun, left)


def _request(question: Question, found: World) -> PodRequest:
    config = world.config_of(question.pod, found.resource_config)
    try:
        request = requests.of_pod(question.pod, config)
    except InvalidRequestError as error:
        raise SettingsError(f"pod {question.name}: {error}") from error
    if request is None:
        raise SettingsError(f"pod {question.name} asks for no GPU")
    return request
