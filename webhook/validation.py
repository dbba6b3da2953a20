"""Who may change what of a pod after it was created. Pure; never changes anything.

A binding is what the controller wrote in it; a request is what admission understood. Neither may change afterwards
behind the back of the ledger. CDI annotations would choose devices past every binding, so no one may write them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gpushare import names
from gpushare.errors import FieldError
from gpushare.units import ResourceConfig
from gpushare.wire import pods
from gpushare.wire.fields import JsonObject
from webhook import review
from webhook.edits import OURS
from webhook.review import Review

_GUARDED: Final = frozenset({"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"})
_REQUEST_ANNOTATIONS: Final = frozenset({*names.REQUEST_ANNOTATIONS, names.ANNOTATION_TOTALS})
_REQUEST_LABELS: Final = (names.LABEL_GPU_COUNT, names.NANO_ASSUME)
_CONTROLLER: Final = names.SERVICE_ACCOUNT_CONTROLLER
_CDI: Final = "it would choose devices past the scheduler"


def validate(request: Review, controller: str, resource_config: ResourceConfig) -> None:
    """For the validating webhook; `controller` may write bindings. Raises InvalidRequestError: it is refused."""
    review.refuse(_errors(request, resource_config, by_controller=request.user == controller))


def _errors(request: Review, resource_config: ResourceConfig, *, by_controller: bool) -> Iterator[FieldError]:
    match request.operation, request.resource:
        case "UPDATE", resource if resource in _GUARDED:
            after, before = review.with_metadata(request.obj), review.with_metadata(request.old)
            return _updated(after, before, resource_config, by_controller=by_controller)
        case "CREATE", "pods" if not by_controller:
            return _forged(request.obj, f"only {_CONTROLLER} may write it", names.is_reserved)
        # The older form, without the pod's name in the path, has the same effect.
        case "CREATE", "pods/binding" | "bindings" if not by_controller:
            return _bound(request.obj)
        case _:
            return iter(())


def _bound(binding: object) -> Iterator[FieldError]:
    """Errors of a Binding that anyone but the controller makes.

    The API server writes its annotations on the pod, and from 1.35 on its labels, over those that are there.
    """

    def is_reserved(key: str) -> bool:
        return names.is_reserved(key) or key in _REQUEST_ANNOTATIONS or key in names.WEBHOOK_ANNOTATIONS

    yield from _forged(binding, f"only {_CONTROLLER} may write it in a Binding", is_reserved)
    for key in (*_REQUEST_LABELS, names.LABEL_MANAGED):
        if key in review.labels(review.with_metadata(binding)):
            yield FieldError(f"metadata.labels[{key}]", "it would change the pod's request or its mark", "remove it")


def _forged(value: object, problem: str, is_reserved: Callable[[str], bool]) -> Iterator[FieldError]:
    for key in sorted(pods.annotations(review.with_metadata(value))):
        if names.is_cdi(key):
            yield FieldError(_annotation(key), _CDI, "remove it, and ask for GPUs by resources.limits")
        elif is_reserved(key):
            yield FieldError(_annotation(key), problem, "remove it")


def _updated(
    pod: JsonObject, old: JsonObject, resource_config: ResourceConfig, *, by_controller: bool
) -> Iterator[FieldError]:
    annotations = _changes(pods.annotations(old), pods.annotations(pod))
    labels = _changes(review.labels(old), review.labels(pod))
    for key in annotations:
        if names.is_cdi(key) and key in pods.annotations(pod):
            yield FieldError(_annotation(key), _CDI, "leave it out, and create a new pod that asks by resources.limits")
    if not by_controller:
        for key in filter(names.is_reserved, annotations):
            yield FieldError(_annotation(key), f"only {_CONTROLLER} may change it", "leave it as it is")
        if names.LABEL_MANAGED in labels and names.LABEL_MANAGED in review.labels(old):
            path = f"metadata.labels[{names.LABEL_MANAGED}]"
            yield FieldError(path, f"only {_CONTROLLER} may change it", "leave it as it is")
    if any(pods.problems(pod, "")) or not pods.needs_gpu(pod, resource_config):  # some subresources carry other kinds
        return
    for key in OURS:
        if key in annotations:
            problem = f"only {names.WEBHOOK_SERVICE} may write it, when the pod is created"
            yield FieldError(_annotation(key), problem, "leave it as it is")
    fixed = [_annotation(key) for key in annotations if key in _REQUEST_ANNOTATIONS]
    fixed += [f"metadata.labels[{key}]" for key in _REQUEST_LABELS if key in labels]
    for path in fixed:
        yield FieldError(path, "part of the GPU request, which is fixed when the pod is created", "create a new pod")


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


def _annotation(key: str) -> str:
    return f"metadata.annotations[{key}]"
