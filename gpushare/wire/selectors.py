"""What a pod's annotations say about its GPUs: which ones, how they are chosen, beside whom. Pure."""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeVar

from gpushare import names, units
from gpushare.errors import FieldError
from gpushare.model.request import Policy
from gpushare.model.selector import (
    ANY_GPU,
    Affinity,
    Choice,
    GpuSelector,
    LabelSelector,
    MigChoice,
    Operator,
    Requirement,
)
from gpushare.units import MemoryUnit

_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,60}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")
_MODELS: Final = "write models such as A100 or T4, separated by commas; ! before one excludes it"
_UUIDS: Final = "write UUIDs as nvidia-smi -L prints them, separated by commas; ! before one excludes it"
_MOST: Final = 16
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?P<key>(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME})"
_VALUE: Final = re.compile(rf"(?:{_NAME})?")
_EXISTS: Final = re.compile(rf"(?P<absent>!)?\s*{_KEY}")
_EQUAL: Final = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>\S*)")
_SET: Final = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMA: Final = re.compile(r",(?![^()]*\))")
_LONGEST: Final = 256  # characters; it is matched against every pod of a node, and told for every GPU
LABELS_FIX: Final = "write a label selector such as app=web or app in (web, api)"
T = TypeVar("T")
Annotations = Mapping[str, str]


def policy(annotations: Annotations, errors: list[FieldError]) -> Policy | None:
    return _read(annotations, names.ANNOTATION_POLICY, parse_policy, errors)


def parse_policy(text: str) -> Policy:
    """A policy by its name. Raises ValueError, which says which ones there are."""
    try:
        return Policy(text)
    except ValueError:
        raise ValueError(f"{text!r:.80} is no policy; write {Policy.known()}") from None


def selector(annotations: Annotations, unit: MemoryUnit, errors: list[FieldError]) -> GpuSelector:
    models = _read(annotations, names.ANNOTATION_MODEL, lambda text: _choice(text, _MODEL.fullmatch, _MODELS), errors)
    uuids = _read(annotations, names.ANNOTATION_UUID, lambda text: _choice(text, _UUID.fullmatch, _UUIDS), errors)
    memory = _read(annotations, names.ANNOTATION_MIN_MEMORY, lambda text: units.parse_memory(text, unit), errors)
    found = GpuSelector(
        models=models or Choice(),
        uuids=uuids or Choice(),
        min_memory_mib=memory or 0,
        enforced=_read(annotations, names.ANNOTATION_LIMIT, _ENFORCED, errors) or False,
        mig=_read(annotations, names.ANNOTATION_MIG, _mig, errors),
        physical=_read(annotations, names.ANNOTATION_OVERSUBSCRIPTION, _NEVER, errors) or False,
    )
    return ANY_GPU if found == ANY_GPU else found


def affinity(annotations: Annotations, namespace: str, errors: list[FieldError]) -> Affinity | None:
    """Beside whom, or None if the pod does not say."""
    same = _read(annotations, names.ANNOTATION_SAME_GPU, _labels, errors)
    other = _read(annotations, names.ANNOTATION_OTHER_GPU, _labels, errors)
    if same is None and other is None:
        return None
    return Affinity(namespace=namespace, same=same, other=other)


def _read(annotations: Annotations, key: str, read: Callable[[str], T], errors: list[FieldError]) -> T | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.80} is not a string; write it in quotes")  # noqa: TRY301, TRY004 - one place for all
        return read(text)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        errors.append(FieldError(f"metadata.annotations[{key}]", problem, fix))
        return None


def _choice(text: str, check: Callable[[str], object], fix: str) -> Choice:
    wanted: list[str] = []
    unwanted: list[str] = []
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _MOST:
        raise ValueError(f"{len(parts)} entries are more than {_MOST}; {fix}")
    for part in parts:
        value = part.removeprefix("!").strip()
        if not check(value):
            raise ValueError(f"{part!r:.80} is none; {fix}")
        (unwanted if part.startswith("!") else wanted).append(value)
    return Choice(wanted=tuple(wanted), unwanted=tuple(unwanted))


def _only(word: str, problem: str) -> Callable[[str], bool]:
    """The only word that an annotation may have."""

    def read(text: str) -> bool:
        if text != word:
            raise ValueError(f"{text!r:.80} {problem}; write {word}, or remove the annotation")
        return True

    return read


_ENFORCED: Final = _only(names.ENFORCED, "is no strength of a limit")
_NEVER: Final = _only(names.NEVER, "does not refuse oversubscription, which is all that a pod can say of it")


def _mig(text: str) -> MigChoice:
    try:
        return MigChoice(text)
    except ValueError:
        known = " or ".join(choice.value for choice in MigChoice)
        raise ValueError(f"{text!r:.80} does not say whether MIG instances are taken; write {known}") from None


def _labels(text: str) -> LabelSelector:
    try:
        return parse_labels(text)
    except ValueError as error:
        raise ValueError(f"{error}; {LABELS_FIX}") from None


def parse_labels(text: str) -> LabelSelector:
    """Read a selector such as `app=web,tier in (a, b),!canary`. Raises ValueError, which says why it is none."""
    if not text.strip():
        raise ValueError("it is empty, which would mean every pod")
    if len(text) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST} characters")
    parts = list(dict.fromkeys(part.strip() for part in _COMMA.split(text)))
    return LabelSelector(tuple(_requirement(part) for part in parts), ", ".join(parts))


def _requirement(text: str) -> Requirement:
    if match := _EXISTS.fullmatch(text):
        return Requirement(match["key"], Operator.ABSENT if match["absent"] else Operator.EXISTS)
    match = _EQUAL.fullmatch(text) or _SET.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is no condition on a label")
    values = tuple(value.strip() for value in match["values"].split(","))
    for value in values:
        if _VALUE.fullmatch(value) is None:
            raise ValueError(f"{value!r:.80} cannot be the value of a label")
    return Requirement(match["key"], Operator.NOT_IN if match["operator"] in {"!=", "notin"} else Operator.IN, values)


class Framework(Enum):
    JAX = "jax"
    PADDLE = "paddle"
    CUPY = "cupy"
    PYTORCH = "pytorch"


DEFAULT_FRAMEWORKS: Final = (Framework.JAX, Framework.PADDLE, Framework.CUPY)
"""Without PyTorch, which ends with an error before 2.10 when it reads a key that it does not know."""
FRAMEWORK_VARIABLES: Final[Mapping[Framework, tuple[str, ...]]] = MappingProxyType(
    {
        # With both set, JAX ends with an error. The older one is read by all versions.
        Framework.JAX: ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
        Framework.PADDLE: ("FLAGS_gpu_memory_limit_mb",),
        Framework.CUPY: ("CUPY_GPU_MEMORY_LIMIT",),
        Framework.PYTORCH: ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    }
)  # the variable that is written, and others that mean the same
VARIABLES: Final = frozenset(name for several in FRAMEWORK_VARIABLES.values() for name in several)  # all of them
_NONE: Final = "none"


def frameworks(text: str | None) -> tuple[Framework, ...]:
    """Names with commas between them, or `none`; None without the annotation. Raises ValueError with a fix."""
    if text is None:
        return DEFAULT_FRAMEWORKS
    words = [word.strip() for word in text.split(",")]
    if words == [_NONE]:
        return ()
    known = {framework.value: framework for framework in Framework}
    fix = f"write {_NONE}, or some of {', '.join(known)}, each once, with commas between them"
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"{unknown[0]!r:.80} is no framework that gpushare knows; {fix}")
    if len(set(words)) != len(words):
        raise ValueError(f"{text!r:.80} names a framework twice; {fix}")
    return tuple(known[word] for word in words)
