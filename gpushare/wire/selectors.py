"""What a pod's annotations say about its GPUs: which ones, how they are chosen, beside whom. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from gpushare import names, units
from gpushare.errors import FieldError
from gpushare.model.request import Policy
from gpushare.model.selector import ANY_GPU, Affinity, Choice, GpuSelector, LabelSelector, MigChoice
from gpushare.units import MemoryUnit
from gpushare.wire import labels

_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,60}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")
_MODELS: Final = "write models such as A100 or T4, separated by commas; ! before one excludes it"
_UUIDS: Final = "write UUIDs as nvidia-smi -L prints them, separated by commas; ! before one excludes it"
_MOST: Final = 16
T = TypeVar("T")
Annotations = Mapping[str, str]


def policy(annotations: Annotations, errors: list[FieldError]) -> Policy | None:
    """How GPUs are chosen, or None if the pod does not say."""
    return _read(annotations, names.ANNOTATION_POLICY, parse_policy, errors)


def parse_policy(text: str) -> Policy:
    """A policy by its name.

    Raises:
        ValueError: there is none of this name; the message says which ones there are.
    """
    try:
        return Policy(text)
    except ValueError:
        raise ValueError(f"{text!r:.80} is no policy; write {Policy.known()}") from None


def selector(annotations: Annotations, unit: MemoryUnit, errors: list[FieldError]) -> GpuSelector:
    """What a GPU must be."""
    models = _read(annotations, names.ANNOTATION_MODEL, lambda text: _choice(text, _MODEL.fullmatch, _MODELS), errors)
    uuids = _read(annotations, names.ANNOTATION_UUID, lambda text: _choice(text, _UUID.fullmatch, _UUIDS), errors)
    memory = _read(annotations, names.ANNOTATION_MIN_MEMORY, lambda text: units.parse_memory(text, unit), errors)
    found = GpuSelector(
        models=models or Choice(),
        uuids=uuids or Choice(),
        min_memory_mib=memory or 0,
        enforced=_read(annotations, names.ANNOTATION_LIMIT, _enforced, errors) or False,
        mig=_read(annotations, names.ANNOTATION_MIG, _mig, errors),
        physical=_read(annotations, names.ANNOTATION_OVERSUBSCRIPTION, _never, errors) or False,
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


def _enforced(text: str) -> bool:
    if text != names.ENFORCED:
        raise ValueError(f"{text!r:.80} is no strength of a limit; write {names.ENFORCED}, or remove the annotation")
    return True


def _never(text: str) -> bool:
    if text != names.NEVER:
        problem = f"{text!r:.80} does not refuse oversubscription, which is all that a pod can say of it"
        raise ValueError(f"{problem}; write {names.NEVER}, or remove the annotation")
    return True


def _mig(text: str) -> MigChoice:
    try:
        return MigChoice(text)
    except ValueError:
        known = " or ".join(choice.value for choice in MigChoice)
        raise ValueError(f"{text!r:.80} does not say whether MIG instances are taken; write {known}") from None


def _labels(text: str) -> LabelSelector:
    try:
        return labels.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; {labels.FIX}") from None
