"""`gpushare defrag`: arguments, the plan carried out, what is printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from gpushare.cluster import pod_records
from gpushare.errors import SettingsError
from gpushare.identity import PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import as_interrupt
from gpushare.wire import pods as pods_wire
from gpushare_cli import arguments, console, reading
from gpushare_cli.arguments import Command, argument, switch
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.evict import evictable, move_search
from gpushare_cli.evict.evictable import Assessment, DefragRequest, Permissions
from gpushare_cli.evict.gpu_cordon import StoppedError, TemporaryCordon, Waiter
from gpushare_cli.evict.move_search import Move, Plan
from gpushare_cli.reading import Target

_SINGULAR: Final = {"are": "is", "demand": "demands", "have": "has", "hold": "holds"}
_BUDGET_S: Final = 5.0  # between two tries to evict a pod, before each of which the whole cluster is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pod: Target | None = argument(
        type=Target.parse, nargs="?", default=None, metavar="POD", help="NAME, NAMESPACE/NAME or KIND/NAME that waits"
    )
    file: str = argument(
        "-f", "--file", metavar="FILE", help="its manifest instead, before it is created; - for the standard input"
    )
    namespace: str = arguments.namespace()
    installation: str = arguments.installation("gpushare's own settings")
    dry_run: bool = switch("--dry-run", what="only say what would be done, as without --yes")
    yes: bool = switch("--yes", what="evict these pods, one after another, as budgets allow")
    delete_emptydir_data: bool = switch(
        "--delete-emptydir-data", what="also move pods that lose data in emptyDir volumes"
    )
    max_moves: int = arguments.number(
        "--max-moves", "how many pods may be evicted (default: %(default)s)", default=move_search.MOST_MOVES
    )
    timeout: int = arguments.timeout("how long to wait for each budget and each successor", 300)
    output: str = arguments.output()


def run(
    api: KubeApi, streams: Streams, options: Options, namespace: Callable[[], str], clock: Clock, stdin: TextIO
) -> int:
    try:
        asked = _asked(api, options, namespace, stdin)
    except kube.NotFoundError:
        return streams.error(f"there is no {f'{options.pod.kind} {options.pod.name}' if options.pod else options.file}")
    found = evictable.look(api, asked)
    streams.note(*found.notes)
    plan = found.plan
    helps = plan is not None and not plan.waiting
    if plan is None or not helps or not options.yes:
        _print(streams, options, asked, found)
        if helps and not options.dry_run:
            streams.note("nothing was changed; --yes does it")
        return OK if found.fits or found.soon or helps else BAD
    waiter = Waiter(clock=clock, streams=streams, timeout_s=options.timeout)
    cordon = TemporaryCordon(api=api, waiter=waiter, node=plan.node, gpus=plan.kept_free)
    done = Defragmentation(api=api, waiter=waiter, cordon=cordon, asked=asked, plan=plan)
    done.run()
    _print(streams, options, asked, found, done)
    if done.problem:
        streams.error(done.problem)
    return BAD if done.problem else OK


def _asked(api: KubeApi, options: Options, namespace: Callable[[], str], stdin: TextIO) -> DefragRequest:
    target = options.pod
    if (target is None) == (not options.file):
        raise SettingsError("give a pod that waits, or its manifest with -f")
    if options.dry_run and options.yes:
        raise SettingsError("--dry-run and --yes contradict each other; leave one out")
    pod = (
        evictable.from_file(options.file, stdin)
        if target is None
        else evictable.waiting(api, target, target.namespace_or(options.namespace, namespace))
    )
    return DefragRequest(
        pod=pod,
        exists=target is not None,
        installation=options.installation,
        permissions=Permissions(delete_emptydir_data=options.delete_emptydir_data),
        most=options.max_moves,
    )


@dataclass(slots=True, kw_only=True)
class Defragmentation:
    """One plan, and what becomes of it: one eviction after another, each only if the rest still holds."""

    api: KubeApi
    waiter: Waiter
    cordon: TemporaryCordon
    asked: DefragRequest
    plan: Plan
    moved: dict[PodUid, str] = field(default_factory=dict)  # who was evicted -> the successor's node, or empty
    node: str = ""  # where the pod is for which room was made; empty if it is on none
    problem: str = ""  # why the plan was not carried out to its end
    _unsure: set[PodUid] = field(default_factory=set)  # pods whose eviction was asked for, perhaps without an answer

    def run(self) -> None:
        try:
            self._make_room()
            if self.asked.exists:
                name = self.asked.name
                self.node = self.waiter.until(f"{name} has room, and the scheduler has not placed it", self._placed)
                self.waiter.streams.progress(f"{name}: is on {self.node}")
        except StoppedError as error:
            self.problem = str(error)

    def _make_room(self) -> None:
        try:
            self.cordon.take()
            for i, move in enumerate(self.plan.moves):
                if not self._move(move, [each.pod.uid for each in self.plan.moves[i:]]):
                    break
        finally:
            self.cordon.give_back()

    def _is_needed(self, left: Sequence[PodUid]) -> bool:
        """Whether these pods are still to be evicted for the one that needs room, which must help."""
        if self._placed():
            return False
        if not self.cordon.stands():
            raise StoppedError(f"others have cordoned or uncordoned GPUs of {self.plan.node} meanwhile")
        rest = evictable.remainder(self.api, self.asked, self.plan, left)
        if rest is None:
            raise StoppedError("the cluster has changed, and the rest of the plan would no longer help")
        if not rest.moves:
            self.waiter.streams.progress(f"{self.asked.name}: there is room now without further evictions")
        return bool(rest.moves)

    def _placed(self) -> str:
        """The node that the pod is on meanwhile; empty while it needs room."""
        if not self.asked.exists:
            return ""
        ref = pods_wire.ref(self.asked.pod)
        try:
            found = self.api.get(kube.pod_path(ref.namespace, ref.name))
        except kube.NotFoundError:
            found = None
        if found is None or pods_wire.ref(found).uid != ref.uid or found["metadata"].get("deletionTimestamp"):
            raise StoppedError(f"{ref} is gone, and no longer needs room")
        return str(pods_wire.node_of(found) or "")

    def _move(self, move: Move, left: Sequence[PodUid]) -> bool:
        """Evict a pod and wait for its successor. False if nothing more needs to be evicted."""
        before: set[str] = set()
        (needed,) = self.waiter.until(
            f"{move.pod} cannot be evicted", lambda: (self._evicted(move, left, before),), every_s=_BUDGET_S
        )
        if not needed:
            return False
        self.moved[move.pod.uid] = ""
        self.waiter.streams.progress(f"{move.pod}: evicted")
        what = f"the successor of {move.pod} has no place"
        successor = self.waiter.until(what, lambda: self._successor(move, before))
        self.moved[move.pod.uid] = node = str(pods_wire.node_of(successor))
        self.waiter.streams.progress(f"{move.pod}: its successor {pods_wire.ref(successor).name} is on {node}")
        return True

    def _evicted(self, move: Move, left: Sequence[PodUid], before: set[str]) -> bool:
        """Ask for an eviction if it is still needed. `before` gets the pods of the controller that are there then."""
        if move.pod.uid not in self._unsure:
            if not self._is_needed(left):
                return False
            before.clear()
            before.update(str(pods_wire.ref(pod).uid) for pod in self._siblings(move))
        self._unsure.add(move.pod.uid)
        try:
            kube.evict(self.api, move.pod)
        except kube.TooManyRequestsError:
            self._unsure.discard(move.pod.uid)
            raise
        except kube.TRANSIENT:
            raise
        except (kube.NotFoundError, kube.ConflictError):
            pass  # it has gone by itself
        except kube.KubeError as error:
            raise StoppedError(f"{move.pod} cannot be evicted: {error}") from error
        return True

    def _successor(self, move: Move, before: set[str]) -> JsonObject | None:
        """The pod that was made instead, once it is on a node and the former one is gone."""
        there = self._siblings(move)
        if any(pods_wire.ref(pod).uid == move.pod.uid for pod in there):
            return None
        return next((pod for pod in there if pods_wire.ref(pod).uid not in before and pods_wire.node_of(pod)), None)

    def _siblings(self, move: Move) -> list[JsonObject]:
        found = reading.listed(self.api, reading.namespaced(move.pod.namespace, "pods"))
        return [pod for pod in found if (pod_records.controller_of(pod) or {}).get("uid") == move.owner]


def _print(
    streams: Streams, options: Options, asked: DefragRequest, found: Assessment, done: Defragmentation | None = None
) -> None:
    def value() -> Mapping[str, Any]:
        return {
            "version": 1,
            "pod": asked.name,
            "fits": found.fits,
            "fitsSoon": found.soon,
            "plan": _plan(found.plan) if found.plan else None,
            "stay": found.stay,
            "why": found.why_not or None,
            "moved": {uid: node or None for uid, node in done.moved.items()} if done else {},
            "node": (done and done.node) or None,
            "stopped": (done and done.problem) or None,
        }

    streams.answer(options.output, value, lambda: _text(asked.name, found, done, streams.width))


def _plan(plan: Plan) -> Mapping[str, Any]:
    return {
        "node": plan.node,
        "gpus": sorted({gpu for grant in plan.grants for gpu in grant.gpus}),
        "cordonedMeanwhile": sorted(plan.kept_free),
        "evictions": [
            {"namespace": move.pod.namespace, "name": move.pod.name, "from": plan.node, "to": move.target}
            for move in plan.moves
        ],
    }


def _text(name: str, found: Assessment, done: Defragmentation | None, width: int) -> str:
    plan = found.plan
    if found.fits:
        return f"{name} fits on {', '.join(found.fits[:3])} as it is; no pod has to move\n"
    if found.soon:
        where = ", ".join(found.soon[:3])
        return f"{name} fits on {where} as soon as pods have ended that are being deleted; no pod has to move\n"
    if plan is None:
        stay = [_stay(count, why) for why, count in found.stay.items()]
        told = "; ".join([f"{name}: no set of evictions makes room: {found.why_not}", *stay])
        return console.table([(told,)], width)
    return _planned(name, plan, width) if done is None else _done(name, plan, done, width)


def _stay(count: int, why: str) -> str:
    verb, _, rest = why.partition(" ")
    return f"1 pod {_SINGULAR.get(verb, verb)} {rest}" if count == 1 else f"{count} pods {why}"


def _planned(name: str, plan: Plan, width: int) -> str:
    nowhere = "would stay Pending: it fits nowhere else"
    moves = [(str(move.pod), plan.node, move.target or nowhere) for move in plan.moves]
    evictions = "1 eviction makes" if len(moves) == 1 else f"{len(moves)} evictions make"
    last = f"{evictions} room for {name} on {plan.node}\n"
    if plan.waiting:
        last = f"{name}: this would make room on {plan.node}, and take their place from others; not done\n"
    return console.table([("EVICT", "FROM", "TO"), *moves], width) + last


def _done(name: str, plan: Plan, done: Defragmentation, width: int) -> str:
    rows = [("POD", "FROM", "NOW ON")]
    for move in plan.moves:
        evicted = move.pod.uid in done.moved
        now = (done.moved[move.pod.uid] or "evicted; its successor waits") if evicted else "not evicted"
        rows.append((str(move.pod), plan.node, now))
    if done.node:
        last = f"{name} is on {done.node}\n"
    elif done.problem:
        last = f"{len(done.moved)} of {len(plan.moves)} pods evicted for {name}, which has no place\n"
    else:
        last = f"there is room for {name} on {plan.node}\n"
    return console.table(rows, width) + last


COMMAND: Final = Command(
    name="defrag",
    what="the few evictions that make room for a pod",
    exit_codes="there is room, or the plan makes it; 1 the cluster cannot be read or changed; 2 wrong arguments;"
    " 3 no set of evictions makes room, or the plan was not carried out to its end.",
    examples=(
        ("Which evictions make room for a pod that waits", "gpushare defrag train"),
        ("For one that is not created yet", "gpushare defrag -f large.yaml --dry-run"),
        ("Carry it out", "gpushare defrag ml/train --yes"),
    ),
    description="Name the few pods whose eviction makes room for a pod that fits on no GPU, and where each of them"
    " fits then. Pods that nothing recreates, that would have no place, or that a budget protects stay where they are."
    " Without --yes nothing is changed.",
    options=Options,
    run=as_interrupt()(  # cordons that it made for the time being are removed then
        lambda call: run(call.api(), call.streams, call.options(Options), call.namespace, call.clock, call.stdin)
    ),
)
