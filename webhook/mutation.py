"""What admission makes of a new pod: the pod as it should be, or why it is refused. Pure and idempotent.

It never refuses a pod for being too big: a node that holds it may come.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.model.request import ContainerRequest
from gpushare.wire import pods, requests
from gpushare.wire.fields import JsonObject
from webhook import advice, checks, containers, metadata, objects
from webhook.rules import DEFAULT_SCHEDULER, Rules

_FIELDS: Final = ("initContainers", "containers")  # in the order of `pods.containers`
_MEANT_FOR_US: Final = (names.GPU_COUNT, names.GPU_CORE)
"""Resources that make no request by themselves, but whose authors want GPUs and are told how to ask."""


@dataclass(frozen=True, slots=True)
class Untouched:
    """The object is admitted as it is."""


@dataclass(frozen=True, slots=True)
class Mutated:
    """The object is admitted as `pod`."""

    pod: JsonObject
    warnings: tuple[str, ...] = ()
    """For the author, in plain words."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The object is refused."""

    errors: tuple[FieldError, ...]


@dataclass(frozen=True, slots=True)
class Undecided:
    """What the decision rests on is not known at the moment; the client has to try again."""

    message: str
    decide: Callable[[Rules], "Decision"] | None = dataclasses.field(default=None, compare=False)
    """The decision by the same rules with the RuntimeClass, for those who find it out; None if they cannot."""


Decision = Untouched | Mutated | Denied | Undecided


def mutate(value: object, rules: Rules) -> Decision:
    """Decide on a pod that is being created."""
    try:
        checks.size(value)
        pod = objects.pod(value)
        # Other pods are never refused for labels or annotations that only mean something beside a request.
        asked = _without_zeros(pod, rules)
        return _gpu_pod(pod, asked, rules) if _wants_gpu(asked, rules) else _other_pod(pod, asked, rules)
    except InvalidRequestError as error:
        return Denied(error.errors)


def mutate_ephemeral(value: object, old: object) -> Decision:
    """Decide on ephemeral containers that are being added to a pod. They can ask for no resource, so they get no GPU.

    Those that the pod has already cannot be changed any more and stay as they are.
    """
    try:
        checks.size(value)
        pod = objects.pod(value)
        known = {container["name"] for container in objects.pod(old)["spec"].get("ephemeralContainers") or ()}
    except InvalidRequestError as error:
        return Denied(error.errors)
    if errors := tuple(checks.mounted_devices(pod["spec"], ("ephemeralContainers",), known)):
        return Denied(errors)

    def isolate(container: JsonObject) -> JsonObject:
        return container if container["name"] in known else containers.isolate(container)

    result = {**pod, "spec": _each(pod["spec"], ("ephemeralContainers",), isolate)}
    notes = advice.overridden(pod["spec"], result["spec"], ("ephemeralContainers",), ours=())
    return _decision(pod, result, notes)


def _without_zeros(pod: JsonObject, rules: Rules) -> JsonObject:
    """Without `nvidia.com/gpu: 0`, as many charts write it: kube-scheduler would send such pods to us for binding."""
    if not rules.resource_config.whole_gpus:
        return pod
    return {**pod, "spec": _each(pod["spec"], _FIELDS, containers.without_zero)}


def _wants_gpu(pod: JsonObject, rules: Rules) -> bool:
    wanted = {*rules.resource_config.resources, *_MEANT_FOR_US}
    return any(
        wanted & pods.amounts(container, field).keys()
        for _, _, container in pods.containers(pod)
        for field in ("limits", "requests")
    )


def _gpu_pod(created: JsonObject, written: JsonObject, rules: Rules) -> Decision:
    pod = metadata.demanding_limit(written) if rules.demands_limit else written
    container_requests = _container_requests(pod, rules)

    def decide(rules: Rules) -> Decision:
        spec = _gpu_spec(pod["spec"], container_requests, rules)
        only_cdi = rules.only_cdi and spec.get("runtimeClassName") is None
        result = {**metadata.of_gpu_pod(pod, spec, container_requests, only_cdi=only_cdi), "spec": spec}
        return _decision(created, result, advice.of_gpu_pod(written, result, rules))

    if rules.runtime_class_unknown and pod["spec"].get("runtimeClassName") is None:
        return Undecided(rules.runtime_class_unknown, decide)
    return decide(rules)


def _container_requests(pod: JsonObject, rules: Rules) -> tuple[ContainerRequest, ...]:
    errors: tuple[FieldError, ...] = ()
    container_requests: tuple[ContainerRequest, ...] = ()
    try:
        request = requests.of_pod({**pod, "metadata": pod.get("metadata") or {}}, rules.resource_config)
        container_requests = request.shape.containers if request else ()
    except InvalidRequestError as error:
        errors = error.errors
    errors = (
        *errors,
        *checks.preset_node_of_other_plugin(pod, rules),
        *checks.impossible_amounts(pod, rules),
        *checks.bad_totals(pod),
        *checks.framework_variables(pod),
        *checks.mounted_devices(pod["spec"], _FIELDS),
        *checks.excess(container_requests, rules.resource_config.unit),
    )
    if errors:
        raise InvalidRequestError(errors)
    return container_requests


def _gpu_spec(spec: JsonObject, container_requests: tuple[ContainerRequest, ...], rules: Rules) -> JsonObject:
    asking = iter(container_requests)
    pod_units = containers.memory_units(container_requests, rules.resource_config.unit)

    def edit(container: JsonObject) -> JsonObject:
        if pods.asks(container, rules.resource_config):
            return containers.grant(container, next(asking), pod_units=pod_units, unit=rules.resource_config.unit)
        return _isolate(container, rules)

    result = _each(spec, _FIELDS, edit)
    if rules.scheduler and spec.get("schedulerName") in {None, "", DEFAULT_SCHEDULER}:
        result["schedulerName"] = rules.scheduler
    if rules.runtime_class and spec.get("runtimeClassName") is None:
        result["runtimeClassName"] = rules.runtime_class
    return result


def _other_pod(created: JsonObject, pod: JsonObject, rules: Rules) -> Decision:
    errors = (
        *checks.preset_node_of_other_plugin(pod, rules),
        *checks.impossible_amounts(pod, rules),
        *checks.mounted_devices(pod["spec"], _FIELDS),
    )
    if errors:
        return Denied(errors)
    spec = _each(pod["spec"], _FIELDS, lambda container: _isolate(container, rules))
    result = {**metadata.of_other_pod(pod), "spec": spec}
    return _decision(created, result, advice.of_other_pod(pod, result, rules))


def _isolate(container: JsonObject, rules: Rules) -> JsonObject:
    if containers.foreign(container, rules):
        return containers.yield_to_plugin(container)
    return containers.isolate(container)


def _each(spec: JsonObject, fields: tuple[str, ...], edit: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """A copy of the spec with every container of these lists edited."""
    result = dict(spec)
    for field in fields:
        if spec.get(field):
            result[field] = [edit(container) for container in spec[field]]
    return result


def _decision(before: JsonObject, after: JsonObject, notes: Iterator[str]) -> Decision:
    return Untouched() if before == after else Mutated(after, tuple(notes))
