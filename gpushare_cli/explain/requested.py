"""What a pod asks for, in words. Pure."""

from gpushare import units
from gpushare.model.request import ContainerRequest, Policy, RequestShape


def lines(shape: RequestShape) -> list[str]:
    """One for each container that asks, and one for each thing that the pod says about its GPUs."""
    found = [_container(request) for request in shape.containers]
    if text := str(shape.gpus):
        found.append(f"only GPUs with {text}")
    if shape.affinity is not None and shape.affinity.same is not None:
        found.append(f"only GPUs that a pod with {shape.affinity.same} holds")
    if shape.affinity is not None and shape.affinity.other is not None:
        found.append(f"only GPUs that no pod with {shape.affinity.other} holds")
    return found


def policy(shape: RequestShape, default: Policy) -> str:
    """How its GPUs are chosen."""
    chosen = shape.policy or default
    order = {Policy.BINPACK: "the fullest GPU with room first", Policy.SPREAD: "the emptiest GPU first"}[chosen]
    whose = "named by the pod" if shape.policy else "the cluster's default"
    return f"{chosen.value}: {order} ({whose})"


def _container(request: ContainerRequest) -> str:
    kind = "" if request.kind.value == "app" else f" ({request.kind.value})"
    return f"{request.container}{kind}: {_amount(request)}"


def _amount(request: ContainerRequest) -> str:
    several = request.gpu_count > 1
    if request.whole:
        return f"{request.gpu_count} whole GPU{'s' if several else ''}"
    where = f"each of {request.gpu_count} GPUs" if several else "one GPU"
    if request.memory_percent:
        return f"{request.memory_percent}% of {where}"
    compute = f" and {request.compute_percent}% of compute" if request.compute_percent else ""
    return f"{units.memory(request.memory_mib)}{compute} on {where}"
