"""What a container gets: its GPUs, and their parts of NVIDIA's specs."""

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from deviceplugin import pods
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.cdi import ContainerEdits, Mount, VendorSpec
from deviceplugin.decide import Accept
from deviceplugin.handover import choice as ways, devices as picking
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.devices import HandOverError, pick
from deviceplugin.identify import Owner
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.identity import ContainerName, PodUid
from gpushare.model.gpu import HandOver
from testing.builders import Json, make_grant
from testing.deviceplugin import nvidia
from testing.deviceplugin.build import bound_pod
from testing.deviceplugin.nvidia import (
    BY_BOTH,
    BY_INDEX,
    BY_TYPE,
    BY_UUID,
    CONTROL,
    MANAGEMENT,
    MIG,
    MIG_UUIDS,
    ONLY_ALL,
    gpu,
    instance,
    spec,
)
from tests.unit.deviceplugin import golden


def picked(found: RawGpu, *specs: VendorSpec) -> ContainerEdits:
    edits = pick(found, specs)
    assert edits is not None
    return edits


@pytest.mark.parametrize("index", range(4))
def test_a_gpu_is_found_whatever_its_device_is_called(index: int) -> None:
    for document in (BY_UUID, BY_INDEX, BY_TYPE, BY_BOTH, ONLY_ALL, MANAGEMENT):
        nodes = nvidia.paths(picked(gpu(index), spec(document)))
        assert [path for path in nodes if not path.startswith("/dev/dri/")] == [*CONTROL, f"/dev/nvidia{index}"]


def test_a_device_of_all_gpus_gives_nothing_but_the_nodes_of_one() -> None:
    several = nvidia.device(
        "all", *map(nvidia.node, range(4)), nvidia.plain("/dev/dri/card0"), env=["X=1"], mounts=[], hooks=[]
    )
    edits = picked(gpu(2), spec(nvidia.document(several)))
    assert nvidia.paths(edits) == [*CONTROL, "/dev/nvidia2"]
    assert dict(edits.env).keys() == {"NVIDIA_CTK_LIBCUDA_DIR"}


def with_common(*nodes: Any) -> Any:
    """A spec of one GPU with more of what every device gets."""
    document = nvidia.document(nvidia.device("0", nvidia.node(0)))
    document["containerEdits"]["deviceNodes"] += nodes
    return document


def test_a_spec_that_names_gpus_wrongly_gives_the_granted_one_alone() -> None:
    for document in (
        nvidia.document(nvidia.device(nvidia.UUIDS[0], nvidia.node(1)), nvidia.device("0", nvidia.node(0))),
        nvidia.document(nvidia.device(nvidia.UUIDS[0], *map(nvidia.node, range(4)))),
        with_common(nvidia.node(3), nvidia.plain("/dev/dri/card1"), nvidia.cap(9)),
        nvidia.document(*MIG["devices"][:2]),  # only instances of it
    ):
        assert nvidia.paths(picked(gpu(0), spec(document))) == [*CONTROL, "/dev/nvidia0"], document


def test_numbers_of_devices_are_those_of_the_node_and_not_of_the_file() -> None:
    wrong = nvidia.document(nvidia.device("0", nvidia.node(0) | {"type": "c", "major": 195, "minor": 3}))
    wrong["containerEdits"]["deviceNodes"].append(nvidia.plain("/dev/nvidia-modeset") | {"type": "c", "major": 8})
    nodes = picked(gpu(0), spec(wrong)).device_nodes
    assert {node.path for node in nodes} == {*CONTROL, "/dev/nvidia-modeset", "/dev/nvidia0"}
    assert all((node.kind, node.major, node.minor) == ("", None, None) for node in nodes)


def test_a_driver_in_a_container_has_its_devices_elsewhere_on_the_host() -> None:
    nodes = [
        {"path": f"/dev/nvidia{i}", "hostPath": f"/run/nvidia/driver/dev/nvidia{i}", "major": 195, "minor": i}
        for i in range(2)
    ]
    for document in (nvidia.document(nvidia.device("1", nodes[1])), nvidia.document(nvidia.device("all", *nodes))):
        found = picked(gpu(1), spec(document)).device_nodes[-1]
        assert (found.path, found.host_path) == ("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1")


@pytest.mark.parametrize("document", [nvidia.document(nvidia.device("0", nvidia.node(0))), MANAGEMENT])
def test_a_gpu_that_came_after_the_spec_was_written(document: Any) -> None:
    edits = picked(gpu(3, 7), spec(document))
    assert nvidia.paths(edits) == [*CONTROL, "/dev/nvidia7"]
    assert len(edits.mounts) == 1
    several = picked(replace(gpu(3, 7), caps=tuple(range(9))), spec(document))
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in range(9)]
    assert nvidia.paths(several) == [*CONTROL, *caps, "/dev/nvidia7"]


def test_the_drivers_own_nodes_come_once_and_under_their_own_names() -> None:
    nodes = [*map(nvidia.plain, CONTROL), {"path": "/dev/nvidiactl", "hostPath": "/dev/nvidia3"}, nvidia.node(0)]
    document = nvidia.document(nvidia.device("all", *nodes, {"path": "/dev/x", "hostPath": "/dev/nvidia-modeset"}))
    assert nvidia.paths(picked(gpu(0), spec(document))) == [*CONTROL, "/dev/nvidia0"]


@pytest.mark.parametrize(("part", "caps"), [(instance(0, 0, 66, 67), (66, 67)), (instance(1, 0, 75, 76), (75, 76))])
def test_a_mig_instance_has_the_node_of_its_gpu_and_its_own_capabilities(part: RawGpu, caps: tuple[int, int]) -> None:
    by_uuid, by_type = (
        nvidia.document(
            *(
                nvidia.device(name, nvidia.node(0), nvidia.cap(first), nvidia.cap(first + 1))
                for name, first in zip(called, (66, 75), strict=False)
            )
        )
        for called in (MIG_UUIDS, ("mig0:0", "mig0:1"))
    )
    only_all = nvidia.document(MIG["devices"][-1])
    expected = ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]
    for document in (MIG, by_uuid, by_type, only_all, MANAGEMENT):
        assert nvidia.paths(picked(part, spec(document)))[3:] == expected


@pytest.mark.parametrize("minor", [0, None])
def test_a_mig_instance_whose_capabilities_the_driver_does_not_say(minor: int | None) -> None:
    by_uuid = nvidia.document(
        nvidia.device(MIG_UUIDS[0], nvidia.node(0), nvidia.cap(66), nvidia.cap(67)), nvidia.device("0", nvidia.node(0))
    )
    expected = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]
    for document in (by_uuid, MIG):
        assert nvidia.paths(picked(instance(0, minor), spec(document)))[3:] == expected
    whole = nvidia.document(nvidia.device(MIG_UUIDS[0], nvidia.node(0)))
    for document in (whole, BY_INDEX, ONLY_ALL):
        assert pick(instance(0, minor), [spec(document)]) is None
    assert nvidia.paths(picked(gpu(1), spec(MIG)))[3:] == ["/dev/nvidia1"]  # a whole one beside them


def test_without_a_minor_number_only_a_device_of_one_gpu_will_do() -> None:
    for document in (BY_UUID, BY_INDEX):
        assert "/dev/nvidia2" in nvidia.paths(picked(gpu(2, None), spec(document)))
    assert pick(gpu(2, None), [spec(ONLY_ALL)]) is None


def test_the_spec_for_containers_is_preferred_then_the_one_that_counts_more_and_those_of_others_are_passed_over() -> (
    None
):
    for document, taken in ((ONLY_ALL, 1), (BY_INDEX, 0)):
        specs = [
            spec({**each, "containerEdits": {"env": [f"FROM={i}"]}}) for i, each in enumerate((document, BY_INDEX))
        ]
        assert picked(gpu(1), *specs).env == (("FROM", str(taken)),)
    for kind in (
        "amd.com/gpu",
        "k8s.gpu.nvidia.com/claim",
        "notnvidia.com/gpu",
        "gpushare.dev/share",
        "nvidia.com/nic",
    ):
        other = nvidia.document(nvidia.device("0", nvidia.node(0)), kind=kind)
        assert pick(gpu(0), [spec(other)]) is pick(gpu(0), []) is None


PREFIXES = st.sampled_from(["", "/", "/dev/..", "/dev/.", "/run/nvidia/driver", "//dev/.."])
NAMES = st.sampled_from(["nvidia-uvm", "card", "nvidia-caps/nvidia-cap9", *(f"nvidia{i}" for i in range(4))])
PATHS = st.builds("{}/dev/{}".format, PREFIXES, NAMES)
NODES = st.fixed_dictionaries(
    {"path": PATHS},
    optional={"hostPath": PATHS, "type": st.just("c"), "major": st.just(195), "minor": st.integers(0, 3)},
)
DEVICES = st.dictionaries(
    st.sampled_from([*nvidia.UUIDS, "0", "1", "all", "gpu2"]), st.lists(NODES, max_size=5), min_size=1, max_size=4
)


@given(DEVICES, st.lists(NODES, max_size=3), st.integers(0, 3))
def test_whatever_a_spec_says_no_other_gpu_comes_out_of_it(
    devices: dict[str, list[Any]], common: list[Any], index: int
) -> None:
    document = nvidia.document(*(nvidia.device(name, *nodes) for name, nodes in devices.items()))
    document["containerEdits"]["deviceNodes"] += common
    edits = picked(gpu(index), spec(document))
    names = [Path(path).name for node in edits.device_nodes for path in (node.path, node.host_path or node.path)]
    assert {name for name in names if re.fullmatch(r"nvidia(-cap)?\d+", name)} == {f"nvidia{index}"}
    assert all((node.kind, node.major, node.minor) == ("", None, None) for node in edits.device_nodes)


MAIN = ContainerName("main")
CDI, ENVVAR = HandOverChoice(way=HandOver.CDI, reason=""), HandOverChoice(way=HandOver.ENVVAR, reason="")
NAME = ways.stem(["a"]) + "0" * 16


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
MPS = ContainerEdits(mounts=(Mount(host_path="/a", container_path="/a"),))
LIMITED = Accept((make_grant(0),), limits={MAIN: MPS})


def test_a_pod_does_not_start_without_its_runtime_class_or_a_way_for_its_limit() -> None:
    found = []
    for pod, told, accepted, choice in (
        (marked(), None, ACCEPT, ENVVAR),
        (marked(), response(), ACCEPT, ENVVAR),
        (marked(), response(), ACCEPT, CDI),
        (marked(mark=False), response(), LIMITED, CDI),
    ):
        with pytest.raises(HandOverError) as caught:
            picking.recipients(pod, owner(told), accepted, choice)
        found.append(str(caught.value))
    golden.compare("recipients", found)


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
        assert [each.names for each in picking.recipients(pod, owner(told), ACCEPT, choice)] == expected


@pytest.mark.parametrize("told", [response(), response(mounts=(f"{ways.MOUNTS}gpushare.dev/share/{NAME}",))])
@pytest.mark.parametrize("way", HandOver)
def test_only_a_device_that_a_container_runtime_was_told_of_reaches_it(told: str, way: HandOver) -> None:
    """A node may have changed since the pod came to it; runc passes over what is said to NVIDIA's runtime."""
    with pytest.raises(HandOverError, match="delete the pod and create it again"):
        picking.recipients(marked(), owner(told), ACCEPT, HandOverChoice(way=way, reason=""))
    assert picking.recipients(marked(mark=False), owner(told), ACCEPT, HandOverChoice(way=way, reason=""))
    assert picking.recipients(marked(), owner(told), ACCEPT, HandOverChoice(way=way, reason="", nvidia_default=True))


def test_what_holds_a_container_to_its_share_is_handed_over_too() -> None:
    found = picking.recipients(marked(), owner(response(f"gpushare.dev/share={NAME}")), LIMITED, CDI)
    assert [each.extra for each in found] == [MPS]
