"""Keeps GPUs of a node free for the time being, and takes back no cordon of others."""

import contextlib
from dataclasses import dataclass

from gpushare.cluster import cordons, node_records
from gpushare.cluster.cordons import Cordon
from gpushare.cluster.node_records import NodeRecord
from gpushare.errors import GpuShareError
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import GpuHealth
from gpushare_cli.console import NotAllowedError
from gpushare_cli.defrag.patience import Patience, StoppedError
from gpushare_cli.drain import card as cards
from gpushare_cli.drain.card import Card


@dataclass(slots=True, kw_only=True)
class Hold:
    """GPUs that are to take no pods for a while. Used by one thread."""

    api: KubeApi
    patience: Patience
    node: NodeName
    gpus: frozenset[GpuUuid]
    _taken: bool = False
    """Whether they may be cordoned by this."""

    def take(self) -> None:
        """Keep new pods away from all of them, or from none.

        Raises:
            KubeError: the node cannot be read or written.
            NotAllowedError: the user may not write it.
            StoppedError: others have cordoned one.
        """
        try:
            cards.cordon(self.api, self.node, self._closed)
        except NotAllowedError:
            self._taken = False
            raise
        for card in self._cards():
            self.patience.streams.progress(f"{card}: cordoned for the time being")

    def _closed(self, record: NodeRecord) -> Cordon:
        """The cordon of the node with these GPUs, which are held then also if the answer to its write is lost."""
        open_now = {gpu.uuid for gpu in cards.inventory_of(record).gpus if gpu.health is not GpuHealth.CORDONED}
        self._taken = self.gpus <= open_now
        if not self._taken:
            others = ", ".join(str(card) for card in self._cards() if card.gpu not in open_now)
            raise StoppedError(f"{others}: cordoned by others, or gone, meanwhile")
        return record.marks.holding(sorted(self.gpus))

    def stands(self) -> bool:
        """Whether all of them are cordoned by this alone.

        Raises:
            KubeError: the node cannot be read.
        """
        return node_records.read(self.api.get(kube.node_path(self.node))).marks.holds(self.gpus)

    def give_back(self) -> None:
        """Open those that no one else has cordoned meanwhile. What fails here must not hide why the rest did."""
        if not self._taken:
            return
        kept: set[str] = set()

        def opened(record: NodeRecord) -> Cordon:
            after = record.marks.released(self.gpus)
            kept.update(self.gpus & set(cordons.entries(after.gpus)))
            return after

        def done() -> bool:
            kept.clear()
            cards.cordon(self.api, self.node, opened)
            return True

        with contextlib.suppress(OSError):  # of a terminal that is gone
            try:
                self.patience.until("the node cannot be written", done)
            except GpuShareError as error:
                self._stay_cordoned(str(error))
            except KeyboardInterrupt:
                self._stay_cordoned("interrupted")
                raise
            else:
                for card in self._cards():
                    how = "stays cordoned: others have done so meanwhile" if card.gpu in kept else "uncordoned"
                    self.patience.streams.progress(f"{card}: {how}")

    def _stay_cordoned(self, why: str) -> None:
        for card in self._cards():
            self.patience.streams.note(f"{card} stays cordoned: {why}; when it can be: gpushare uncordon {card}")

    def _cards(self) -> list[Card]:
        return [Card(node=self.node, gpu=uuid) for uuid in sorted(self.gpus)]
