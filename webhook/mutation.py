"""What admission makes of a new pod: the pod as it should be, or why it is refused. Idempotent.

It never refuses a pod for being too big: a node that holds it may come.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.model.request import ContainerRequest
from gpushare.wire import pods, requests
from gpushare.wire.fields import JsonObject
from webhook import advice, edits, review
from webhook.edits import DEFAULT_SCHEDULER, LISTS, Rules
from webhook.review import Review

_MEANT_FOR_US: Final = (names.GPU_COUNT, names.GPU_CORE)
"""Resources that make no request by themselves, but whose authors want GPUs and are told how to ask."""


@dataclass(frozen=True, slots=True)
class Patched:
    pod: JsonObject
    warnings: tuple[str, ...] = ()  # for the author, in plain words


def decide(request: Review, rules: Rules) -> Patched | None:
    """For the mutating webhooks. None: the object is admitted as it is, like all that they are not made for.

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
    advice.refuse_huge(value)
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
    advice.refuse_huge(value)
    pod = review.pod(value)
    existing = {container["name"] for container in review.pod(old)["spec"].get("ephemeralContainers") or ()}
    review.refuse(advice.mounted_devices(pod["spec"], lists, existing))

    def isolate(container: JsonObject) -> JsonObject:
        return container if container["name"] in existing else edits.isolate(container)

    result = {**pod, "spec": edits.each_container(pod["spec"], lists, isolate)}
    return _decision(pod, result, advice.overridden(pod["spec"], result["spec"], lists, ours=()))


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
    spec = _gpu_spec(pod["spec"], container_requests, rules)
    only_cdi = False
    if spec.get("runtimeClassName") is None:
        choice = rules.runtime_class()
        only_cdi = choice.only_cdi
        if choice.name:
            spec["runtimeClassName"] = choice.name
    result = {**edits.of_gpu_pod(pod, spec, container_requests, only_cdi=only_cdi), "spec": spec}
    return _decision(created, result, advice.of_gpu_pod(written, result, rules))


def _container_requests(pod: JsonObject, rules: Rules) -> tuple[ContainerRequest, ...]:
    errors: tuple[FieldError, ...] = ()
    container_requests: tuple[ContainerRequest, ...] = ()
    try:
        shape = requests.shape_of({**pod, "metadata": pod.get("metadata") or {}}, rules.resource_config)
        container_requests = shape.containers if shape else ()
    except InvalidRequestError as error:
        errors = error.errors
    others = advice.bad_annotations(pod, container_requests, rules.resource_config.unit)
    review.refuse((*errors, *advice.of_every_pod(pod, rules), *others))
    return container_requests


def _gpu_spec(spec: JsonObject, container_requests: tuple[ContainerRequest, ...], rules: Rules) -> JsonObject:
    asking, unit = iter(container_requests), rules.resource_config.unit
    pod_units = edits.memory_units(container_requests, unit)

    def edit(container: JsonObject) -> JsonObject:
        if pods.asks(container, rules.resource_config):
            return edits.grant(container, next(asking), pod_units=pod_units, unit=unit)
        return edits.isolate(container, rules)

    result = edits.each_container(spec, LISTS, edit)
    if rules.scheduler and spec.get("schedulerName") in {None, "", DEFAULT_SCHEDULER}:
        result["schedulerName"] = rules.scheduler
    return result


def _other_pod(created: JsonObject, pod: JsonObject, rules: Rules) -> Patched | None:
    review.refuse(advice.of_every_pod(pod, rules))
    spec = edits.each_container(pod["spec"], LISTS, lambda container: edits.isolate(container, rules))
    result = {**edits.of_other_pod(pod), "spec": spec}
    return _decision(created, result, advice.of_pod(pod, result, rules))


def _decision(before: JsonObject, after: JsonObject, warnings: Iterable[str]) -> Patched | None:
    return None if before == after else Patched(after, tuple(warnings))
