"""What a picture of the cluster shows. Pure values; the page gets them as JSON with the names that they have here."""

from dataclasses import dataclass

from gpushare.model.gpu import Strength


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one pod holds of one GPU. Memory in MiB."""

    namespace: str
    name: str
    granted_mib: int
    used_mib: int | None = None
    """By all of its containers; None if that is not measured."""
    compute_percent: int = 0
    whole: bool = False
    limit: str
    since: str = ""
    """When it came to its node, as the API server writes times; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU or MIG instance. Memory in MiB."""

    label: str
    uuid: str
    model: str
    total_mib: int
    """What can be handed out; 0 if that is not known."""
    grantable_mib: int = 0
    """The same of an oversubscribed GPU, of which more than it has may be granted; 0 of any other."""
    granted_mib: int
    used_mib: int | None
    """By the pods that are shown; None if no part of it is measured."""
    compute_percent: int
    """Set aside."""
    health: str
    why: str
    """Why nothing new is placed on it; empty if it is healthy."""
    limit: str
    """Of all containers that hold something of it; the weakest where they differ."""
    strength: Strength
    limit_reason: str
    """Why it is not a stronger one; may be empty."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floating:
    """What a pod on a node holds or asks for on no GPU that is known."""

    namespace: str
    name: str
    mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node that shares GPUs."""

    name: str
    address: str
    known: bool
    """Whether the node may be read; else its GPUs are those that the pods that may be read hold."""
    cards: tuple[Card, ...]
    floating: tuple[Floating, ...] = ()
    left_out: tuple[str, ...] = ()
    """GPUs that are not shared as they are, in words."""
    use_problem: str = ""
    """Why it is not known what is used."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pods of one owner that ask for the same and have no GPUs yet."""

    namespace: str
    name: str
    others: int
    """How many more there are of them."""
    asks: str
    headline: str
    reason: str
    good: bool
    """A node takes it; it is a matter of moments."""
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that happened."""

    at: str
    """As the API server writes times."""
    kind: str
    """granted, ended, health, or the reason of an Event."""
    warning: bool
    subject: str
    """NAMESPACE/NAME of a pod, or a GPU."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Of all GPUs that are shown. Memory in MiB."""

    nodes: int = 0
    gpus: int = 0
    unhealthy: int = 0
    """GPUs on which nothing new is placed, cordoned ones included."""
    total_mib: int = 0
    granted_mib: int = 0
    used_mib: int | None = None
    pods: int = 0
    """That hold GPUs."""
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Of the cluster, beside its nodes."""

    server: str
    """The context of the kubeconfig."""
    complete: bool
    """All nodes and pods may be read; else what looks free may be held by pods that are not shown."""
    scope: str
    """What is shown, in words; empty if it is everything."""
    totals: Totals
    notes: tuple[str, ...] = ()
    stale: str = ""
    """Why this is not the state of the moment; empty if it is."""
