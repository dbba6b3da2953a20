"""What a pod asks for, after all spellings were normalised."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, assert_never

from gpushare.identity import ContainerName, GpuUuid, PodRef
from gpushare.model.gpu import Gpu

_SHOWN: Final = 80  # characters; refusals repeat a selector for every GPU and node
_SEPARATORS: Final = re.compile(r"[\s_/-]+")
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?P<key>(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME})"
_VALUE: Final = re.compile(rf"(?:{_NAME})?")
_EXISTS: Final = re.compile(rf"(?P<absent>!)?\s*{_KEY}")
_EQUAL: Final = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>\S*)")
_SET: Final = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMA: Final = re.compile(r",(?![^()]*\))")
_LONGEST: Final = 256  # characters; a selector is matched against every pod of a node, and told for every GPU
_LABELS_FIX: Final = "write a label selector such as app=web or app in (web, api)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Values that are wanted and values that are not. Without wanted ones, all are but the unwanted."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def admits(self, matches: Callable[[str], bool]) -> bool:
        """Whether something passes, by what says of each value if it is meant."""
        if any(map(matches, self.unwanted)):
            return False
        return not self.wanted or any(map(matches, self.wanted))

    def __str__(self) -> str:
        return _cut(", ".join([*self.wanted, *(f"not {value}" for value in self.unwanted)]))


_ALL: Final = Choice()


class MigChoice(Enum):
    ONLY = "only"
    NEVER = "never"


def takes_mig(choice: MigChoice | None, gpus: int, *, whole: bool) -> bool:
    """Whether a container for so many GPUs, or whole ones, may get a MIG instance.

    CUDA uses one instance in a process, and nothing else. Who asks for a whole GPU expects a card, unless the pod wants
    instances only.
    """
    return gpus <= 1 and (not whole or choice is MigChoice.ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSelector:
    models: Choice = _ALL
    uuids: Choice = _ALL
    min_memory_mib: int = 0  # of the whole GPU
    enforced: bool = False  # whether only a limit will do that no container can exceed
    mig: MigChoice | None = None  # None for MIG instances and GPUs alike
    physical: bool = False  # whether no more may be granted on the GPU than it has

    def why_not(self, gpu: Gpu) -> str:
        """In two or three words why a GPU is not among them; empty if it is."""
        if not self.uuids.admits(lambda uuid: GpuUuid(uuid) == gpu.uuid):
            return "other UUID"
        if not accepts(self.models, gpu.model):
            return "other model"
        if gpu.memory_mib < self.min_memory_mib:
            return "too small"
        if self.enforced and not gpu.limit.enforced:
            return f"limit {gpu.limit.value}"
        if self.mig is not None and (gpu.mig is None) == (self.mig is MigChoice.ONLY):
            return "MIG" if gpu.mig else "no MIG"
        if self.physical and gpu.extra_mib:
            return "oversubscribed"
        return ""

    def __str__(self) -> str:
        parts = []
        if self.models != _ALL:
            parts.append(f"model {self.models}")
        if self.uuids != _ALL:
            parts.append(f"UUID {self.uuids}")
        if self.min_memory_mib:
            parts.append(f"at least {self.min_memory_mib} MiB in all")
        if self.enforced:
            parts.append("an enforced limit")
        if self.mig is not None:
            parts.append("MIG" if self.mig is MigChoice.ONLY else "no MIG")
        if self.physical:
            parts.append("no oversubscription")
        return " and ".join(parts)


ANY_GPU: Final = GpuSelector()


def accepts(models: Choice, model: str) -> bool:
    """Whether a choice of models admits a GPU of this one."""
    return models.admits(lambda meant: is_model(model, meant))


def is_model(model: str, meant: str) -> bool:
    """Whether a model's name has the words that are meant, side by side: A10 is not meant by A100, nor the reverse.

    Upper and lower case are the same; words end at blanks, hyphens, underscores and slashes.
    """
    words, wanted = _words(model), _words(meant)
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def model_pattern(meant: Iterable[str]) -> str:
    """A regular expression (RE2) that finds one of these in a model's name exactly where `is_model` does."""
    any_of = "|".join(r"[\s_/-]+".join(map(re.escape, _words(each))) for each in meant)
    return rf"(?i)(^|[\s_/-])({any_of})([\s_/-]|$)"


@functools.lru_cache(maxsize=1024)
def _words(text: str) -> tuple[str, ...]:
    # Nodes have few models, and each is compared with every name that pods choose by.
    return tuple(word for word in _SEPARATORS.split(text.lower()) if word)


class Operator(Enum):
    """With Kubernetes' words for them."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    ABSENT = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Requirement":
        """Raises ValueError, which says why it is none, and what to write."""
        if match := _EXISTS.fullmatch(text):
            return cls(match["key"], Operator.ABSENT if match["absent"] else Operator.EXISTS)
        match = _EQUAL.fullmatch(text) or _SET.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r:.80} is no condition on a label; {_LABELS_FIX}")
        values = tuple(value.strip() for value in match["values"].split(","))
        for value in values:
            if _VALUE.fullmatch(value) is None:
                raise ValueError(f"{value!r:.80} cannot be the value of a label; {_LABELS_FIX}")
        return cls(match["key"], Operator.NOT_IN if match["operator"] in {"!=", "notin"} else Operator.IN, values)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it. As in Kubernetes, a label that is absent is not in any set."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return self.key not in labels or labels[self.key] not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.ABSENT:
                return self.key not in labels
            case _:
                assert_never(self.operator)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Pods by their labels: all conditions must hold."""

    requirements: tuple[Requirement, ...]
    text: str  # as its author wrote it

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        """Read one such as `app=web,tier in (a, b),!canary`. Raises ValueError as a requirement does."""
        if not text.strip():
            raise ValueError(f"it is empty, which would mean every pod; {_LABELS_FIX}")
        if len(text) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} characters; {_LABELS_FIX}")
        parts = list(dict.fromkeys(part.strip() for part in _COMMA.split(text)))
        return cls(tuple(map(Requirement.parse, parts)), ", ".join(parts))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.holds(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return _cut(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Whose GPUs are shared and whose are avoided, among the pods of one namespace."""

    namespace: str
    same: LabelSelector | None = None  # only GPUs that such a pod holds
    other: LabelSelector | None = None  # only GPUs that no such pod holds
    first: bool = False  # `same` means no one in the cluster yet but this pod, which may start the group anywhere


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


MAX_CONTAINERS: Final = 512  # of each kind in a pod; more than any node runs
MAX_ASKING: Final = 64
"""Containers of a pod that ask for GPUs. Placement looks at each of them on every node while kube-scheduler waits."""


class ContainerKind(Enum):
    """When a container runs, which decides how its share adds to the others'."""

    INIT = "init"  # runs to its end before the next starts; its share counts by maximum
    SIDECAR = "sidecar"  # a restartable init container: from its start to the pod's end
    APP = "app"


class Policy(Enum):
    """How nodes and their GPUs are chosen. `placement.policies.POLICIES` has a row for each."""

    BINPACK = "binpack"  # the fullest GPU with room, on the fullest node
    SPREAD = "spread"  # the emptiest
    DENSE = "dense"  # where the pod takes the least from the pods to come
    FGD = "fgd"  # fragmentation gradient descent, as published

    @classmethod
    def known(cls) -> str:
        *others, last = (policy.value for policy in cls)
        return f"{', '.join(others)} or {last}"

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """By its name. Raises ValueError, which says which ones there are."""
        try:
            return cls(text)
        except ValueError:
            raise ValueError(f"{text!r:.80} is no policy; write {cls.known()}") from None


DEFAULT_POLICY: Final = Policy.DENSE
"""Of pods that name none, where neither their namespace nor the cluster's settings do."""


class Need(NamedTuple):
    memory_mib: int
    compute_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One container's request: `gpu_count` different GPUs of one node, with the same on each.

    How much memory is said in one of three ways: in MiB, as a part of whatever the GPU has, or as whole GPUs.
    """

    container: ContainerName
    kind: ContainerKind = ContainerKind.APP
    memory_mib: int = 0  # MiB on each GPU
    memory_percent: int = 0  # per cent of each GPU's memory, 1 to 100
    compute_percent: int = 0  # per cent of each GPU's compute, up to 100; 0 leaves it to be shared freely
    whole: bool = False  # GPUs that no one else uses, with all they have
    gpu_count: int = 1

    def __post_init__(self) -> None:
        ways = (self.memory_mib > 0) + (self.memory_percent > 0) + self.whole
        small = min(self.memory_mib, self.memory_percent, self.compute_percent) < 0
        if ways != 1 or small or max(self.memory_percent, self.compute_percent) > 100 or self.gpu_count < 1:
            raise ValueError(
                f"container {self.container}: {self.memory_mib} MiB, {self.memory_percent} % of memory,"
                f" {self.compute_percent} % of compute, whole {self.whole}, on {self.gpu_count} GPUs"
            )

    def need(self, gpu: Gpu) -> Need:
        """What it would take from this GPU. Parts are rounded down, so that parts of 100 % always fit together."""
        if self.whole:
            return Need(gpu.memory_mib, 100)
        if self.memory_percent:
            return Need(max(gpu.memory_mib * self.memory_percent // 100, 1), self.compute_percent)
        return Need(self.memory_mib, self.compute_percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """All that placement needs to know of a pod; equal for all replicas of a workload, so results are cached by it."""

    containers: tuple[ContainerRequest, ...]
    """Only those that ask, in the order in which they start: init containers and sidecars, then app containers."""
    policy: Policy | None = None  # None for the cluster's default
    gpus: GpuSelector = ANY_GPU
    affinity: Affinity | None = None
    only_cdi: bool = False  # only nodes that hand over by CDI show it GPUs: it was made without a RuntimeClass

    def why_not(self, gpu: Gpu) -> str:
        """In two or three words why it may not have a GPU, whatever is free; only other hardware changes that."""
        if (why := self.gpus.why_not(gpu)) or not self.gpus.enforced:
            return why
        part = any(not gpu.limit_of(request.need(gpu).memory_mib).enforced for request in self.containers)
        return "only a part of MIG" if part else ""

    def takes(self, container: ContainerRequest, gpu: Gpu) -> bool:
        """Whether one of its containers may get a GPU, if that may be a MIG instance."""
        return gpu.mig is None or takes_mig(self.gpus.mig, container.gpu_count, whole=container.whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    pod: PodRef
    shape: RequestShape
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    app_containers: tuple[str, ...] = ()
    """Names in the order of `spec.containers`: other systems' annotations count by it."""
    cpu_milli: int = 0  # what it requests of the host, as `host_mib`
    host_mib: int = 0
