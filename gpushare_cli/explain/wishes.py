"""What a pod asks for, in words. Pure."""

from gpushare.model.request import ContainerRequest, Policy, RequestShape
from gpushare_cli import quantities


def lines(shape: RequestShape) -> list[str]:
    """One for each container that asks, and one for each thing that the pod says about its GPUs."""
    found = [_container(wish) for wish in shape.containers]
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


def _container(wish: ContainerRequest) -> str:
    kind = "" if wish.kind.value == "app" else f" ({wish.kind.value})"
    return f"{wish.container}{kind}: {_amount(wish)}"


def _amount(wish: ContainerRequest) -> str:
    several = wish.gpu_count > 1
    if wish.whole:
        return f"{wish.gpu_count} whole GPU{'s' if several else ''}"
    where = f"each of {wish.gpu_count} GPUs" if several else "one GPU"
    if wish.memory_percent:
        return f"{wish.memory_percent}% of {where}"
    compute = f" and {wish.compute_percent}% of compute" if wish.compute_percent else ""
    return f"{quantities.memory(wish.memory_mib)}{compute} on {where}"
