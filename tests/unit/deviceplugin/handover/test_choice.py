"""What a node can, and what its administrator says, decide how its GPUs are handed over, again and again."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.causes import Code, code
from deviceplugin.handover import choice
from deviceplugin.handover.choice import Chooser, Facts
from deviceplugin.handover.spec_files import SpecFiles
from deviceplugin.node import NodeFacts, read_node
from gpushare import names
from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from gpushare.wire import inventory as wire
from testing.builders import Json, make_inventory, make_node
from testing.clock import ManualClock
from testing.deviceplugin.build import NODE, fields_of
from testing.fakes.kube import FakeKube
from tests.unit.deviceplugin import golden

KUBELET = "v1.36.2"


def facts(runtime: str = "containerd://2.1.9", kubelet: str = KUBELET, label: str = "", **fields: Any) -> Facts:
    given: dict[str, Any] = {"directory": "/var/run/cdi", "writable": True, "nvidia_specs": True} | fields
    return Facts(node=NodeFacts(runtime=runtime, kubelet=kubelet, hand_over_label=label), **given)


FACTS = [
    facts("containerd://2.0.0"),
    facts("containerd://2.1.9-k3s1"),
    facts("cri-o://1.28.0"),
    facts("", ""),
    facts(nvidia_specs=False, simulated=True),
    facts("containerd://1.7.24"),
    facts("containerd://1.6.20~ds1"),
    facts("cri-o://1.27.4"),
    facts("docker://24.0.7"),
    facts("containerd://"),
    facts(writable=False),
    facts(nvidia_specs=False),
    facts(label="envvar"),
    facts("containerd://1.7.24", label="cdi"),
    facts(setting="cdi", label="volume-mounts"),
    facts(setting="volume-mounts"),
    facts("containerd://1.6.0", setting="cdi"),
    facts(writable=False, label="cdi"),
    facts(setting="envvar", label="auto"),
    facts(label="CDI"),
]


def test_the_way_and_its_reason() -> None:
    golden.compare("hand_over", (f"{found.way.value}: {found.reason}" for found in map(choice.choose, FACTS)))


@pytest.mark.parametrize(
    ("runtime", "never"),
    [
        ("containerd://1.6.36", True),
        ("containerd://1.7.0", False),
        ("cri-o://1.22.5", True),
        ("cri-o://1.23.0", False),
        ("docker://24.0.7", False),
        ("", False),
    ],
)
def test_a_demand_that_can_never_be_met_is_told_from_one_whose_author_may_know_better(
    runtime: str, never: bool
) -> None:
    demanded, free = (choice.choose(facts(runtime, label=label)) for label in ("cdi", ""))
    assert (bool(demanded.impossible), bool(free.impossible), bool(free.never_injects)) == (never, False, never)
    unwritable = choice.choose(facts(label="cdi", writable=False))
    assert (unwritable.impossible, unwritable.never_injects) == (unwritable.reason, "")  # it may be writable again


def test_older_kubelets_are_told_by_an_annotation_and_a_label_beats_the_setting_of_the_default_runtime() -> None:
    field, annotation, both = (True, False), (False, True), (True, True)
    told = {"v1.36.2": field, "v1.29.0-eks-1": field, "v1.28.15": annotation, "v1.20.2": annotation}
    for kubelet, expected in (told | {"": both, "unknown": both}).items():
        chosen = choice.choose(facts(kubelet=kubelet))
        assert (chosen.by_field, chosen.by_annotation) == expected, kubelet
    for label, setting, default in (
        ("", True, True),
        ("", False, False),
        ("false", True, False),
        ("true", False, True),
    ):
        found = Facts(node=NodeFacts(default_label=label), nvidia_default=setting, writable=True)
        assert choice.choose(found).nvidia_default is default, label


def test_a_node_is_read() -> None:
    labels = {"hand-over": "cdi", "nvidia-default-runtime": "true", "limits": "mps.advisory"}
    node: dict[str, Any] = {
        "metadata": {"labels": {f"gpushare.dev/{name}": value for name, value in labels.items()}},
        "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.9", "kubeletVersion": KUBELET}},
    }
    assert read_node(node) == NodeFacts(
        runtime="containerd://2.1.9",
        kubelet=KUBELET,
        hand_over_label="cdi",
        default_label="true",
        limits_label="mps.advisory",
    )
    assert read_node({}) == NodeFacts()
    wrong = {
        **{f"status.nodeInfo.{key}": {"status": {"nodeInfo": {key: 3}}} for key in node["status"]["nodeInfo"]},
        **{f"metadata.labels.{key}": {"metadata": {"labels": {key: 3}}} for key in node["metadata"]["labels"]},
    }
    for path, found in wrong.items():
        with pytest.raises(WireError, match=f"^{path}: "):
            read_node(found)


PATH = "/api/v1/nodes/node-a"
CDI, ENVVAR = HandOver.CDI, HandOver.ENVVAR
OLD, NEW = "containerd://1.6.20", "containerd://2.1.9"


def node_with(runtime: str, **labels: str) -> Json:
    node = make_node(name=NODE)
    node["metadata"]["labels"] = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    node["status"]["nodeInfo"] = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.36.2"}
    return node


class Scene:
    """A node with simulated GPUs, unless the test says otherwise, that the API server does not know yet."""

    def __init__(
        self, directory: Path, *, simulated: bool = True, has_nvidia_specs: Callable[[], bool] = lambda: False
    ) -> None:
        self.api, self.clock = FakeKube(), ManualClock()
        self.chooser = Chooser(
            api=self.api,
            node=NODE,
            clock=self.clock,
            files=SpecFiles(directory),
            settings=Facts(directory=str(directory), simulated=simulated),
            has_nvidia_specs=has_nvidia_specs,
            recheck_s=300.0,
        )

    def has(self, runtime: str, **labels: str) -> None:
        self.api.seed(PATH, node_with(runtime, **labels))

    @property
    def way(self) -> HandOver:
        return self.chooser.latest().way

    def look(self) -> HandOver:
        self.chooser.look()
        return self.way


def test_what_is_only_guessed_agrees_with_no_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that needs NVIDIA's runtime must not look like one that does not, also not for a moment."""
    monkeypatch.setattr("deviceplugin.handover.choice._FIRST_S", 250.0)
    cdi, envvar = (replace(make_inventory(15), hand_over=way) for way in (CDI, ENVVAR))
    scene = Scene(tmp_path)
    assert scene.way is CDI
    assert not scene.chooser.agrees(cdi)
    scene.has(OLD)
    reader = threading.Thread(target=scene.look)
    reader.start()
    assert scene.chooser.assess(cdi) == replace(envvar, hand_over_reason=scene.chooser.latest().reason)
    reader.join()
    assert scene.chooser.agrees(envvar)
    assert not scene.chooser.agrees(cdi)


def labels(scene: Scene) -> tuple[str | None, str | None]:
    return scene.chooser.limits_label(), scene.chooser.oversubscription_label()


def test_labels_are_not_known_before_the_node_was_read_and_a_directory_that_comes_later_is_noticed(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path / "cdi")
    assert (scene.way, labels(scene)) == (ENVVAR, (None, None))
    scene.has(NEW, limits="mps", oversubscription="1.5")
    assert (scene.look(), labels(scene)) == (ENVVAR, ("mps", "1.5"))
    (tmp_path / "cdi").mkdir()
    assert scene.look() is CDI


def test_the_node_is_read_once_in_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scene = Scene(tmp_path)
    scene.has(OLD)
    assert (scene.look(), scene.chooser.known.is_set()) == (ENVVAR, True)
    labels = {"metadata": {"labels": {"gpushare.dev/hand-over": "cdi"}}}
    scene.api.patch(PATH, labels, kind=kube.PatchKind.MERGE, timeout_s=1.0)
    assert scene.look() is ENVVAR
    scene.clock.at += 300.0
    assert scene.look() is CDI
    assert [said["way"] for said in fields_of(caplog, "hand-over")] == ["envvar", "cdi"]
    assert scene.api.count("get") == 2


def test_a_directory_that_was_removed_under_its_mount_is_none(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    mounted = os.open(tmp_path / "cdi", os.O_RDONLY)
    try:
        scene = Scene(Path(f"/proc/self/fd/{mounted}"))
        assert scene.way is CDI
        (tmp_path / "cdi").rmdir()
        scene.has(NEW)
        assert scene.look() is ENVVAR
        assert scene.chooser.latest().reason.endswith("not writable, or was removed since its pod started")
    finally:
        os.close(mounted)


class Specs(Scene):
    """Those of NVIDIA's on a node with real GPUs and containerd 2.1, which come and go."""

    def __init__(self, directory: Path, published: HandOver | None, *, there: bool) -> None:
        self.there = there
        super().__init__(directory, simulated=False, has_nvidia_specs=lambda: self.there)
        node = node_with(NEW)
        if published:
            inventory = replace(make_inventory(15), hand_over=published)
            node["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: wire.encode(inventory)}
        self.api.seed(PATH, node)

    def after(self, seconds: float, *, there: bool) -> HandOver | None:
        """What is known then."""
        self.clock.at += seconds
        self.there = there
        way = self.look()
        return way if self.chooser.known.is_set() else None


def test_specs_that_are_missing_for_a_while_change_nothing(tmp_path: Path) -> None:
    """A driver or toolkit that is replaced takes them away and brings them back."""
    specs = Specs(tmp_path, None, there=True)
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
    tmp_path: Path, published: HandOver | None, looks: list[tuple[float, bool]], ways: list[HandOver | None]
) -> None:
    specs = Specs(tmp_path, published, there=False)
    assert [specs.after(seconds, there=there) for seconds, there in looks] == ways


def test_a_node_that_cannot_be_read_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene, stop = Scene(tmp_path), threading.Event()
    scene.has(OLD)
    scene.api.fail_next(lambda call: call.verb == "get", kube.UnreachableError("connection refused"))
    known: list[bool] = []

    def note(_at: float) -> None:
        known.append(scene.chooser.known.is_set())
        if len(known) == 2:
            stop.set()

    scene.clock.on_wait = note
    scene.chooser.run(stop)
    assert known == [False, True]
    assert fields_of(caplog, "node not read")[0]["error"] == "connection refused"
    assert scene.clock.waits[1] == 10.0


def test_a_way_that_is_demanded_and_cannot_work_takes_all_gpus_out_of_use(tmp_path: Path) -> None:
    """Pods are told by the message of any unhealthy GPU."""
    scene = Scene(tmp_path)
    scene.has(OLD, hand_over="cdi")
    scene.look()
    why = scene.chooser.latest().reason
    gpus = scene.chooser.assess(make_inventory(15, 15)).gpus
    assert [(gpu.health.value, gpu.reason, code(gpu.reason)) for gpu in gpus] == [
        ("Unhealthy", why, Code.NOT_HANDED_OVER)
    ] * 2
    scene.api.edit(PATH, lambda node: node["status"]["nodeInfo"].update(containerRuntimeVersion=NEW))
    scene.clock.at += 300.0
    scene.look()
    assert {gpu.health.value for gpu in scene.chooser.assess(make_inventory(15, 15)).gpus} == {"Healthy"}
