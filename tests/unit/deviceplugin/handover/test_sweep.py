"""Specs go when their pods do."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from deviceplugin.handover import strategy
from deviceplugin.handover.devices import SpecSweeper
from deviceplugin.handover.spec_files import SpecFiles
from gpushare.model.gpu import HandOver
from gpushare.wire.pods import Pod
from testing.builders import make_grant
from testing.clock import ManualClock
from testing.deviceplugin.build import bound_pod, handing_over
from tests.unit.deviceplugin.handover.test_devices import IDS, NAME, devices, files, forged, recipient

OLD = strategy.file_name("uid-p", NAME)


class Swept:
    def __init__(self, directory: Path) -> None:
        self.pods: Sequence[Pod] | None = [bound_pod(make_grant(0), name="p")]
        self.clock = ManualClock()
        self.directory = directory
        self.sweeper = SpecSweeper(
            devices=handing_over(HandOver.CDI, directory),
            files=SpecFiles(directory),
            pods=lambda: self.pods,
            clock=self.clock,
        )

    def write(self, age_s: float) -> None:
        self.sweeper.devices.prepare(IDS, [recipient("GPU-0")])
        self.age(OLD, age_s)

    def age(self, name: str, age_s: float) -> None:
        at = self.clock.now().timestamp() - age_s
        os.utime(self.directory / name, (at, at))

    def left(self) -> list[str]:
        self.sweeper.sweep()
        return files(self.directory)


@pytest.fixture
def swept(tmp_path: Path) -> Swept:
    return Swept(tmp_path)


def holder(phase: str = "Running") -> Pod:
    return bound_pod(make_grant(0), name="p", phase=phase)


@pytest.mark.parametrize(
    ("age_s", "pods", "stays"),
    [
        (1000.0, [holder()], True),
        (61.0, [holder("Succeeded")], False),
        (61.0, [holder("Failed")], False),
        (59.0, [], True),  # the watch may not have told of it yet
        (61.0, [], False),
        (1000.0, None, True),  # they are not known
    ],
)
def test_what_a_pod_of_the_node_needs_stays_and_the_rest_goes(
    swept: Swept, age_s: float, pods: list[Pod] | None, stays: bool
) -> None:
    swept.write(age_s)
    swept.pods = pods
    assert swept.left() == [OLD] * stays


def test_what_a_pod_had_that_was_known_before_goes_at_once(swept: Swept) -> None:
    swept.write(0.0)
    assert swept.left() == [OLD]
    swept.pods = []
    assert swept.left() == []


def test_what_was_never_finished_goes(swept: Swept, tmp_path: Path) -> None:
    for name in (".gpushare-1.tmp", ".gpushare-2.tmp", ".other.tmp"):
        (tmp_path / name).touch()
        swept.age(name, 1000.0)
    swept.age(".gpushare-2.tmp", 10.0)
    assert swept.left() == [".gpushare-2.tmp", ".other.tmp"]


def test_what_others_wrote_of_our_kind_goes(swept: Swept, tmp_path: Path) -> None:
    swept.write(1000.0)
    (tmp_path / "copy.json").write_text(json.dumps(forged("x")))
    (tmp_path / "copy.json").chmod(0o644)
    assert swept.left() == [OLD]
    assert list(devices(tmp_path)) == [NAME]


class Once:
    """A stop that is set after the first look."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_it_looks_now_and_then(swept: Swept) -> None:
    swept.write(61.0)
    swept.pods = []
    swept.sweeper.run(Once())  # type: ignore[arg-type]
    assert files(swept.directory) == []
    assert swept.clock.waits == [10.0]


def test_what_cannot_be_removed_is_tried_again(swept: Swept, tmp_path: Path) -> None:
    (tmp_path / OLD).mkdir()
    swept.age(OLD, 1000.0)
    swept.pods = []
    assert swept.left() == [OLD]
    (tmp_path / OLD).rmdir()
    assert swept.left() == []
