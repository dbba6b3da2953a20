"""Labels and annotations of a pod as admission leaves them. Pure and idempotent."""

from collections.abc import Iterable
from typing import Final

from gpushare import names
from gpushare.model.gpu import HandOver
from gpushare.model.request import ContainerRequest
from gpushare.wire.fields import JsonObject
from webhook import containers, objects

_LISTS: Final = ("initContainers", "containers")
_OURS: Final = (names.ANNOTATION_OVERRIDDEN, names.ANNOTATION_HAND_OVER)
"""Written for each pod that needs them, and by no one else."""


def of_gpu_pod(
    pod: JsonObject, spec: JsonObject, container_requests: Iterable[ContainerRequest], *, only_cdi: bool = False
) -> JsonObject:
    """The pod with the metadata of one that asks for GPUs; its spec is not touched.

    Args:
        pod: as it came.
        spec: as it is admitted.
        container_requests: what its containers ask for.
        only_cdi: whether only nodes that hand over by CDI show it its GPUs.
    """
    labels = {**_labels(pod), names.LABEL_MANAGED: "true"}
    if any(request.memory_percent for request in container_requests):
        labels[names.NANO_ASSUME] = "true"  # nano-gpu's tools list pods by it, and a Binding cannot set labels
    annotations = _annotations(pod)
    if names.ANNOTATION_GPUS in annotations:
        annotations.setdefault(names.ANNOTATION_TOTALS, "true")
    if overridden := _overridden(pod, spec):
        annotations[names.ANNOTATION_OVERRIDDEN] = overridden
    if only_cdi:
        annotations[names.ANNOTATION_HAND_OVER] = HandOver.CDI.value
    return _with(pod, labels, annotations)


def demanding_limit(pod: JsonObject) -> JsonObject:
    """The pod with a demand for an enforced limit; what its author wrote there stays, and is read as any request."""
    return _with(pod, objects.labels(pod), {names.ANNOTATION_LIMIT: names.ENFORCED, **objects.annotations(pod)})


def of_other_pod(pod: JsonObject) -> JsonObject:
    """The pod with the metadata of one that asks for none."""
    return _with(pod, _labels(pod), _annotations(pod))


def _overridden(pod: JsonObject, spec: JsonObject) -> str:
    """Names of the containers whose author chose devices himself, for the Event that the controller posts.

    An earlier call of the webhook has replaced his choice already. What it noted then stays if the container is as we
    leave it; an author who forges all of that has no more of it than an Event on his own pod.
    """
    noted = objects.annotations(pod).get(names.ANNOTATION_OVERRIDDEN, "").split(",")
    overridden = []
    for field in _LISTS:
        for old, new in zip(pod["spec"].get(field) or (), spec.get(field) or (), strict=True):
            is_ours = containers.env_of_devices(old) == containers.env_of_devices(new)
            if containers.overridden(old, new) or (is_ours and new["name"] in noted):
                overridden.append(new["name"])
    return ",".join(overridden)


def _labels(pod: JsonObject) -> dict[str, str]:
    return {key: value for key, value in objects.labels(pod).items() if key != names.LABEL_MANAGED}


def _annotations(pod: JsonObject) -> dict[str, str]:
    return {key: value for key, value in objects.annotations(pod).items() if not _is_not_the_authors(key)}


def _is_not_the_authors(annotation: str) -> bool:
    """Whether admission removes it: the NVIDIA runtime reads CDI annotations before the variable that is set here."""
    return names.is_reserved(annotation) or names.is_cdi(annotation) or annotation in _OURS


def _with(pod: JsonObject, labels: dict[str, str], annotations: dict[str, str]) -> JsonObject:
    metadata = dict(pod.get("metadata") or {})
    if annotations != objects.annotations(pod):
        metadata["annotations"] = annotations
    if labels != objects.labels(pod):
        metadata["labels"] = labels
    return {**pod, "metadata": metadata} if metadata else dict(pod)
