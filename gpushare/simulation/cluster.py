"""What a simulated kube-scheduler is given: nodes, their GPUs, and what pods say of each other. Nodes are numbered."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpushare.simulation.kinds import Kind
from gpushare.simulation.scores import Host, Load


class Gpus(Protocol):
    """The GPUs of all nodes, and who gets which of them."""

    @property
    def epoch(self) -> int:
        """Changes when what `costs` has said may be different."""

    @property
    def fine_epoch(self) -> int:
        """The same of `fine`."""

    def came(self, kind: Kind) -> None:
        """A pod has come, and is placed next."""

    def costs(self, kind: Kind, nodes: Sequence[int]) -> list[int | None]:
        """What each node costs a pod, for which its CPU and memory are enough; None if it does not fit there."""

    def fine(self, kind: Kind, nodes: Sequence[int]) -> list[int]:
        """By which nodes that cost the same and fit are told apart; less is better."""

    def take(self, kind: Kind, node: int, pod: int) -> Any:
        """Give a pod, by the number that its caller has for it, its GPUs of a node where it fits.

        What is returned is for `give`.
        """

    def give(self, node: int, taken: Any) -> None:
        """A pod has left a node."""


class Neighbours(Protocol):
    """Who is where, as far as pods say anything of each other. Pods are known by `Kind.company`."""

    def add(self, pod: Any, node: int, sign: int) -> None:
        """A pod has come to a node; with sign -1 it has left."""

    def admits(self, pod: Any) -> Callable[[int], bool]:
        """Whether a node may take a pod, as things are."""

    def points(self, pod: Any, nodes: Sequence[int]) -> list[int]:
        """Of the nodes, 0 to 100, by pod affinity."""

    def spread(self, pod: Any, nodes: Sequence[int]) -> list[int]:
        """The same by the pod's own topology spread constraints."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """What kube-scheduler knows of nodes."""

    hosts: Sequence[Host]
    used: Sequence[Load] = ()
    """By pods that are there already; nothing for none."""
    zones: Sequence[str | None] = ()
    """Label of each node; nothing for none."""
    replicas: Mapping[Hashable, Mapping[int, int]] = field(default_factory=dict)
    """How many of these pods each owner has on which node."""
    neighbours: Neighbours | None = None
    """None if no pod says anything of others."""
