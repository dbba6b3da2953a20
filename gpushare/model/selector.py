"""Which GPUs a pod accepts: by what they are, and by who else is on them."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from gpushare.identity import GpuUuid
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
    min_memory_mib: int = 0
    """Of the whole GPU."""
    enforced: bool = False
    """Whether only a limit will do that no container can exceed."""
    mig: MigChoice | None = None
    """None for MIG instances and GPUs alike."""
    physical: bool = False
    """Whether no more may be granted on the GPU than it has."""

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
    text: str
    """As its author wrote it."""

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
    same: LabelSelector | None = None
    """Only GPUs that such a pod holds."""
    other: LabelSelector | None = None
    """Only GPUs that no such pod holds."""
    first: bool = False
    """No one in the cluster is meant by `same` yet but this pod itself, so it may start the group anywhere."""


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
