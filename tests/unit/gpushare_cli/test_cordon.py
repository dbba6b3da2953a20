import io
from collections.abc import Callable

import pytest

from gpushare import names
from gpushare.cluster import cordons
from gpushare.cluster.cordons import Cordon
from gpushare.errors import SettingsError
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import NodeInventory
from gpushare.units import GIB
from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.evict import drain as command
from gpushare_cli.evict.gpu_cordon import GpuName
from testing.builders import make_gpu, make_inventory, make_mig, make_node
from testing.cli.draining import cordons_of
from testing.cli.explaining import kube_of
from testing.fakes.kube import FakeKube

NODE = make_node(make_inventory(15, 15))
MIG = NodeInventory(node=NodeName("node-a"), gpus=(make_gpu(1), make_mig(0, 0), make_mig(0, 1)), unit=GIB)
TWO = make_inventory(15, 15)


@pytest.mark.parametrize(
    ("change", "before", "inventory", "name", "after"),
    [
        (Cordon.closed, "", TWO, "0", "GPU-0"),
        (Cordon.closed, "", TWO, "GPU-1", "GPU-1"),
        (Cordon.closed, "1", TWO, "0", "1,GPU-0"),
        (Cordon.closed, "0", TWO, "0", "0"),
        (Cordon.closed, " 0 ,GPU-9", TWO, "GPU-0", " 0 ,GPU-9"),
        (Cordon.closed, "", MIG, "0:1", "MIG-0-1"),
        (Cordon.closed, "", MIG, "0", "0"),
        (Cordon.closed, "0:0", MIG, "0", "0:0,0"),
        (Cordon.closed, "0:0,0:1", MIG, "0", "0:0,0:1"),
        (Cordon.opened, "GPU-0", TWO, "0", ""),
        (Cordon.opened, "0", TWO, "GPU-0", ""),
        (Cordon.opened, "0,1, GPU-0", TWO, "0", "1"),
        (Cordon.opened, "GPU-9,1", TWO, "GPU-9", "1"),
        (Cordon.opened, "GPU-9", None, "GPU-9", ""),
        (Cordon.opened, "0:0,0", MIG, "0", ""),
        (Cordon.opened, "MIG-0-1,0:0", MIG, "0:1", "0:0"),
    ],
)
def test_a_gpu_is_added_once_and_removed_however_it_was_written(
    change: Callable[..., Cordon], before: str, inventory: NodeInventory | None, name: str, after: str
) -> None:
    assert change(Cordon(gpus=before), inventory, name) == Cordon(gpus=after)


def test_what_is_not_cordoned_by_itself_or_not_there_is_told() -> None:
    for asked, message in (
        (lambda: Cordon(gpus="1").opened(TWO, "0"), "GPU '0' is not cordoned; gpushare.dev/cordoned-gpus is '1'"),
        (lambda: Cordon(gpus="0").opened(MIG, "0:1"), "GPU '0:1' is cordoned together with 0:0, by '0'; uncordon that"),
        (lambda: cordons.meant(make_inventory(), "0"), "node node-a has no GPU '0'; its GPUs: none"),
    ):
        with pytest.raises(SettingsError) as error:
            asked()
        assert str(error.value) == message


HELD = Cordon(gpus="1,GPU-0,MIG-0-1", held="GPU-0,MIG-0-1")


def test_each_takes_back_the_cordon_that_it_has_made() -> None:
    for found, expected in (
        (Cordon(gpus="1").holding([GpuUuid("GPU-0")]), Cordon(gpus="1,GPU-0", held="GPU-0")),
        (Cordon().holding([GpuUuid("GPU-0"), GpuUuid("GPU-1")]), Cordon(gpus="GPU-0,GPU-1", held="GPU-0,GPU-1")),
        (HELD.released([GpuUuid("GPU-0")]), Cordon(gpus="1,MIG-0-1", held="MIG-0-1")),
        (HELD.released([GpuUuid("GPU-1")]), HELD),
        (Cordon(gpus="GPU-0").released([GpuUuid("GPU-0")]), Cordon(gpus="GPU-0")),
        (Cordon(gpus="GPU-0", held="GPU-0").closed(TWO, "0"), Cordon(gpus="GPU-0")),
        (Cordon(gpus="GPU-0", held="GPU-0").closed(TWO, "1"), Cordon(gpus="GPU-0,GPU-1", held="GPU-0")),
        (Cordon(gpus="MIG-0-1", held="MIG-0-1").closed(MIG, "0"), Cordon(gpus="MIG-0-1,0")),
        (Cordon(gpus="GPU-0,GPU-1", held="GPU-0,GPU-1").opened(TWO, "0"), Cordon(gpus="GPU-1", held="GPU-1")),
        (Cordon(gpus="0", held="GPU-1").opened(TWO, "0"), Cordon()),
    ):
        assert found == expected


def test_gpus_are_held_while_no_one_has_opened_or_closed_one() -> None:
    for gpus, held, expected in (
        ("GPU-0,GPU-1", "GPU-0,GPU-1", True),
        ("GPU-0,GPU-1", "GPU-0", False),
        ("GPU-0", "GPU-0,GPU-1", False),
        ("", "", False),
    ):
        assert Cordon(gpus=gpus, held=held).holds([GpuUuid("GPU-0"), GpuUuid("GPU-1")]) is expected


def run(api: FakeKube, gpu: str, *, undo: bool = False) -> tuple[int, str]:
    err = io.StringIO()
    streams = Streams(out=err, err=err)
    act = command.uncordon if undo else command.cordon
    return console.answered(streams, lambda: act(api, streams, GpuName.parse(gpu))), err.getvalue()


def test_a_cordon_is_written_and_taken_back() -> None:
    api = kube_of([NODE])
    assert run(api, "node-a/1") == (0, "node-a/1: cordoned; new pods stay away from it\n")
    assert cordons_of(api) == "GPU-1"
    assert run(api, "node-a/1") == (0, "node-a/1: was cordoned before; new pods stay away from it\n")
    assert run(api, "node-a/1", undo=True) == (0, "node-a/1: uncordoned; it takes new pods\n")
    assert names.ANNOTATION_CORDON not in api.read("/api/v1/nodes/node-a")["metadata"]["annotations"]
    code, message = run(api, "node-a/1", undo=True)
    assert (code, message) == (2, "error: GPU '1' is not cordoned; gpushare.dev/cordoned-gpus is ''\n")


def test_what_another_writes_at_the_same_time_is_kept() -> None:
    api = kube_of([NODE])
    annotations = {"metadata": {"annotations": {names.ANNOTATION_CORDON: "0"}}}
    read = api.get

    def raced(path: str, params: kube.Params | None = None, *, timeout_s: float = 5.0) -> kube.JsonObject:
        found = read(path, params, timeout_s=timeout_s)
        if cordons_of(api) is None:
            api.patch(path, annotations)
        return found

    api.get = raced  # type: ignore[method-assign] # a side door
    assert run(api, "node-a/1")[0] == 0
    assert cordons_of(api) == "0,GPU-1"
    api.fail_next(lambda call: call.verb == "patch", kube.ConflictError("changed"), times=5)
    assert "node node-a was changed by others 5 times" in run(api, "node-a/1", undo=True)[1]


@pytest.mark.parametrize("undo", [False, True])
def test_who_names_no_node_or_may_not_write_it_is_told_so(undo: bool) -> None:
    node = make_node(make_inventory(15, 15))
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
    api = kube_of([node])
    api.fail_next(lambda call: call.verb == "patch", kube.ForbiddenError("nodes is forbidden"))
    assert run(api, "none/0", undo=undo) == (1, "error: there is no node none\n")
    told = "error: not allowed: nodes is forbidden; patching nodes is needed\n"
    assert run(api, "node-a/1" if undo else "node-a/0", undo=undo) == (1, told)


@pytest.mark.parametrize("text", ["node-a", "/0", "node-a/", "a/b/c", "a/0,1"])
def test_what_names_no_gpu_is_a_wrong_argument(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        GpuName.parse(text)
    assert str(error.value) == f"GPU {text!r}: write NODE/GPU, such as node-a/0, node-a/0:1 or node-a/GPU-UUID"
