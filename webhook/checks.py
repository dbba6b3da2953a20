"""What admission refuses beside requests that cannot be understood (`gpushare.wire.requests`). Pure, one check each."""

from collections.abc import Iterator, Sequence, Set
from typing import Final

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.model.request import MAX_CONTAINERS, ContainerRequest
from gpushare.units import MemoryUnit
from gpushare.wire import pods, requests, selectors
from gpushare.wire.fields import JsonObject
from webhook import containers, mounts, objects
from webhook.rules import Rules

_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def size(value: object) -> None:
    """Refuse what would take too long to look at.

    Raises:
        InvalidRequestError: it has too many containers.
    """
    spec = value.get("spec") if isinstance(value, dict) else None
    if not isinstance(spec, dict):
        return
    for field in _LISTS:
        listed = spec.get(field)
        if isinstance(listed, list) and len(listed) > MAX_CONTAINERS:
            problem = f"{len(listed)} containers are more than any node runs"
            raise InvalidRequestError((FieldError(f"spec.{field}", problem, f"write at most {MAX_CONTAINERS}"),))


def preset_node_of_other_plugin(pod: JsonObject, rules: Rules) -> Iterator[FieldError]:
    """The kubelet ignores resources that its node does not have at all, and then nothing limits such a container.

    Containers that ask for ours as well take their devices from our annotation, so they see none there.
    """
    if not pod["spec"].get("nodeName"):
        return
    for path, _, container in pods.containers(pod):
        resource = containers.foreign(container, rules)
        if resource and not pods.asks(container, rules.resource_config):
            yield FieldError(
                "spec.nodeName",
                f"a preset node by-passes the scheduler, but {path} asks for {resource};"
                " on a node without that resource it would see all GPUs",
                "remove it and choose the node by spec.nodeSelector or node affinity on kubernetes.io/hostname",
            )
            return


def mounted_devices(spec: JsonObject, lists: Sequence[str], known: Set[str] = frozenset()) -> Iterator[FieldError]:
    """Mounts by which NVIDIA's runtime would choose devices, where it is told to.

    Args:
        spec: of the pod.
        lists: of its containers.
        known: names of containers that are there already and cannot be changed.
    """
    for field in lists:
        for i, container in enumerate(spec.get(field) or ()):
            number = mounts.of_devices(container)
            if number is not None and container["name"] not in known:
                yield FieldError(
                    f"spec.{field}[{i}].volumeMounts[{number}].mountPath",
                    "it would choose devices past the scheduler",
                    "remove it, and ask for GPUs by resources.limits",
                )


def impossible_amounts(pod: JsonObject, rules: Rules) -> Iterator[FieldError]:
    """Of GPUs that others hand out; those of ours are read, and refused, by `gpushare.wire`.

    kube-scheduler adds amounts in 64 bits, and a sum that leaves them fits every node. The kubelet ignores resources
    that its node does not have, and then nothing limits the container.
    """
    read = (*rules.resource_config.resources, names.GPU_COUNT, names.GPU_CORE)
    for path, _, container in pods.containers(pod):
        for field in ("limits", "requests"):
            for resource, amount in pods.amounts(container, field).items():
                is_gpu = resource.startswith(names.GPU_DOMAINS) or rules.is_foreign(resource)
                if is_gpu and resource not in read and (units.quantity(amount) or 0) > units.MAX_UNITS:
                    yield FieldError(
                        f"{path}.resources.{field}[{resource}]",
                        f"{amount!s:.40} is more than any node can have",
                        f"write a number up to {units.MAX_UNITS}",
                    )
                    return


def bad_totals(pod: JsonObject) -> Iterator[FieldError]:
    """The mark counts by being there, so an author who writes "false" would get the opposite."""
    value = objects.annotations(pod).get(names.ANNOTATION_TOTALS, "true")
    if value != "true":
        path = f"metadata.annotations[{names.ANNOTATION_TOTALS}]"
        fix = 'remove it, or write "true" if the limits are totals over all GPUs already'
        yield FieldError(path, f"{value!r} is no value of it", fix)


def framework_variables(pod: JsonObject) -> Iterator[FieldError]:
    """Words for which no container of the pod would start."""
    try:
        selectors.frameworks(objects.annotations(pod).get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        yield FieldError(f"metadata.annotations[{names.ANNOTATION_FRAMEWORK_VARIABLES}]", problem, fix)


def excess(container_requests: tuple[ContainerRequest, ...], unit: MemoryUnit) -> Iterator[FieldError]:
    """Products that the next reader would refuse as an amount."""
    for request in container_requests:
        _, total = requests.counted(request, unit)
        if total > units.MAX_UNITS:
            yield FieldError(
                f"metadata.annotations[{names.ANNOTATION_GPUS}]",
                f"container {request.container}: {request.gpu_count} GPUs with {total // request.gpu_count} units each"
                " exceed"
                " any node",
                "write fewer GPUs or a smaller amount",
            )
