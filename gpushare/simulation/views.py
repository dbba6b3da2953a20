"""What nodes are worth to kinds of pods. Pure, but for what it remembers.

It is kept from pod to pod, and only nodes that have changed since are looked at again: a pod costs about as much as its
kind is frequent. What kube-scheduler thinks of CPU and memory is computed only where it decides.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpushare.simulation.cluster import Gpus
from gpushare.simulation.kinds import Kind
from gpushare.simulation.scores import Host, Load

_MOST_KEPT: Final = 20_000_000
"""Of nodes times kinds; some 500 MiB."""


class Views:
    """One view for each of the kinds of pods that came last."""

    def __init__(
        self, hosts: Sequence[Host], used: Sequence[Load], gpus: Gpus, points: Callable[[Load, Load, Host], int]
    ) -> None:
        """Nothing is looked at yet.

        Args:
            hosts: of all nodes.
            used: of these; it changes, and `change` tells where.
            gpus: of the same nodes.
            points: as `scores.resources` has them.
        """
        self.hosts, self.used, self.gpus, self.points = hosts, used, gpus, points
        self.changed: list[int] = []
        """The nodes that have changed, in the order in which they did."""
        self._views: OrderedDict[Kind, View] = OrderedDict()
        self._most = max(_MOST_KEPT // max(len(hosts), 1), 16)

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._views)

    def of(self, kind: Kind) -> "View":
        """As nodes are now."""
        view = self._views.get(kind)
        if view is None or view.epoch != self.gpus.epoch:
            view = self._views[kind] = View(kind, self)
            if len(self._views) > self._most:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(kind)
            view.refresh()
        return view


class View:
    """What nodes are worth to one kind of pod."""

    def __init__(self, kind: Kind, views: Views) -> None:
        """As nodes are now."""
        self._kind, self._all = kind, views
        self.epoch = views.gpus.epoch
        self._seen = len(views.changed)
        number, allowed = len(views.hosts), kind.terms.allowed
        self.costs: list[float] = [math.inf] * number
        """Infinite where the pod does not fit."""
        self._points = [0] * number
        self._unscored: set[int] = set()
        self._fine: dict[int, int] = {}
        self._fine_epoch = views.gpus.fine_epoch
        self._look(range(number) if allowed is None else allowed)

    def refresh(self) -> None:
        """Look at the nodes that have changed."""
        changed = self._all.changed
        self._look(set(changed[self._seen :]))
        self._seen = len(changed)

    def fitting(self) -> list[int]:
        """The nodes where the pod fits."""
        return [node for node, cost in enumerate(self.costs) if cost != math.inf]

    def best(self) -> int | None:
        """The node that costs least, the first of those that are exactly equal; None if the pod fits nowhere."""
        least = min(self.costs, default=math.inf)
        if least == math.inf:
            return None
        equal = [node for node, cost in enumerate(self.costs) if cost == least]
        if len(equal) == 1:
            return equal[0]
        fine = self.fine(equal)
        return equal[fine.index(min(fine))]

    def fine(self, nodes: Sequence[int]) -> list[int]:
        """What tells nodes apart that cost the same, and where the pod fits."""
        gpus, known = self._all.gpus, self._fine
        if self._fine_epoch != gpus.fine_epoch:
            self._fine_epoch = gpus.fine_epoch
            known.clear()
        missing = [node for node in nodes if node not in known]
        if missing:
            known.update(zip(missing, gpus.fine(self._kind, missing), strict=True))
        return [known[node] for node in nodes]

    def points(self, nodes: Sequence[int]) -> list[int]:
        """Of kube-scheduler for CPU and memory of nodes where the pod fits."""
        load, every = self._kind.load, self._all
        for node in self._unscored:
            self._points[node] = every.points(load, every.used[node], every.hosts[node])
        self._unscored.clear()
        return [self._points[node] for node in nodes]

    def _look(self, nodes: Iterable[int]) -> None:
        allowed, load = self._kind.terms.allowed, self._kind.load
        used, hosts, able = self._all.used, self._all.hosts, []
        for node in nodes:
            self.costs[node] = math.inf
            self._fine.pop(node, None)
            if (allowed is None or node in allowed) and load.fits(used[node], hosts[node]):
                able.append(node)
        self._unscored.difference_update(nodes)
        for node, cost in zip(able, self._all.gpus.costs(self._kind, able), strict=True):
            if cost is not None:
                self.costs[node] = cost
                self._unscored.add(node)
