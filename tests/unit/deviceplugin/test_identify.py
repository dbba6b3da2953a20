"""Device IDs lead to exactly one container, or to none."""

from dataclasses import replace

import orjson
import pytest

from deviceplugin import identify, resources
from deviceplugin.identify import ListedContainer, Owner, Recorded
from gpushare.errors import WireError
from gpushare.identity import ContainerName, PodUid
from tests.unit.deviceplugin import golden


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


def test_what_the_records_do_not_say_is_not_guessed() -> None:
    main = listed("p", "main", "a")
    found = [
        identify.owner(ids(asked), pods, checkpoint)
        for asked, pods, checkpoint in (
            ("", [], []),
            ("a", [], []),
            ("a b c d e", [listed("p", "main", "a b c d")], [recorded("1", "main", "a b c d e f")]),
            ("a", [main, listed("q", "main", "a")], []),
            ("a", [main, listed("p", "main", "a", "other")], [recorded("1", "main", "a")]),
            ("a", [main], [recorded("1", "main", "a"), recorded("2", "main", "a")]),
            ("a", [main], [recorded("1", "other", "a"), recorded("1", "init", "a")]),
        )
    ]
    golden.compare("identify", map(str, found))


def entry(device_ids: object, resource: str = "aliyun.com/gpu-mem") -> dict[str, object]:
    held = {"ResourceName": resource, "DeviceIDs": device_ids, "AllocResp": ""}
    return {"PodUID": "1", "ContainerName": "main", **held}


def checkpoint_of(*entries: dict[str, object]) -> bytes:
    return orjson.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})


@pytest.mark.parametrize("device_ids", [["a", "b"], {"-1": ["a", "b"]}, {"0": ["a"], "1": ["b"]}])
def test_checkpoints_of_old_and_new_kubelets_are_read(device_ids: object) -> None:
    text = checkpoint_of({**entry(device_ids), "AllocResp": "Cg=="})  # what Allocate has answered
    (read,) = identify.read_checkpoint(text, resources.MEMORY)
    assert read == replace(recorded("1", "main", "a b"), response="Cg==")


def test_every_resource_has_its_own_entries_and_a_checkpoint_may_be_empty() -> None:
    offered = resources.offered(percent=True, whole_gpus=True)
    text = checkpoint_of(*(entry([one.prefix], resource=one.name) for one in offered))
    for resource in offered:
        assert identify.read_checkpoint(text, resource) == [recorded("1", "main", resource.prefix)]
    assert identify.read_checkpoint(b'{"Data": {"PodDeviceEntries": null}, "Checksum": 0}', resources.MEMORY) == []


def test_a_broken_checkpoint_is_an_error_and_no_crash() -> None:
    broken = [
        b"[]",
        b"{}",
        b'{"Data": {"PodDeviceEntries": 3}}',
        b'{"Data": {"PodDeviceEntries": [{}]}}',
        checkpoint_of(entry(None)),
        checkpoint_of(entry([1])),
        checkpoint_of({**entry(["a"]), "PodUID": 7}),
    ]
    said = [golden.error(WireError, identify.read_checkpoint, text, resources.MEMORY) for text in broken]
    golden.compare("checkpoint", said)
    for text in (b"", b'{"Data"', b"\xff\xfe", b"garbage"):
        why = golden.error(WireError, identify.read_checkpoint, text, resources.MEMORY)
        assert why.startswith("kubelet_internal_checkpoint: not JSON (")
