"""Which rule answers which request. Pure: a review and what holds right now -> decision."""

from gpushare.errors import FieldError, InvalidRequestError
from gpushare.units import ResourceConfig
from webhook import mutation, validation
from webhook.mutation import Decision, Denied, Untouched
from webhook.review import Review
from webhook.rules import Rules

_GUARDED: frozenset[str] = frozenset({"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"})


def mutate(review: Review, rules: Rules) -> Decision:
    """For the mutating webhook. What it is not made for is admitted as it is."""
    match review.operation, review.resource, review.kind:
        case "CREATE", "pods", _:
            return mutation.mutate(review.obj, rules)
        # Servers before 1.22 send kind EphemeralContainers, which has no pod around it.
        case "UPDATE", "pods/ephemeralcontainers", "Pod":
            return mutation.mutate_ephemeral(review.obj, review.old)
        case _:
            return Untouched()


def validate(review: Review, controller: str, resource_config: ResourceConfig) -> Decision:
    """For the validating webhook; never changes anything.

    Args:
        review: the request.
        controller: the user that may write bindings.
        resource_config: of the cluster.
    """
    try:
        errors = _errors(review, resource_config, by_controller=review.user == controller)
    except InvalidRequestError as error:
        errors = error.errors
    return Denied(errors) if errors else Untouched()


def _errors(review: Review, resource_config: ResourceConfig, *, by_controller: bool) -> tuple[FieldError, ...]:
    match review.operation, review.resource:
        case "UPDATE", resource if resource in _GUARDED:
            return validation.updated(review.obj, review.old, resource_config, by_controller=by_controller)
        case "CREATE", "pods" if not by_controller:
            return validation.created(review.obj)
        # The older form, without the pod's name in the path, has the same effect.
        case "CREATE", "pods/binding" | "bindings" if not by_controller:
            return validation.bound(review.obj)
        case _:
            return ()
