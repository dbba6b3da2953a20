"""What admission makes of a new pod: the pod as it should be, with warnings, or why it is refused. Idempotent.

It never refuses a pod for being too big: a node that holds it may come. Requests that cannot be understood are refused
by `gpushare.wire.requests`.
"""

import difflib
import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.model.request import ContainerRequest
from gpushare.units import MemoryUnit
from gpushare.wire import claim_templates, frameworks, pods, requests
from gpushare.wire.fields import JsonObject
from webhook import edits, review
from webhook.edits import LISTS, OURS, Rules
from webhook.review import Review

_MEANT_FOR_US: Final = (names.GPU_COUNT, names.GPU_CORE)  # no requests by themselves; authors are told how to ask
_CHOICES: Final = "nvidia-container-devices"
"""NVIDIA's runtime can be told to take mounts for a choice of devices whose path begins with /var/run and this name. It
needs no slash after it: `…-devicesall` chooses all. No one else has a use for the name."""
_SOCKETS: Final = tuple(map(PurePosixPath, ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources")))
"""Directories in which the kubelet and the device plugins serve."""
_SPECS: Final = tuple(map(PurePosixPath, ("/etc/cdi", "/var/run/cdi", "/run/cdi")))  # where runtimes find devices
_PRESET_NODE: Final = (
    "spec.nodeName bypasses the scheduler, which looks for free GPUs: the pod waits on that node until they are free,"
    " or forever if they never fit; better choose it by spec.nodeSelector or node affinity on kubernetes.io/hostname"
)
_LISTED: Final = 150  # characters
_ANNOTATIONS: Final = (*names.REQUEST_ANNOTATIONS, names.WATCHDOG)  # that an author may write
_TOLD: Final = 8  # most names that are told one by one: a pod may carry hundreds of thousands
_LONGEST_NAME: Final = 63  # that Kubernetes admits after the slash
_WARNING: Final = 256  # characters of a warning that Kubernetes shows for sure


@dataclass(frozen=True, slots=True)
class Patched:
    pod: JsonObject
    warnings: tuple[str, ...] = ()  # for the author, in plain words


def decide(request: Review, rules: Rules) -> Patched | None:
    """For the mutating webhooks. None: it is admitted as it is without a word, like all that they are not made for.

    Raises InvalidRequestError: it is refused; UnknownRuntimeClassError: the client has to try again.
    """
    match request.operation, request.resource, request.kind:
        case "CREATE", "pods", _:
            return mutate(request.obj, rules)
        # Servers before 1.22 send kind EphemeralContainers, which has no pod around it.
        case "UPDATE", "pods/ephemeralcontainers", "Pod":
            return mutate_ephemeral(request.obj, request.old)
        case _:
            return None


def mutate(value: object, rules: Rules) -> Patched | None:
    """Decide on a pod that is being created.

    Only a GPU pod that names no RuntimeClass waits for the API server: all others, which are most, never depend on it.
    """
    _refuse_huge(value)
    pod = review.pod(value)
    asked = pod
    if rules.resource_config.whole_gpus:  # many charts write 0, and kube-scheduler would send us such pods for binding
        asked = {**pod, "spec": edits.each_container(pod["spec"], LISTS, edits.without_zero)}
    # Other pods are never refused for labels or annotations that only mean something beside a request.
    return _gpu_pod(pod, asked, rules) if _wants_gpu(asked, rules) else _other_pod(pod, asked, rules)


def mutate_ephemeral(value: object, old: object) -> Patched | None:
    """Decide on ephemeral containers that are being added to a pod. They can ask for no resource, so they get no GPU.

    Those that the pod has already cannot be changed any more and stay as they are.
    """
    lists = ("ephemeralContainers",)
    _refuse_huge(value)
    pod = review.pod(value)
    existing = {container["name"] for container in review.pod(old)["spec"].get("ephemeralContainers") or ()}
    review.refuse(_mounted_devices(pod["spec"], lists, existing))

    def isolate(container: JsonObject) -> JsonObject:
        return container if container["name"] in existing else edits.isolate(container)

    result = {**pod, "spec": edits.each_container(pod["spec"], lists, isolate)}
    return _decision(pod, result, _overridden(pod["spec"], result["spec"], lists, ours=()))


def _wants_gpu(pod: JsonObject, rules: Rules) -> bool:
    wanted = {*rules.resource_config.resources, *_MEANT_FOR_US}
    return any(
        resource in wanted
        for _, _, container in pods.containers(pod)
        for _, resource, _ in pods.named_resources(container)
    )


def _gpu_pod(created: JsonObject, written: JsonObject, rules: Rules) -> Patched | None:
    pod = edits.demanding_limit(written) if rules.demands_limit else written
    container_requests = _container_requests(pod, rules)
    if rules.claims:
        return _claiming_pod(created, written, pod, rules)
    spec = _gpu_spec(pod["spec"], container_requests, rules)
    only_cdi = False
    if spec.get("runtimeClassName") is None:
        choice = rules.runtime_class()
        only_cdi = choice.only_cdi
        if choice.name:
            spec["runtimeClassName"] = choice.name
    result = {**edits.of_gpu_pod(pod, spec, container_requests, only_cdi=only_cdi), "spec": spec}
    return _decision(created, result, _warnings_of_gpu_pod(written, result, rules))


def _claiming_pod(created: JsonObject, written: JsonObject, pod: JsonObject, rules: Rules) -> Patched | None:
    found = claim_templates.translate({**pod, "metadata": pod.get("metadata") or {}}, rules.resource_config)
    assert found is not None  # noqa: S101 - for the type checker: it asks
    spec = edits.each_container(found.spec, LISTS, lambda container: edits.isolate(container, rules))
    result = {**edits.of_claiming_pod(pod, found.template), "spec": spec}
    warned = (*_warnings(written, result, rules), *_ignored_marks(written), *found.lost)
    return _decision(created, result, warned)


def _container_requests(pod: JsonObject, rules: Rules) -> tuple[ContainerRequest, ...]:
    errors: tuple[FieldError, ...] = ()
    container_requests: tuple[ContainerRequest, ...] = ()
    try:
        shape = requests.shape_of({**pod, "metadata": pod.get("metadata") or {}}, rules.resource_config)
        container_requests = shape.containers if shape else ()
    except InvalidRequestError as error:
        errors = error.errors
    others = _bad_annotations(pod, container_requests, rules.resource_config.unit)
    review.refuse((*errors, *_objections(pod, rules), *others))
    return container_requests


def _gpu_spec(spec: JsonObject, container_requests: tuple[ContainerRequest, ...], rules: Rules) -> JsonObject:
    asking, unit = iter(container_requests), rules.resource_config.unit
    pod_units = edits.memory_units(container_requests, unit)

    def edit(container: JsonObject) -> JsonObject:
        if pods.asks(container, rules.resource_config):
            return edits.grant(container, next(asking), pod_units=pod_units, unit=unit)
        return edits.isolate(container, rules)

    result = edits.each_container(spec, LISTS, edit)
    if rules.scheduler and spec.get("schedulerName") in {None, "", names.DEFAULT_SCHEDULER}:
        result["schedulerName"] = rules.scheduler
    return result


def _other_pod(created: JsonObject, pod: JsonObject, rules: Rules) -> Patched | None:
    review.refuse(_objections(pod, rules))
    spec = edits.each_container(pod["spec"], LISTS, lambda container: edits.isolate(container, rules))
    result = {**edits.of_other_pod(pod), "spec": spec}
    told = tuple(map(_truncate, _warnings(pod, result, rules)))
    return Patched(result, told) if told or created != result else None


def _decision(before: JsonObject, after: JsonObject, warnings: Iterable[str]) -> Patched | None:
    return None if before == after else Patched(after, tuple(map(_truncate, warnings)))


# Refusals, one function each.


def _refuse_huge(value: object) -> None:
    """Raise InvalidRequestError for what would take too long to look at."""
    spec = value.get("spec") if isinstance(value, dict) else None
    if isinstance(spec, dict) and (error := pods.too_many_containers(spec, (*LISTS, "ephemeralContainers"))):
        review.refuse([error])


def _objections(pod: JsonObject, rules: Rules) -> Iterator[FieldError]:
    yield from _preset_node_of_other_plugin(pod, rules)
    yield from _impossible_amounts(pod, rules)
    yield from _mounted_devices(pod["spec"], LISTS)


def _preset_node_of_other_plugin(pod: JsonObject, rules: Rules) -> Iterator[FieldError]:
    """The kubelet ignores resources that its node does not have at all, and then nothing limits such a container.

    Containers that ask for ours as well take their devices from our annotation, so they see none there.
    """
    if not pod["spec"].get("nodeName"):
        return
    for path, _, container in pods.containers(pod):
        resource = edits.foreign(container, rules)
        if resource and not pods.asks(container, rules.resource_config):
            yield FieldError(
                "spec.nodeName",
                f"a preset node bypasses the scheduler, but {path} asks for {resource};"
                " on a node without that resource it would see all GPUs",
                "remove it and choose the node by spec.nodeSelector or node affinity on kubernetes.io/hostname",
            )
            return


def _mounted_devices(spec: JsonObject, lists: Sequence[str], existing: Set[str] = frozenset()) -> Iterator[FieldError]:
    """Mounts by which NVIDIA's runtime would choose devices, but for those of `existing` containers, which stay."""
    for field in lists:
        for i, container in enumerate(spec.get(field) or ()):
            paths = (str(each.get("mountPath") or "") for each in container.get("volumeMounts") or ())
            choosing = [number for number, path in enumerate(paths) if _CHOICES in path]
            if choosing and container["name"] not in existing:
                yield FieldError(
                    f"spec.{field}[{i}].volumeMounts[{choosing[0]}].mountPath",
                    "it would choose devices past the scheduler",
                    "remove it, and ask for GPUs by resources.limits",
                )


def _impossible_amounts(pod: JsonObject, rules: Rules) -> Iterator[FieldError]:
    """Of GPUs that others hand out; those of ours are read, and refused, by `gpushare.wire`.

    kube-scheduler adds amounts in 64 bits, and a sum that leaves them fits every node. The kubelet ignores resources
    that its node does not have, and then nothing limits the container.
    """
    read = (*rules.resource_config.resources, names.GPU_COUNT, names.GPU_CORE)
    for path, _, container in pods.containers(pod):
        for field, resource, amount in pods.named_resources(container):
            is_gpu = resource.startswith(names.GPU_DOMAINS) or rules.is_foreign(resource)
            if is_gpu and resource not in read and (units.quantity(amount) or 0) > units.MAX_UNITS:
                yield FieldError(
                    f"{path}.resources.{field}[{resource}]",
                    f"{amount!s:.40} is more than any node can have",
                    f"write a number up to {units.MAX_UNITS}",
                )
                return


def _bad_annotations(
    pod: JsonObject, container_requests: tuple[ContainerRequest, ...], unit: MemoryUnit
) -> Iterator[FieldError]:
    """Of a request, but for those that are read by `gpushare.wire`."""

    def error(key: str, problem: str, fix: str) -> FieldError:
        return FieldError(f"metadata.annotations[{key}]", problem, fix)

    notes = pods.annotations(pod)
    # The mark counts by being there, so an author who writes "false" would get the opposite.
    if (totals := notes.get(names.ANNOTATION_TOTALS, "true")) != "true":
        fix = 'remove it, or write "true" if the limits are totals over all GPUs already'
        yield error(names.ANNOTATION_TOTALS, f"{totals!r} is no value of it", fix)
    try:
        frameworks.parse(notes.get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    except ValueError as wrong:  # words for which no container of the pod would start
        problem, _, fix = str(wrong).partition("; ")
        yield error(names.ANNOTATION_FRAMEWORK_VARIABLES, problem, fix)
    for request in container_requests:
        _, total = requests.counted(request, unit)
        if total > units.MAX_UNITS:  # a product that the next reader would refuse as an amount
            each = f"{request.gpu_count} GPUs with {total // request.gpu_count} units each exceed any node"
            fix = "write fewer GPUs or a smaller amount"
            yield error(names.ANNOTATION_GPUS, f"container {request.container}: {each}", fix)


def _warnings(before: JsonObject, after: JsonObject, rules: Rules) -> Iterator[str]:
    """For a pod as its author wrote it, and as it is admitted."""
    yield from _removed(before, after)
    yield from _overridden(before["spec"], after["spec"], LISTS, ours=rules.resource_config.resources)
    known = {*rules.resource_config.resources, names.GPU_CORE, names.GPU_COUNT}
    limits = {resource for _, _, container in pods.containers(before) for resource in pods.amounts(container, "limits")}
    if any("/" in resource for resource in limits - known):
        suspects = (each for each in requests.misspelt(before, rules.resource_config) if not rules.is_foreign(each[1]))
        for name, resource, likely in itertools.islice(suspects, _TOLD):
            yield f"container {name}: gpushare does not know {resource} and gives no GPU for it; do you mean {likely}?"


def _warnings_of_gpu_pod(before: JsonObject, after: JsonObject, rules: Rules) -> Iterator[str]:
    ours = rules.resource_config.resources
    yield from _warnings(before, after, rules)
    yield from _ignored_marks(before)
    scheduler = after["spec"].get("schedulerName") or names.DEFAULT_SCHEDULER
    better = rules.scheduler or names.DEFAULT_SCHEDULER
    if after["spec"].get("nodeName"):
        yield _PRESET_NODE
    elif scheduler not in {better, *rules.other_schedulers}:
        yield (
            f"spec.schedulerName {scheduler:.63} does not ask gpushare which GPUs are free: the pod waits on the node"
            f" that it chooses until they are, or forever; remove it, or write {better}"
        )
    for name, path, what in _volumes_of_the_node(after["spec"]):
        yield (
            f"volume {name} (hostPath {path:.80}) has {what}: a container that mounts it can reach all GPUs of its"
            " node, not only those granted to it"
        )
    for _, _, container in pods.containers(after):
        name, asked = container["name"], _asked(container, ours)
        other = edits.foreign(container, rules)
        if asked and other:
            yield (
                f"container {name} asks for {asked} and for another plugin's GPUs ({other});"
                " it will see only those of the former"
            )
        if (container.get("securityContext") or {}).get("privileged") is True:
            yield f"container {name} is privileged: it can reach all GPUs of its node, not only those granted to it"


def _overridden(before: JsonObject, after: JsonObject, fields: Sequence[str], *, ours: Sequence[str]) -> Iterator[str]:
    """For containers of these lists whose author chose devices; `ours` are the resources that ask for GPUs."""
    for old, new in edits.pairs(before, after, fields):
        if value := edits.overridden(old, new):
            yield f"container {new['name']}: {names.ENV_VISIBLE_DEVICES} is {_set_by(new, ours)}; {value} was removed"


def _removed(before: JsonObject, after: JsonObject) -> Iterator[str]:
    removed = sorted(set(pods.annotations(before)) - set(pods.annotations(after)))
    if devices := [key for key in removed if names.is_cdi(key)]:
        yield f"annotations removed, because they choose devices past the scheduler: {_listed(devices)}"
    if forged := [key for key in removed if names.is_reserved(key)]:
        yield f"annotations removed, because only {names.SERVICE_ACCOUNT_CONTROLLER} may write them: {_listed(forged)}"
    for key in OURS:
        if key in removed:
            yield f"annotation removed, because only {names.WEBHOOK_SERVICE} may write it: {key}"


def _asked(container: Mapping[str, Any], ours: Sequence[str]) -> str | None:
    return next((resource for resource in ours if resource in pods.amounts(container, "limits")), None)


def _set_by(container: JsonObject, ours: Sequence[str]) -> str:
    if _asked(container, ours) or (container.get("resources") or {}).get("claims"):
        return "set by gpushare to the GPUs that it is granted"
    if edits.env_of_devices(container):
        return "set by gpushare to no GPU, because it asks for none"
    return "set by the plugin that serves its GPUs"


def _listed(items: Sequence[str]) -> str:
    included = [items[0]]
    while len(included) < len(items) and len(", ".join(items[: len(included) + 1])) <= _LISTED:
        included.append(items[len(included)])
    rest = len(items) - len(included)
    return _truncate(", ".join(included), _LISTED) + (f" and {rest} more" if rest else "")


def _volumes_of_the_node(spec: JsonObject) -> Iterator[tuple[str, str, str]]:
    """Name and path of the volumes that hold what controls the node's GPUs, or lie in its directory, and what it is."""
    for volume in spec.get("volumes") or ():
        path = (volume.get("hostPath") or {}).get("path")
        if not isinstance(path, str):
            continue
        here = PurePosixPath(posixpath.normpath("/" + path.lstrip("/")))
        for roots, what in ((_SOCKETS, "the kubelet's sockets"), (_SPECS, "the node's CDI specs")):
            if any(here.is_relative_to(root) or root.is_relative_to(here) for root in roots):
                yield str(volume.get("name")), path, what
                break


def _ignored_marks(pod: JsonObject) -> Iterator[str]:
    """Labels and annotations of ours that mean nothing, with those that were probably meant."""
    annotations = [key for key in pods.annotations(pod) if key == names.LABEL_GPU_COUNT or not names.is_known(key)]
    labels = [key for key in review.labels(pod) if key in _ANNOTATIONS or not names.is_known(key)]
    if (policy := pods.annotations(pod).get(names.WATCHDOG, "off")) not in names.WATCHDOG_POLICIES:
        yield f"annotation {names.WATCHDOG}: expected report, evict or kill, found {policy!r:.60}; it is ignored"
    ignored = [("annotation", key) for key in sorted(annotations)] + [("label", key) for key in sorted(labels)]
    for kind, key in ignored[:_TOLD]:
        yield _ignored(kind, key)
    if rest := len(ignored[_TOLD:]):
        yield f"and {rest} more labels and annotations that gpushare does not read"


def _ignored(kind: str, key: str) -> str:
    if key in {names.LABEL_GPU_COUNT, *_ANNOTATIONS}:
        return f"{key} means something as {'a label' if kind == 'annotation' else 'an annotation'} only; it is ignored"
    ours = (names.LABEL_GPU_COUNT,) if kind == "label" else (*_ANNOTATIONS, names.ANNOTATION_TOTALS)
    name, by_name = key.partition("/")[2], {each.partition("/")[2]: each for each in ours}
    near = difflib.get_close_matches(name, by_name, n=1) if len(name) <= _LONGEST_NAME else []
    meant = f"; do you mean {by_name[near[0]]}?" if near else ""
    return f"{kind} {key} is none that gpushare knows; it is ignored{meant}"


def _truncate(text: str, limit: int = _WARNING) -> str:
    return text if len(text) <= limit else text[: limit - 4] + " ..."
