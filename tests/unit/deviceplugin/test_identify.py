"""Device IDs lead to exactly one container, or to none."""

import orjson
import pytest

from deviceplugin import identify, resources
from deviceplugin.identify import ListedContainer, Owner, Recorded
from deviceplugin.resources import Resource
from gpushare.errors import WireError
from gpushare.identity import ContainerName, PodUid


def ids(text: str) -> frozenset[str]:
    return frozenset(text.split())


def listed(name: str, container: str, text: str, namespace: str = "default") -> ListedContainer:
    held, which = ids(text), ContainerName(container)
    return ListedContainer(resource="aliyun.com/gpu-mem", namespace=namespace, name=name, container=which, ids=held)


def recorded(uid: str, container: str, text: str) -> Recorded:
    return Recorded(uid=PodUid(uid), container=ContainerName(container), ids=ids(text))


def owner(uid: str | None, name: str, *containers: str) -> Owner:
    return Owner(
        uid=None if uid is None else PodUid(uid),
        namespace="default" if name else "",
        name=name,
        containers=tuple(ContainerName(container) for container in containers),
        responses=None if uid is None else {ContainerName(container): "" for container in containers},
    )


INIT = (recorded("1", "init", "a b"),)


def test_what_allocate_has_answered_is_known_from_the_checkpoint() -> None:
    (read,) = identify.read_checkpoint(checkpoint_of({**entry(["a"]), "AllocResp": "Cg=="}), resources.MEMORY)
    assert read.response == "Cg=="


@pytest.mark.parametrize(
    ("asked", "pods", "checkpoint", "expected"),
    [
        (
            "d c",
            [listed("p", "main", "a b"), listed("q", "main", "c d")],
            [recorded("1", "main", "a b"), recorded("2", "main", "c d")],
            owner("2", "q", "main"),
        ),
        ("a", [listed("p", "main", "a")], [], owner(None, "p", "main")),
        ("a b", [], [recorded("1", "init", "a b")], owner("1", "", "init")),
        # A container that took over devices of an init container tells the name of their pod.
        ("a b", [listed("p", "main", "a b c")], [*INIT, recorded("1", "main", "a b c")], owner("1", "p", "init")),
        ("a b", [listed("p", "main", "a")], [*INIT, recorded("1", "main", "a")], owner("1", "p", "init")),
        ("a b", [listed("p", "main", "b x")], [*INIT, recorded("1", "main", "b x")], owner("1", "p", "init")),
        # All that have passed on the same ones are named, and each once.
        ("a b", [listed("p", "main", "a b")], [*INIT, recorded("1", "main", "a b")], owner("1", "p", "init", "main")),
        ("a", [], [recorded("1", "main", "a"), recorded("1", "main", "a")], owner("1", "", "main")),
    ],
)
def test_the_records_of_the_kubelet_lead_to_one_owner(
    asked: str, pods: list[ListedContainer], checkpoint: list[Recorded], expected: Owner
) -> None:
    assert identify.owner(ids(asked), pods, checkpoint) == expected


NO_ONE = "neither PodResources nor kubelet_internal_checkpoint knows a container with exactly the devices"
SEVERAL = "several pods hold the devices a"


@pytest.mark.parametrize(
    ("asked", "pods", "checkpoint", "message"),
    [
        ("", [], [], "the kubelet named no device IDs"),
        ("a", [], [], f"{NO_ONE} a"),
        (
            "a b c d e",
            [listed("p", "main", "a b c d")],
            [recorded("1", "main", "a b c d e f")],
            f"{NO_ONE} a, b, c and 2 more",
        ),
        ("a", [listed("p", "main", "a"), listed("q", "main", "a")], [], SEVERAL),
        ("a", [listed("p", "main", "a"), listed("p", "main", "a", "other")], [recorded("1", "main", "a")], SEVERAL),
        ("a", [listed("p", "main", "a")], [recorded("1", "main", "a"), recorded("2", "main", "a")], SEVERAL),
        (
            "a",
            [listed("p", "main", "a")],
            [recorded("1", "other", "a"), recorded("1", "init", "a")],
            "PodResources gives the devices a to container main, kubelet_internal_checkpoint to other, init",
        ),
    ],
)
def test_what_the_records_do_not_say_is_not_guessed(
    asked: str, pods: list[ListedContainer], checkpoint: list[Recorded], message: str
) -> None:
    assert identify.owner(ids(asked), pods, checkpoint) == message


def entry(device_ids: object, resource: str = "aliyun.com/gpu-mem") -> dict[str, object]:
    held = {"ResourceName": resource, "DeviceIDs": device_ids, "AllocResp": ""}
    return {"PodUID": "1", "ContainerName": "main", **held}


def checkpoint_of(*entries: dict[str, object]) -> bytes:
    return orjson.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})


@pytest.mark.parametrize("device_ids", [["a", "b"], {"-1": ["a", "b"]}, {"0": ["a"], "1": ["b"]}])
def test_checkpoints_of_old_and_new_kubelets_are_read(device_ids: object) -> None:
    assert identify.read_checkpoint(checkpoint_of(entry(device_ids)), resources.MEMORY) == [
        recorded("1", "main", "a b")
    ]


ALL = resources.offered(percent=True, whole_gpus=True)


@pytest.mark.parametrize("resource", ALL, ids=lambda resource: resource.prefix)
def test_every_resource_has_its_own_entries(resource: Resource) -> None:
    text = checkpoint_of(*(entry([one.prefix], resource=one.name) for one in ALL))
    assert identify.read_checkpoint(text, resource) == [recorded("1", "main", resource.prefix)]


def test_a_checkpoint_may_be_empty() -> None:
    assert identify.read_checkpoint(b'{"Data": {"PodDeviceEntries": null}, "Checksum": 0}', resources.MEMORY) == []


SHAPE = (
    "kubelet_internal_checkpoint: expected Data.PodDeviceEntries with PodUID, ContainerName, ResourceName and DeviceIDs"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[]", f"{SHAPE} (TypeError: list indices must be integers or slices, not str)"),
        (b"{}", f"{SHAPE} (KeyError: 'Data')"),
        (b'{"Data": {"PodDeviceEntries": 3}}', f"{SHAPE} (TypeError: 'int' object is not iterable)"),
        (b'{"Data": {"PodDeviceEntries": [{}]}}', f"{SHAPE} (KeyError: 'ResourceName')"),
        (checkpoint_of(entry(None)), f"{SHAPE} (AttributeError: 'NoneType' object has no attribute 'values')"),
        (checkpoint_of(entry([1])), f"{SHAPE} (TypeError: 1 is not a string)"),
        (checkpoint_of({**entry(["a"]), "PodUID": 7}), f"{SHAPE} (TypeError: 7 is not a string)"),
    ],
)
def test_a_broken_checkpoint_is_an_error_and_no_crash(text: bytes, message: str) -> None:
    with pytest.raises(WireError) as caught:
        identify.read_checkpoint(text, resources.MEMORY)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", [b"", b'{"Data"', b"\xff\xfe", b"garbage"])
def test_a_checkpoint_that_is_no_json_is_an_error_and_no_crash(text: bytes) -> None:
    with pytest.raises(WireError, match=r"^kubelet_internal_checkpoint: not JSON \(.+\)$"):
        identify.read_checkpoint(text, resources.MEMORY)
