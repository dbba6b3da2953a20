"""GPUs of a node that take no new pods: by an administrator's word, or for as long as a defragmentation lasts."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from gpushare import names
from gpushare.cluster import node_records
from gpushare.cluster.node_records import Cordon, NodeRecord
from gpushare.errors import GpuShareError, SettingsError, UnknownGpuError
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.runtime.clock import Clock
from gpushare_cli.console import NotAllowedError, Streams

T = TypeVar("T")
_ROUND_S: Final = 2.0
_TRIES: Final = 5
Change = Callable[[NodeRecord], Cordon]  # what a cordon is to be, from what is known of its node


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    node: str
    gpu: str  # its number, UUID, or GPU:INSTANCE

    def __str__(self) -> str:
        return f"{self.node}/{self.gpu}"

    @classmethod
    def parse(cls, text: str) -> "GpuName":
        node, _, gpu = text.partition("/")
        if not node or not gpu or "/" in gpu or "," in gpu:
            raise SettingsError(f"GPU {text!r}: write NODE/GPU, such as node-a/0, node-a/0:1 or node-a/GPU-UUID")
        return cls(node=node, gpu=gpu)


def write(api: KubeApi, node: str, change: Change) -> bool:
    """Change which GPUs of a node take no new pods. Whether anything was changed."""
    for _ in range(_TRIES):
        found = api.get(kube.node_path(node))
        record = node_records.read(found)
        after = change(record)
        if after == record.cordon:
            return False
        body = {
            "metadata": {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": {names.ANNOTATION_CORDON: after.gpus or None, names.ANNOTATION_HELD: after.held or None},
            }
        }
        try:
            api.patch(kube.node_path(node), body)
        except kube.ConflictError:  # kubelets write their nodes all the time
            continue
        except kube.ForbiddenError as error:
            raise NotAllowedError(f"not allowed: {error}; patching nodes is needed") from error
        return True
    raise kube.ConflictError(f"node {node} was changed by others {_TRIES} times meanwhile; try again")


def inventory_of(record: NodeRecord) -> NodeInventory:
    if record.inventory is None:
        raise UnknownGpuError(f"node {record.name} {record.problem or 'reports no GPUs, as its device plugin would'}")
    return record.inventory


class StoppedError(GpuShareError):
    """It does not go on; says why. Its cause is the error of the API server that it ended with, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """The one wait for all that a drain or a defragmentation waits for: tries again until it is so, or time is up."""

    clock: Clock
    streams: Streams
    timeout_s: float

    def until(self, what: str, condition: Callable[[], T | None], *, every_s: float = _ROUND_S) -> T:
        """The first true value that a condition gives; `what` says how it is before. A server may be away meanwhile."""
        began, told = self.clock.monotonic(), ""
        while True:
            cause: kube.KubeError | None = None
            try:
                if value := condition():
                    return value
            except kube.TRANSIENT as error:
                cause = error
            problem = f" ({cause})" if cause else ""
            if self.clock.monotonic() - began >= self.timeout_s:
                raise StoppedError(f"{what} after {self.timeout_s:.0f} s{problem}") from cause
            if problem and problem != told:
                told = problem
                self.streams.progress(f"{what} now{problem}; trying again")
            self.clock.wait(threading.Event(), every_s)


@dataclass(slots=True, kw_only=True)
class TemporaryCordon:
    """Keeps GPUs of a node free for a while, and takes back no cordon of others. Used by one thread."""

    api: KubeApi
    waiter: Waiter
    node: NodeName
    gpus: frozenset[GpuUuid]
    _taken: bool = False

    def take(self) -> None:
        """Keep new pods away from all of them, or from none."""
        try:
            write(self.api, self.node, self._closed)
        except NotAllowedError:
            self._taken = False
            raise
        for gpu in self._names():
            self.waiter.streams.progress(f"{gpu}: cordoned for the time being")

    def _closed(self, record: NodeRecord) -> Cordon:
        """The cordon of the node with these GPUs, which are held then also if the answer to its write is lost."""
        open_now = {gpu.uuid for gpu in inventory_of(record).gpus if gpu.health is not GpuHealth.CORDONED}
        self._taken = self.gpus <= open_now
        if not self._taken:
            others = ", ".join(str(gpu) for gpu in self._names() if gpu.gpu not in open_now)
            raise StoppedError(f"{others}: cordoned by others, or gone, meanwhile")
        return record.cordon.holding(sorted(self.gpus))

    def stands(self) -> bool:
        """Whether all of them are cordoned by this alone."""
        return node_records.read(self.api.get(kube.node_path(self.node))).cordon.holds(self.gpus)

    def give_back(self) -> None:
        """Open those that no one else has cordoned meanwhile. What fails here must not hide why the rest did."""
        if not self._taken:
            return
        kept: set[str] = set()

        def opened(record: NodeRecord) -> Cordon:
            after = record.cordon.released(self.gpus)
            kept.clear()
            kept.update(self.gpus & set(node_records.entries(after.gpus)))
            return after

        with contextlib.suppress(OSError):  # of a terminal that is gone
            try:
                self.waiter.until("the node cannot be written", lambda: (write(self.api, self.node, opened),))
            except GpuShareError as error:
                self._stay_cordoned(str(error))
            except KeyboardInterrupt:
                self._stay_cordoned("interrupted")
                raise
            else:
                for gpu in self._names():
                    how = "stays cordoned: others have done so meanwhile" if gpu.gpu in kept else "uncordoned"
                    self.waiter.streams.progress(f"{gpu}: {how}")

    def _stay_cordoned(self, why: str) -> None:
        for gpu in self._names():
            self.waiter.streams.note(f"{gpu} stays cordoned: {why}; when it can be: gpushare uncordon {gpu}")

    def _names(self) -> list[GpuName]:
        return [GpuName(node=self.node, gpu=uuid) for uuid in sorted(self.gpus)]
