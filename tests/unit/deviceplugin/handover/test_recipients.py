"""What each container of a start was told by Allocate, and whether it can see its GPUs by that."""

import base64

import pytest

from deviceplugin import pods
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.decide import Accept
from deviceplugin.handover import pick, strategy
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.pick import HandOverError
from deviceplugin.identify import Owner
from gpushare import names
from gpushare.identity import ContainerName, PodUid
from gpushare.model.gpu import HandOver
from testing.builders import Json, make_grant
from testing.deviceplugin.build import bound_pod

MAIN = ContainerName("main")
CDI, ENVVAR = HandOverChoice(way=HandOver.CDI, reason=""), HandOverChoice(way=HandOver.ENVVAR, reason="")
NAME = strategy.make(["a"], "0" * 16)


def response(*cdi: str, mounts: tuple[str, ...] = ()) -> str:
    answer = api.ContainerAllocateResponse(
        cdi_devices=[api.CDIDevice(name=name) for name in cdi],
        mounts=[api.Mount(container_path=path, host_path="/dev/null") for path in mounts],
    )
    return base64.b64encode(answer.SerializeToString()).decode()


def owner(told: str | None) -> Owner:
    responses = None if told is None else {MAIN: told}
    return Owner(uid=PodUid("uid-pod"), namespace="default", name="pod", containers=(MAIN,), responses=responses)


def marked(*, mark: bool = True) -> Json:
    pod = bound_pod(make_grant(0))
    if mark:
        pod["metadata"]["annotations"][names.ANNOTATION_HAND_OVER] = "cdi"
    return pods.reduce(pod)


ACCEPT = Accept((make_grant(0),))
SUITS = "delete the pod and create it again, so that it suits how the node hands GPUs over now"
BY_VARIABLE = (
    "this node hands GPUs over by envvar, and the pod was created without the RuntimeClass that this needs, while all"
    f" nodes did so by CDI; {SUITS}"
)
BEFORE_CDI = (
    "the pod came to the node when GPUs were not handed over by CDI, and was created without the RuntimeClass that this"
    f" needed; {SUITS}"
)


@pytest.mark.parametrize(
    ("told", "choice", "message"),
    [(None, ENVVAR, BY_VARIABLE), (response(), ENVVAR, BY_VARIABLE), (response(), CDI, BEFORE_CDI)],
)
def test_a_pod_without_a_runtime_class_does_not_start_where_only_nvidias_runtime_shows_gpus(
    told: str | None, choice: HandOverChoice, message: str
) -> None:
    with pytest.raises(HandOverError) as caught:
        pick.recipients(marked(), owner(told), ACCEPT, choice)
    assert str(caught.value) == message


def test_it_starts_where_it_sees_its_gpus() -> None:
    by_cdi = response(f"gpushare.dev/share={NAME}")
    default = HandOverChoice(way=HandOver.ENVVAR, reason="", nvidia_default=True)
    for pod, told, choice, expected in (
        (marked(), by_cdi, CDI, [(NAME,)]),
        (marked(), by_cdi, ENVVAR, [(NAME,)]),  # it restarts; the node handed over by CDI when it came
        (marked(), response(), default, [()]),
        (marked(), None, default, []),
        (marked(mark=False), response(), ENVVAR, [()]),
        (marked(mark=False), None, ENVVAR, []),
    ):
        assert [each.names for each in pick.recipients(pod, owner(told), ACCEPT, choice)] == expected


@pytest.mark.parametrize("told", [response(), response(mounts=(f"{strategy.MOUNTS}gpushare.dev/share/{NAME}",))])
@pytest.mark.parametrize("way", HandOver)
def test_only_a_device_that_a_container_runtime_was_told_of_reaches_it(told: str, way: HandOver) -> None:
    """A node may have changed since the pod came to it; runc passes over what is said to NVIDIA's runtime."""
    with pytest.raises(HandOverError, match="delete the pod and create it again"):
        pick.recipients(marked(), owner(told), ACCEPT, HandOverChoice(way=way, reason=""))
    assert pick.recipients(marked(mark=False), owner(told), ACCEPT, HandOverChoice(way=way, reason=""))
    assert pick.recipients(marked(), owner(told), ACCEPT, HandOverChoice(way=way, reason="", nvidia_default=True))


def test_a_limit_that_would_not_arrive_refuses_the_start() -> None:
    mps = ContainerEdits(mounts=(Mount(host_path="/a", container_path="/a"),))
    limited = Accept((make_grant(0),), limits={MAIN: mps})
    found = pick.recipients(marked(), owner(response(f"gpushare.dev/share={NAME}")), limited, CDI)
    assert [each.extra for each in found] == [mps]
    with pytest.raises(HandOverError) as caught:
        pick.recipients(marked(mark=False), owner(response()), limited, CDI)
    assert str(caught.value) == (
        "container main came to the node when GPUs were not handed over by CDI, and what now holds its memory limit"
        f" comes by CDI only; {SUITS}"
    )
