"""What is written into a pod, and by which rules. Pure and idempotent; returns new objects.

In Kubernetes the last of several `env` entries of one name counts, and `env` beats `envFrom`, the image and the device
plugin. So a variable that must hold is written, not only removed, and is the only one of its name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.model.gpu import HandOver
from gpushare.model.request import ContainerRequest
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import claim_templates, pods, requests
from gpushare.wire.claim_templates import Template
from gpushare.wire.fields import JsonObject
from webhook.review import labels
from webhook.runtimeclass import RuntimeClassChoice

LISTS: Final = ("initContainers", "containers")  # in the order of `pods.containers`
# Annotations that no one else writes.
OURS: Final = (names.ANNOTATION_OVERRIDDEN, names.ANNOTATION_HAND_OVER, names.CLAIM_TEMPLATE)
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decided, and where what holds in the cluster right now is looked up."""

    resource_config: ResourceConfig  # which resources are ours, and what one unit of them is
    runtime_class: Callable[[], RuntimeClassChoice]  # for GPU pods that name none. Raises UnknownRuntimeClassError.
    scheduler: str = names.SCHEDULER  # for GPU pods that name none; empty to leave the cluster's default
    other_schedulers: tuple[str, ...] = ()  # further ones that ask the controller as an extender
    claims: bool = False  # whether GPU pods get claims, as those of a namespace with the label do
    demands_limit: bool = False  # whether GPU pods demand an enforced limit, as those of a namespace with the label do
    foreign_resources: tuple[str, ...] = names.PLUGIN_RESOURCES
    """Resources of other GPU plugins that choose the devices of the containers that ask for them; a trailing * stands
    for any ending. A container with any other resource gets no GPU by it, so none is shown to it."""

    def is_foreign(self, resource: str) -> bool:
        return resource not in self.resource_config.resources and any(
            resource.startswith(each[:-1]) if each.endswith("*") else resource == each
            for each in self.foreign_resources
        )


# Containers.


def each_container(spec: JsonObject, lists: Sequence[str], edit: Callable[[JsonObject], JsonObject]) -> JsonObject:
    return {**spec, **{each: [edit(container) for container in spec[each]] for each in lists if spec.get(each)}}


def pairs(before: JsonObject, after: JsonObject, lists: Sequence[str]) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Each container of two pod specs."""
    for each in lists:
        yield from zip(before.get(each) or (), after.get(each) or (), strict=True)


def grant(container: JsonObject, request: ContainerRequest, *, pod_units: int, unit: MemoryUnit) -> JsonObject:
    """A container that asks for GPUs, in a pod that asks for so many units of gpu-mem in all."""
    ours = list(_grants(container["name"], request, pod_units=pod_units, unit=unit))
    before = container.get("env") or []
    if not _of_name(before, names.ENV_DRIVER_CAPABILITIES):
        ours.append(_fixed(names.ENV_DRIVER_CAPABILITIES, names.DRIVER_CAPABILITIES_DEFAULT))
    return {**container, "env": _write(before, ours), "resources": _resources(container["resources"], request, unit)}


def isolate(container: JsonObject, rules: Rules | None = None) -> JsonObject:
    """A container that was granted no GPU: whatever its image and author say, the NVIDIA runtime leaves it alone.

    What another plugin serves by these rules sets its devices itself, which the author's words must not beat.
    """
    before = container.get("env") or []
    if rules and foreign(container, rules):
        kept = [entry for entry in before if entry.get("name") != names.ENV_VISIBLE_DEVICES]
        return container if len(kept) == len(before) else {**container, "env": kept}
    if _of_name(before, names.ENV_VISIBLE_DEVICES) == [_VOID]:
        return container
    return {**container, "env": _write(before, [_VOID])}


def without_zero(container: JsonObject) -> JsonObject:
    resources = container.get("resources") or {}
    kept = {
        field: {key: amount for key, amount in values.items() if key != names.GPU or str(amount).strip() != "0"}
        for field in ("limits", "requests")
        if (values := resources.get(field))
    }
    return {**container, "resources": {**resources, **kept}} if kept else container


def foreign(container: Mapping[str, Any], rules: Rules) -> str | None:
    """A resource of another GPU plugin that it asks for; that plugin then sets the container's devices itself."""
    return next(
        (
            resource
            for _, resource, amount in pods.named_resources(container)
            if rules.is_foreign(resource) and (units.quantity(amount) or 0) > 0
        ),
        None,
    )


def overridden(container: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The author's `NVIDIA_VISIBLE_DEVICES` that `now` replaces, for a warning; None if there was none."""
    before, after = env_of_devices(container), env_of_devices(now)
    if not before or before[-1:] == after[-1:]:  # the last one counts
        return None
    value = before[-1].get("value")
    return repr(value) if isinstance(value, str) and len(value) <= 40 else "its value"


def env_of_devices(container: Mapping[str, Any]) -> list[Entry]:
    return _of_name(container.get("env") or (), names.ENV_VISIBLE_DEVICES)


def memory_units(container_requests: Iterable[ContainerRequest], unit: MemoryUnit) -> int:
    """Units of gpu-mem that these containers take from the node, over all their GPUs."""
    counted = (requests.counted(request, unit) for request in container_requests)
    return sum(amount for resource, amount in counted if resource == names.GPU_MEM)


def _grants(name: str, request: ContainerRequest, *, pod_units: int, unit: MemoryUnit) -> Iterator[Entry]:
    """A container with whole GPUs has no limits. How much a part of a GPU is, is known when the GPU is."""
    yield _from_annotation(names.ENV_VISIBLE_DEVICES, names.PREFIX_DEVICES + name)
    if request.whole:
        return
    yield _from_annotation(names.ENV_MEMORY_MIB, names.PREFIX_MEMORY + name)
    # The kubelet puts in what an entry before this one says.
    limit = f"$({names.ENV_MEMORY_MIB})" if request.memory_percent else request.memory_mib
    if not request.memory_percent:
        yield _from_annotation(names.ALIYUN_IDX, names.PREFIX_INDEX + name)
        yield _from_annotation(names.ALIYUN_DEV, names.PREFIX_CAPACITY + name)
        yield _fixed(names.ALIYUN_CONTAINER, str(memory_units([request], unit)))
        yield _fixed(names.ALIYUN_POD, str(pod_units))
    # One for each visible GPU: CUDA drops all limits if one of them names a GPU that it does not see.
    limits = ",".join(f"{ordinal}={limit}M" for ordinal in range(request.gpu_count))
    yield _fixed(names.ENV_MPS_MEMORY_LIMIT, limits)
    if request.compute_percent:
        yield _fixed(names.ENV_MPS_THREAD_PERCENTAGE, str(request.compute_percent))


def _resources(resources: JsonObject, request: ContainerRequest, unit: MemoryUnit) -> JsonObject:
    """With what the kubelet counts as the limit, and requests that are equal, as they must be."""
    resource, amount = requests.counted(request, unit)
    limits, asked = dict(resources["limits"]), dict(resources.get("requests") or {})
    if units.parse_amount(limits[resource]) != amount:
        limits[resource] = asked[resource] = str(amount)
    for ours in (resource, names.GPU_CORE):
        if ours in limits:
            asked.setdefault(ours, limits[ours])
    return {**resources, "limits": limits, "requests": asked}


def _fixed(name: str, value: str) -> Entry:
    return {"name": name, "value": value}


_VOID: Final = _fixed(names.ENV_VISIBLE_DEVICES, names.VISIBLE_DEVICES_NONE)


def _from_annotation(name: str, annotation: str) -> Entry:
    """A variable that the kubelet fills from an annotation of the pod when the container starts; empty if it lacks."""
    return {
        "name": name,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}},
    }


def _of_name(env: Sequence[Entry], name: str) -> list[Entry]:
    return [entry for entry in env if entry.get("name") == name]


def _write(env: Sequence[Entry], ours: Sequence[Entry]) -> list[Entry]:
    """The list with `ours` as the only entries of their names.

    They come first, so that `$(NAME)` in the author's entries refers to them.
    """
    taken = [entry["name"] for entry in ours]
    return [*ours, *(entry for entry in env if entry.get("name") not in taken)]


# Labels and annotations.


def of_gpu_pod(
    pod: JsonObject, spec: JsonObject, container_requests: Iterable[ContainerRequest], *, only_cdi: bool = False
) -> JsonObject:
    """The pod with the metadata of one that asks for GPUs and is admitted with this spec; its own is not touched."""
    kept = {**_labels(pod), names.LABEL_MANAGED: "true"}
    if any(request.memory_percent for request in container_requests):
        kept[names.NANO_ASSUME] = "true"  # nano-gpu's tools list pods by it, and a Binding cannot set labels
    notes = _annotations(pod)
    if names.ANNOTATION_GPUS in notes:
        notes.setdefault(names.ANNOTATION_TOTALS, "true")
    if replaced := _overridden(pod, spec):
        notes[names.ANNOTATION_OVERRIDDEN] = replaced
    if only_cdi:
        notes[names.ANNOTATION_HAND_OVER] = HandOver.CDI.value
    return _with(pod, kept, notes)


def demanding_limit(pod: JsonObject) -> JsonObject:
    """The pod with a demand for an enforced limit; what its author wrote there stays, and is read as any request."""
    return _with(pod, labels(pod), {names.ANNOTATION_LIMIT: names.ENFORCED, **pods.annotations(pod)})


def of_claiming_pod(pod: JsonObject, template: Template) -> JsonObject:
    marks = {names.CLAIM_TEMPLATE: template.name}
    return _with(pod, {**_labels(pod), **marks}, {**_annotations(pod), names.CLAIM_TEMPLATE: template.text})


def of_other_pod(pod: JsonObject) -> JsonObject:
    # Written by an earlier call. Who forges it in a namespace with claims gets what gpu-mem would get them there, and
    # elsewhere the controller makes no template.
    if (template := claim_templates.of_pod(pod)) is not None:
        return of_claiming_pod(pod, template)
    return _with(pod, _labels(pod), _annotations(pod))


def _overridden(pod: JsonObject, spec: JsonObject) -> str:
    """Names of the containers whose author chose devices himself, for the Event that the controller posts.

    An earlier call of the webhook has replaced his choice already. What it noted then stays if the container is as we
    leave it; an author who forges all of that has no more of it than an Event on his own pod.
    """
    noted = pods.annotations(pod).get(names.ANNOTATION_OVERRIDDEN, "").split(",")
    return ",".join(
        new["name"]
        for old, new in pairs(pod["spec"], spec, LISTS)
        if overridden(old, new) or (env_of_devices(old) == env_of_devices(new) and new["name"] in noted)
    )


def _labels(pod: JsonObject) -> dict[str, str]:
    return {key: value for key, value in labels(pod).items() if key != names.LABEL_MANAGED}


def _annotations(pod: JsonObject) -> dict[str, str]:
    """Those that are the author's: the NVIDIA runtime reads CDI annotations before the variable that is set here."""
    return {
        key: value
        for key, value in pods.annotations(pod).items()
        if not (names.is_reserved(key) or names.is_cdi(key) or key in OURS)
    }


def _with(pod: JsonObject, kept: dict[str, str], notes: dict[str, str]) -> JsonObject:
    metadata = dict(pod.get("metadata") or {})
    if notes != pods.annotations(pod):
        metadata["annotations"] = notes
    if kept != labels(pod):
        metadata["labels"] = kept
    return {**pod, "metadata": metadata} if metadata else dict(pod)
