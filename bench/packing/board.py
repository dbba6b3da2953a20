"""What every node costs kinds of pods, kept up to date node by node. Pure, but for what it remembers; not thread-safe.

A pod looks at all nodes, and between two pods few nodes change. So what was computed for a kind of pod is kept until
a node changes, or the outlook. What decides first (`Ranking.first`) is known for all nodes; what decides among equals
takes longer, and is computed for these alone.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from gpushare.model.request import Policy
from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom
from gpushare.model.selector import accepts
from gpushare.placement.policies import Rankings
from gpushare.placement.ranking import Ranking

MAX_ENTRIES: Final = 500_000
"""Costs that are kept, of nodes for kinds of pods: 60 MiB at most, and usually a tenth of that."""

_NO_NODE: Final = NodeRoom("", (), HostRoom(-1, -1))
"""No pod fits on it."""
_MOST: Final = 4096
"""GPUs that are remembered for a kind of pod."""
K = TypeVar("K", bound=Hashable)


class Ranked(NamedTuple, Generic[K]):
    """How nodes compare for a pod."""

    costs: list[int | None]
    """Of each of the nodes, comparable with each other; None where the pod does not fit. Equal ones need not tie."""
    best: list[K]
    """Those that cost the least, exactly; one unless nodes are alike. Empty if it fits on none."""


class Board(Generic[K]):
    """Costs of nodes, which are known by any keys."""

    def __init__(self, rankings: Rankings) -> None:
        """No node yet."""
        self._rankings = rankings
        self._places: dict[K, int] = {}
        self._nodes: list[NodeRoom] = []
        self._worth: dict[Policy, dict[int, int]] = {}
        self._columns: OrderedDict[tuple[Policy, Ask], _Column] = OrderedDict()

    def set(self, node: K, room: NodeRoom | None) -> None:
        """A node is new or has changed; None if it takes no pods."""
        room = room or _NO_NODE
        place = self._places.setdefault(node, len(self._nodes))
        if place == len(self._nodes):
            self._nodes.append(room)
            return
        self._nodes[place] = room
        for column in self._columns.values():
            column.changed.add(place)
        for worth in self._worth.values():
            worth.pop(place, None)

    def keep(self, nodes: Collection[K]) -> None:
        """Forget all but these."""
        left = {node: self._nodes[place] for node, place in self._places.items() if node in nodes}
        self._places = {node: place for place, node in enumerate(left)}
        self._nodes = list(left.values())
        self._columns.clear()
        self._worth.clear()

    def under(self, rankings: Rankings) -> None:
        """More is known of the cluster."""
        self._rankings = rankings
        self._worth.clear()
        for (policy, _), column in self._columns.items():
            column.under(rankings.of(policy))

    def rank(self, ask: Ask, policy: Policy | None, nodes: Sequence[K]) -> Ranked[K]:
        """How these nodes compare for a pod of one container, or for one that asks for no GPU.

        Args:
            ask: what the pod takes.
            policy: what the pod names; None for the cluster's default.
            nodes: those that come into question; one that is not known takes no pod.
        """
        policy = policy or self._rankings.default
        column = self._column(policy, ask)
        column.refresh(self._nodes)
        first, places = column.first, list(map(self._places.get, nodes))
        costs = [None if place is None else first[place] for place in places]
        least = min((cost for cost in costs if cost is not None), default=None)
        if least is None:
            return Ranked(costs, [])
        tied = [i for i, cost in enumerate(costs) if cost == least]
        if len(tied) == 1:
            return Ranked(costs, [nodes[tied[0]]])
        worth = self._worth.setdefault(policy, {})
        exact = [column.then(place, self._nodes, worth) for i in tied if (place := places[i]) is not None]
        lowest = min(exact)
        return Ranked(costs, [nodes[i] for i, then in zip(tied, exact, strict=True) if then == lowest])

    def _column(self, policy: Policy, ask: Ask) -> "_Column":
        key = policy, ask
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _Column(ask, self._rankings.of(policy))
            while len(self._columns) > 1 and len(self._columns) * len(self._nodes) > MAX_ENTRIES:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(key)
        return column


class _Column:
    """Costs of all nodes for one kind of pod."""

    def __init__(self, ask: Ask, ranking: Ranking) -> None:
        self._ask = ask
        self._ranking = ranking
        self.first: list[int | None] = []
        self.changed: set[int] = set()
        """Places of nodes that are not looked at yet, beside those behind the end of `first`."""
        self._then: dict[int, int] = {}
        self._alike: dict[NodeRoom, int] = {}
        self._lost = lru_cache(_MOST)(self._lose)
        self._models: dict[str, bool] = {}

    def under(self, ranking: Ranking) -> None:
        """The ranking is another one."""
        if ranking.basis != self._ranking.basis:
            self.first = []
            self.changed.clear()
            self._lost.cache_clear()
        self._ranking = ranking
        self._then.clear()
        self._alike.clear()

    def refresh(self, nodes: Sequence[NodeRoom]) -> None:
        """Look at the nodes that are new or have changed."""
        known: dict[object, int | None] = {}
        for place in self.changed:
            if place < len(self.first):
                self.first[place] = self._first(nodes[place], known)
                self._then.pop(place, None)
        self.changed.clear()
        if len(self._alike) > 2 * len(nodes) + _MOST:
            self._alike.clear()
        if len(self.first) < len(nodes):
            self.first += [self._first(room, known) for room in nodes[len(self.first) :]]

    def then(self, place: int, nodes: Sequence[NodeRoom], worth: dict[int, int]) -> int:
        """What decides about a node among equals, by the worth of nodes as they are."""
        known = self._then.get(place)
        if known is None:
            room = nodes[place]
            known = self._alike.get(room)
            if known is None:
                if place not in worth:
                    worth[place] = self._ranking.worth(room)
                known = self._alike[room] = worth[place] - self._ranking.worth(self._after(room))
            self._then[place] = known
        return known

    def _first(self, room: NodeRoom, known: dict[object, int | None]) -> int | None:
        if not self._ask.fits_host(room.host) or not self._admits(room.model):
            return None
        key: object = room.gpus if self._ranking.by_gpus else room
        if key not in known:
            chosen = self._choose(room.gpus)
            if chosen is None:
                known[key] = None
            elif self._ranking.adds_up:
                known[key] = sum([lost for lost, _ in chosen])
            else:
                known[key] = self._ranking.first(room, self._after(room))
        return known[key]

    def _after(self, room: NodeRoom) -> NodeRoom:
        return room.after(self._ask, tuple([gpu for _, gpu in self._choose(room.gpus) or ()]))

    def _choose(self, gpus: tuple[GpuRoom, ...]) -> list[tuple[int, GpuRoom]] | None:
        """As `ranking.choose`, with what each loses, which is remembered for equal GPUs."""
        fitting = [(lost, gpu) for gpu, lost in zip(gpus, map(self._lost, gpus), strict=True) if lost is not None]
        if len(fitting) < self._ask.gpus:
            return None
        if self._ask.gpus == 1:
            return [min(fitting)]
        fitting.sort()
        return fitting[: self._ask.gpus]

    def _lose(self, gpu: GpuRoom) -> int | None:
        return self._ranking.gpu(gpu, self._ask.need(gpu)) if self._ask.fits(gpu) else None

    def _admits(self, model: str) -> bool:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = accepts(self._ask.models, model)
        return known
