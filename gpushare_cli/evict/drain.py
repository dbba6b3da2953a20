"""`gpushare drain`, `cordon`, `uncordon`: arguments, what is done, what is printed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpushare import names, units
from gpushare.cluster.node_records import Cordon, NodeRecord
from gpushare.errors import GpuShareError, SettingsError, WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import Gpu
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import as_interrupt
from gpushare_cli import arguments, console, reading, world
from gpushare_cli.arguments import Command, argument, switch
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.evict import evictable, gpu_cordon, move_search
from gpushare_cli.evict.evictable import Occupant, Occupied, Permissions, Step
from gpushare_cli.evict.gpu_cordon import Change, GpuName, StoppedError, Waiter

_SETTLE_S: Final = 10.0  # after the cordon, a pod whose binding was on its way may still come
_FAILURES: Final = 3  # after which an eviction that the server refuses for good is not tried again
_ANY_NAMESPACE: Final = "default"  # policies of others decide which nodes are best, not whether one is enough
_WORDS: Final[Mapping[Step, str]] = {
    Step.EVICT: "is evicted",
    Step.WAIT: "waits",
    Step.LEAVING: "leaves",
    Step.STAY: "stays",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGpu:
    gpu: GpuName = argument(
        type=GpuName.parse, metavar="NODE/GPU", help="number or UUID of the GPU; 0:1 is MIG instance 1 of GPU 0"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(OneGpu):
    dry_run: bool = switch("--dry-run", what="only say what would be done; changes nothing")
    force: bool = switch("--force", what="also evict pods that nothing recreates")
    delete_emptydir_data: bool = switch(
        "--delete-emptydir-data", what="also evict pods that lose data in emptyDir volumes"
    )
    timeout: int = arguments.timeout("how long to wait for budgets and for pods to end", 600)
    output: str = arguments.output()


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    permissions = Permissions(force=options.force, delete_emptydir_data=options.delete_emptydir_data)
    try:
        occupied = evictable.on_gpu(api, options.gpu, permissions)
    except kube.NotFoundError:
        return streams.error(f"there is no node {options.gpu.node}")
    budgets, note = reading.budgets(api)
    streams.note(*occupied.notes, note)
    planned = evictable.steps(occupied.occupants, budgets)
    if options.dry_run:
        leaving = [row.pod.uid for row in planned if row.step in {Step.EVICT, Step.WAIT}]
        then, note = _successors(api, options.gpu, occupied.gpus, leaving)
        streams.note(note)
        _print(streams, options, occupied, planned, planned, then)
        return BAD if any(row.step in {Step.WAIT, Step.STAY} for row in planned) else OK
    cordon(api, streams, options.gpu)
    waiter = Waiter(clock=clock, streams=streams, timeout_s=options.timeout)
    drainer = Drainer(api=api, waiter=waiter, gpu=options.gpu, gpus=occupied.gpus, permissions=permissions)
    how = f"gpushare uncordon {options.gpu} lets new pods in, gpushare drain {options.gpu} goes on"
    stays = f"{options.gpu} stays cordoned; {how}"
    try:
        drainer.run()
    except (GpuShareError, KeyboardInterrupt):
        streams.note(stays)
        raise
    _print(streams, options, occupied, planned, drainer.left)
    if drainer.uncordoned:
        streams.error(f"{options.gpu} was uncordoned by others meanwhile; nothing more is evicted")
    elif drainer.left:
        streams.note(stays)
    return BAD if drainer.left or drainer.uncordoned else OK


def _successors(
    api: KubeApi, gpu: GpuName, gpus: Sequence[Gpu], leaving: Sequence[PodUid]
) -> tuple[Mapping[PodUid, NodeName | None], str]:
    """Where the successors of those fit that something recreates, None for those that wait; why it is not told."""
    try:
        found = world.of(reading.everything(api), reading.settings(api, names.NAMESPACE, _ANY_NAMESPACE))
    except (kube.KubeError, WireError, SettingsError) as error:
        return {}, f"whether the pods fit elsewhere is not told: {error}"
    there = evictable.prepare(found, (), Permissions(delete_emptydir_data=True))
    return move_search.successors(there, NodeName(gpu.node), {each.uuid for each in gpus}, leaving), ""


@dataclass(slots=True, kw_only=True)
class Drainer:
    api: KubeApi
    waiter: Waiter
    gpu: GpuName
    gpus: tuple[Gpu, ...]  # what its name stood for when the drain began
    permissions: Permissions
    _asked: dict[PodUid, Occupant] = field(default_factory=dict)  # pods that were asked to leave
    left: tuple[Occupant, ...] = ()  # who was there when it looked last
    uncordoned: bool = False  # by others: new pods may come, and it would evict them forever
    _told: dict[PodUid, str] = field(default_factory=dict)
    _failures: Counter[PodUid] = field(default_factory=Counter)

    def run(self) -> None:
        settled = self.waiter.clock.monotonic() + _SETTLE_S

        def ended() -> bool:
            self._round()
            busy = any(row.step is not Step.STAY for row in self.left)
            return self.uncordoned or (not busy and self.waiter.clock.monotonic() >= settled)

        try:
            self.waiter.until(f"{self.gpu}: cannot be read", ended)
        except StoppedError as error:
            if error.__cause__ is not None:  # else its time is up, and some are left
                raise error.__cause__ from None

    def _round(self) -> None:
        """Ask every pod that may leave to do so, and see who is there now."""
        known, _ = reading.budgets(self.api)
        occupied = evictable.on_gpu(self.api, self.gpu, self.permissions, self.gpus)
        self.uncordoned = not occupied.cordoned
        if self.uncordoned:
            return
        there = {one.pod.uid for one in occupied.occupants}
        for uid, row in self._asked.items():
            if uid not in there:
                self._tell(row, "gone")
        self.left = tuple(self._step(row) for row in evictable.steps(occupied.occupants, known))

    def _step(self, row: Occupant) -> Occupant:
        if row.step is Step.STAY:
            self._tell(row, f"stays: {row.why}")
        elif row.step is Step.LEAVING and row.pod.uid not in self._asked:
            self._asked[row.pod.uid] = row
            self._tell(row, f"leaves: {row.why}")
        if row.step in {Step.STAY, Step.LEAVING}:
            return row
        if self._failures[row.pod.uid] >= _FAILURES:
            return replace(row, step=Step.STAY, why=self._told[row.pod.uid])
        return self._evicted(row)

    def _evicted(self, row: Occupant) -> Occupant:
        why = "its containers are ending"
        try:
            kube.evict(self.api, row.pod)
            self._tell(row, "evicted")
        except kube.TooManyRequestsError as error:
            return self._waits(row, row.why or str(error), "waits: ")
        except kube.TRANSIENT as error:
            return self._waits(row, f"cannot be evicted now: {error}")
        except (kube.NotFoundError, kube.ConflictError):
            why = "it has ended"  # by itself, a moment ago
        except kube.KubeError as error:
            self._failures[row.pod.uid] += 1
            return self._waits(row, f"cannot be evicted: {error}")
        self._asked[row.pod.uid] = row
        return replace(row, step=Step.LEAVING, why=why)

    def _waits(self, row: Occupant, why: str, told: str = "") -> Occupant:
        self._tell(row, told + why)
        return replace(row, step=Step.WAIT, why=why)

    def _tell(self, row: Occupant, text: str) -> None:
        if self._told.get(row.pod.uid) != text:
            self._told[row.pod.uid] = text
            self.waiter.streams.progress(f"{row.pod}: {text}")


def cordon(api: KubeApi, streams: Streams, gpu: GpuName) -> int:
    def closed(record: NodeRecord) -> Cordon:
        return record.cordon.closed(gpu_cordon.inventory_of(record), gpu.gpu)

    told = "; new pods stay away from it"
    return _changed(api, streams, gpu, closed, f"cordoned{told}", f"was cordoned before{told}")


def uncordon(api: KubeApi, streams: Streams, gpu: GpuName) -> int:
    def opened(record: NodeRecord) -> Cordon:
        return record.cordon.opened(record.inventory, gpu.gpu)

    return _changed(api, streams, gpu, opened, "uncordoned; it takes new pods", "was not cordoned; it takes new pods")


def _changed(api: KubeApi, streams: Streams, gpu: GpuName, change: Change, done: str, before: str) -> int:
    try:
        changed = gpu_cordon.write(api, gpu.node, change)
    except kube.NotFoundError:
        return streams.error(f"there is no node {gpu.node}")
    streams.progress(f"{gpu}: {done if changed else before}")
    return OK


def _print(
    streams: Streams,
    options: Options,
    occupied: Occupied,
    planned: Sequence[Occupant],
    left: Sequence[Occupant],
    then: Mapping[PodUid, NodeName | None] | None = None,
) -> None:
    def value() -> dict[str, Any]:
        return {
            "version": 1,
            "node": options.gpu.node,
            "gpus": [
                {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "memoryMiB": gpu.memory_mib}
                for gpu in occupied.gpus
            ],
            "dryRun": options.dry_run,
            "planned": [_as_json(row) for row in planned],
            "left": [_as_json(row) for row in left],
            **({} if then is None else {"successors": then}),
        }

    def table() -> str:
        if not left:
            return f"{options.gpu}: no pod is on it\n"
        rows = [("POD", "MEMORY", "WHAT", *(["ITS SUCCESSOR"] if then is not None else []), "WHY")]
        for row in left:
            successor = [_successor(row.pod.uid, then)] if then is not None else []
            rows.append((str(row.pod), units.memory(row.memory_mib), _WORDS[row.step], *successor, row.why))
        return console.table(rows, streams.width)

    streams.answer(options.output, value, table)


def _successor(pod: PodUid, then: Mapping[PodUid, NodeName | None]) -> str:
    if pod not in then:
        return "-"
    return f"fits on {then[pod]}" if then[pod] else "would stay Pending"


def _as_json(row: Occupant) -> dict[str, Any]:
    return {
        "namespace": row.pod.namespace,
        "name": row.pod.name,
        "memoryMiB": row.memory_mib,
        "step": row.step.value,
        "why": row.why or None,
    }


DRAIN: Final = Command(
    name="drain",
    what="take a GPU out of service",
    exit_codes="nothing is left on the GPU; 1 the cluster cannot be read or changed; 2 wrong arguments; 3 pods are"
    " left, and the table says why.",
    examples=(
        ("Who would be evicted, and who would stay", "gpushare drain node-a/2 --dry-run"),
        ("Evict the pods of a GPU as budgets allow", "gpushare drain node-a/2"),
        ("Also pods that nothing recreates, for at most a minute", "gpushare drain node-a/2 --force --timeout 60"),
    ),
    description="Take one GPU out of service: keep new pods away from it, and evict the pods that are on it, as"
    " budgets allow. Pods on other GPUs of the node stay.",
    options=Options,
    # Also a signal makes it say that the GPU stays cordoned.
    run=as_interrupt()(lambda call: run(call.api(), call.streams, call.options(Options), call.clock)),
)
CORDON: Final = Command(
    name="cordon",
    what="keep new pods away from a GPU",
    exit_codes="done; 1 the cluster cannot be read or changed; 2 wrong arguments.",
    examples=(
        ("By the number of the GPU", "gpushare cordon node-a/2"),
        ("MIG instance 1 of GPU 0", "gpushare cordon node-a/0:1"),
    ),
    description="Keep new pods away from one GPU; what runs there stays.",
    options=OneGpu,
    run=lambda call: cordon(call.api(), call.streams, call.arguments.gpu),
)
UNCORDON: Final = Command(
    name="uncordon",
    what="let new pods onto a GPU again",
    exit_codes=CORDON.exit_codes,
    examples=(("After a drain", "gpushare uncordon node-a/2"),),
    description="Let new pods onto one GPU again, after cordon or drain.",
    options=OneGpu,
    run=lambda call: uncordon(call.api(), call.streams, call.arguments.gpu),
)
