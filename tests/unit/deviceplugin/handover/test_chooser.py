"""How a node hands over, found out again and again."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.handover.chooser import Chooser
from deviceplugin.handover.spec_files import SpecFiles
from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from gpushare.wire import inventory as wire
from testing.builders import Json, make_inventory, make_node
from testing.clock import ManualClock
from testing.deviceplugin.build import NODE, fields_of
from testing.fakes.kube import FakeKube

PATH = "/api/v1/nodes/node-a"


def node_with(runtime: str, **labels: str) -> Json:
    node = make_node(name=NODE)
    node["metadata"]["labels"] = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.36.2"}
    return node


@pytest.fixture
def api() -> FakeKube:
    return FakeKube()


def chooser_of(api: FakeKube, directory: Path, clock: ManualClock | None = None, **fields: Any) -> Chooser:
    given: dict[str, Any] = {
        "api": api,
        "node": NODE,
        "clock": clock or ManualClock(),
        "files": SpecFiles(directory),
        "setting": "auto",
        "nvidia_default": False,
        "simulated": True,
        "has_nvidia_specs": lambda: False,
        "recheck_s": 300.0,
    }
    return Chooser(**given | fields)


def test_before_the_node_was_read_the_directory_decides(api: FakeKube, tmp_path: Path) -> None:
    assert chooser_of(api, tmp_path).latest().way is HandOver.CDI
    assert chooser_of(api, tmp_path / "none").latest().way is HandOver.ENVVAR


def test_what_is_only_guessed_agrees_with_no_inventory(
    api: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that needs NVIDIA's runtime must not look like one that does not, also not for a moment."""
    monkeypatch.setattr("deviceplugin.handover.chooser._FIRST_S", 250.0)
    cdi, envvar = (replace(make_inventory(15), hand_over=way) for way in (HandOver.CDI, HandOver.ENVVAR))
    chooser = chooser_of(api, tmp_path)
    assert chooser.latest().way is HandOver.CDI
    assert not chooser.agrees(cdi)
    api.seed(PATH, node_with("containerd://1.6.20"))
    reader = threading.Thread(target=chooser.look)
    reader.start()
    assert chooser.settled().way is HandOver.ENVVAR
    reader.join()
    assert chooser.agrees(envvar)
    assert not chooser.agrees(cdi)


def test_labels_are_not_known_before_the_node_was_read(api: FakeKube, tmp_path: Path) -> None:
    chooser = chooser_of(api, tmp_path)
    assert chooser.limits_label() is chooser.oversubscription_label() is None
    api.seed(PATH, node_with("containerd://2.1.9", limits="mps", oversubscription="1.5"))
    chooser.look()
    assert (chooser.limits_label(), chooser.oversubscription_label()) == ("mps", "1.5")


def test_the_node_is_read_once_in_a_while(api: FakeKube, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = ManualClock()
    chooser = chooser_of(api, tmp_path, clock)
    api.seed(PATH, node_with("containerd://1.6.20"))
    chooser.look()
    assert chooser.known.is_set()
    assert chooser.latest().way is HandOver.ENVVAR
    labels = {"metadata": {"labels": {"gpushare.dev/hand-over": "cdi"}}}
    api.patch(PATH, labels, kind=kube.PatchKind.MERGE, timeout_s=1.0)
    chooser.look()
    assert chooser.latest().way is HandOver.ENVVAR
    clock.at += 300.0
    chooser.look()
    assert chooser.latest().way is HandOver.CDI
    assert [said["way"] for said in fields_of(caplog, "hand-over")] == ["envvar", "cdi"]
    assert api.count("get") == 2


def test_a_directory_that_comes_later_is_noticed(api: FakeKube, tmp_path: Path) -> None:
    api.seed(PATH, node_with("containerd://2.1.9"))
    chooser = chooser_of(api, tmp_path / "cdi")
    chooser.look()
    assert chooser.latest().way is HandOver.ENVVAR
    (tmp_path / "cdi").mkdir()
    chooser.look()
    assert chooser.latest().way is HandOver.CDI


def test_a_directory_that_was_removed_under_its_mount_is_none(api: FakeKube, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    mounted = os.open(tmp_path / "cdi", os.O_RDONLY)
    try:
        chooser = chooser_of(api, Path(f"/proc/self/fd/{mounted}"))
        assert chooser.latest().way is HandOver.CDI
        (tmp_path / "cdi").rmdir()
        api.seed(PATH, node_with("containerd://2.1.9"))
        chooser.look()
        assert chooser.latest().way is HandOver.ENVVAR
        assert chooser.latest().reason.endswith("not writable, or was removed since its pod started")
    finally:
        os.close(mounted)


class Specs:
    """Those of NVIDIA's on a node with real GPUs and containerd 2.1, which come and go."""

    def __init__(self, api: FakeKube, directory: Path, published: HandOver | None, *, there: bool) -> None:
        node = node_with("containerd://2.1.9")
        if published:
            inventory = replace(make_inventory(15), hand_over=published)
            node["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: wire.encode(inventory)}
        api.seed(PATH, node)
        self.there, self.clock = there, ManualClock()
        self.chooser = chooser_of(api, directory, self.clock, simulated=False, has_nvidia_specs=lambda: self.there)

    def after(self, seconds: float, *, there: bool) -> HandOver | None:
        """What is known then."""
        self.clock.at += seconds
        self.there = there
        self.chooser.look()
        return self.chooser.latest().way if self.chooser.known.is_set() else None


CDI, ENVVAR = HandOver.CDI, HandOver.ENVVAR


def test_specs_that_are_missing_for_a_while_change_nothing(api: FakeKube, tmp_path: Path) -> None:
    """A driver or toolkit that is replaced takes them away and brings them back."""
    specs = Specs(api, tmp_path, None, there=True)
    assert [specs.after(s, there=s == 0) for s in (0, 10, 589)] == [CDI] * 3
    injects = "containerd 2.1.9 injects CDI devices"
    missing = f"{injects}; NVIDIA's CDI specs are missing, without which no container starts"
    assert specs.chooser.latest().reason == missing
    assert specs.after(0, there=True) is CDI
    assert specs.chooser.latest().reason == injects
    assert [specs.after(s, there=False) for s in (599, 1)] == [CDI, ENVVAR]


@pytest.mark.parametrize(
    ("published", "looks", "ways"),
    [
        (CDI, [(0, False), (599, False), (1, False)], [CDI, CDI, ENVVAR]),  # goes on until they are written again
        (None, [(0, False), (29, False), (0, True)], [None, None, CDI]),  # a new node: they may come
        (None, [(0, False), (30, False)], [None, ENVVAR]),
        (ENVVAR, [(0, False), (1, True)], [ENVVAR, CDI]),
    ],
)
def test_specs_that_are_not_there_are_waited_for_by_what_the_node_has_handed_over_by(
    api: FakeKube,
    tmp_path: Path,
    published: HandOver | None,
    looks: list[tuple[float, bool]],
    ways: list[HandOver | None],
) -> None:
    specs = Specs(api, tmp_path, published, there=False)
    assert [specs.after(seconds, there=there) for seconds, there in looks] == ways


class Stop:
    """Set after so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks + 1

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


def test_a_node_that_cannot_be_read_is_tried_again(
    api: FakeKube, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    chooser = chooser_of(api, tmp_path, clock)
    api.seed(PATH, node_with("containerd://1.6.20"))
    api.fail_next(lambda call: call.verb == "get", kube.UnreachableError("connection refused"))
    chooser.run(Stop(1))  # type: ignore[arg-type]
    assert not chooser.known.is_set()
    assert fields_of(caplog, "node not read")[0]["error"] == "connection refused"
    chooser.run(Stop(1))  # type: ignore[arg-type]
    assert chooser.known.is_set()
    assert clock.waits[1] == 10.0
