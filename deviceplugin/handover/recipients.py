"""Containers that may be about to start -> what each was granted, and what Allocate has told the kubelet. Pure."""

from collections.abc import Sequence

from deviceplugin.decision import Accept
from deviceplugin.edits import ContainerEdits
from deviceplugin.handover import share_name
from deviceplugin.handover.choice import Choice
from deviceplugin.handover.grant_edits import HandOverError, Recipient
from deviceplugin.identify import Owner
from gpushare import names
from gpushare.errors import WireError
from gpushare.model.gpu import HandOver
from gpushare.wire import hand_over, pods
from gpushare.wire.pods import Pod


def of(pod: Pod, owner: Owner, accepted: Accept, choice: Choice) -> Sequence[Recipient]:
    """One for each grant.

    A container keeps what Allocate said when its pod came to the node, however the node hands GPUs over by now.

    Raises:
        HandOverError: the kubelet's records do not say what it was told, or that is nothing that a container runtime
            other than NVIDIA's understands.
    """
    only_cdi = pods.annotations(pod).get(names.ANNOTATION_HAND_OVER) == HandOver.CDI.value
    only_cdi = only_cdi and not choice.nvidia_default
    if owner.responses is None:
        if only_cdi and choice.way is not HandOver.CDI:
            raise HandOverError(_other_way(choice))
        if choice.writes_specs:
            raise HandOverError("the kubelet's checkpoint does not know its devices; the kubelet will try again")
        return ()
    uid = pods.ref(pod).uid
    runtime_class = str(pod["spec"].get("runtimeClassName") or "")
    try:
        found = [
            Recipient(
                uid=uid,
                container=grant.container,
                runtime_class=runtime_class,
                names=share_name.in_response(owner.responses[grant.container]),
                gpus=grant.gpus,
                extra=accepted.limits.get(grant.container, ContainerEdits()),
            )
            for grant in accepted.grants
        ]
        injected = [share_name.is_injected(owner.responses[each.container]) for each in found]
    except WireError as error:
        raise HandOverError(f"the kubelet's checkpoint: {error}; the kubelet will try again") from error
    if only_cdi and not all(injected):
        raise HandOverError(_other_way(choice))
    if any(injected) and choice.never_injects:
        raise HandOverError(
            f"the pod came to the node when GPUs were handed over by CDI, and {choice.never_injects}; {hand_over.AGAIN}"
        )
    if lost := [each.container for each in found if each.extra.mounts and not each.names]:
        raise HandOverError(
            f"container {lost[0]} came to the node when GPUs were not handed over by CDI, and what now holds its memory"
            f" limit comes by CDI only; {hand_over.AGAIN}"
        )
    return found


def _other_way(choice: Choice) -> str:
    if choice.way is HandOver.CDI:
        return (
            "the pod came to the node when GPUs were not handed over by CDI, and was created without the RuntimeClass"
            f" that this needed; {hand_over.AGAIN}"
        )
    return (
        f"this node hands GPUs over by {choice.way.value}, and the pod was created without the RuntimeClass that this"
        f" needs, while all nodes did so by CDI; {hand_over.AGAIN}"
    )
