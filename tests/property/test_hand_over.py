"""Whatever happened before, a container runtime finds for a container what its binding has, or nothing."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deviceplugin.cdi import ContainerEdits
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.devices import DeviceHandOver, Recipient, SpecSweeper
from deviceplugin.handover.spec_files import SpecFiles, SpecReader
from deviceplugin.resources import MEMORY
from deviceplugin.source import RawGpu
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.gpu import HandOver
from testing.builders import make_pod
from testing.clock import ManualClock

GPUS = {
    GpuUuid(f"GPU-{i}"): RawGpu(uuid=f"GPU-{i}", index=i, model="x", memory_bytes=1, simulated=True) for i in range(4)
}
IDS = [frozenset({"g000"}), frozenset({"g001"}), frozenset({"g000", "g001"})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container(Recipient):
    """One that the kubelet has admitted."""

    ids: frozenset[str]


def injected(directories: list[Path], device: str) -> Any:
    """What a container runtime finds: of two directories the later one counts, and of two in one none does."""
    for directory in reversed(directories):
        specs = [json.loads(file.read_text()) for file in sorted(directory.iterdir()) if file.suffix == ".json"]
        found = [
            each["containerEdits"]
            for spec in specs
            for each in spec["devices"]
            if f"{spec['kind']}={each['name']}" == device
        ]
        if found:
            return found[0] if len(found) == 1 else None
    return None


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(prefix="gs")
        self.directories = [Path(self.root.name) / name for name in ("etc", "run")]
        for directory in self.directories:
            directory.mkdir()
        self.clock = ManualClock()
        self.count = 0
        self.containers: list[Container] = []
        self.plugin()

    @rule()
    def plugin(self) -> None:
        """It starts, again."""
        own = self.directories[1]
        self.devices = DeviceHandOver(
            choice=lambda: HandOverChoice(way=HandOver.CDI, reason=""),
            gpus=lambda: GPUS,
            files=SpecFiles(own),
            specs=SpecReader(directories=self.directories, own=own).specs,
        )
        self.sweeper = SpecSweeper(devices=self.devices, pods=self.pods, clock=self.clock)

    def pods(self) -> list[dict[str, Any]]:
        return [{**make_pod(), "metadata": {"namespace": "n", "name": "p", "uid": c.uid}} for c in self.containers]

    @rule(ids=st.sampled_from(IDS), gpus=st.sets(st.sampled_from(sorted(GPUS)), min_size=1))
    def admit(self, ids: frozenset[str], gpus: set[GpuUuid]) -> None:
        self.containers = [container for container in self.containers if container.ids.isdisjoint(ids)]
        self.count += 1
        (device,) = self.devices.answer(MEMORY, sorted(ids)).cdi_devices
        names, main = (device.name.partition("=")[2],), ContainerName("main")
        uid, held = f"uid-{self.count}", tuple(sorted(gpus))
        self.containers.append(Container(uid=uid, container=main, names=names, gpus=held, ids=ids))

    @rule(data=st.data(), accepted=st.booleans())
    def start(self, data: st.DataObject, accepted: bool) -> None:
        if not self.containers:
            return
        container = data.draw(st.sampled_from(self.containers))
        if accepted:
            self.devices.prepare(container.ids, [container])
            assert self.sees(container) == set(container.gpus)
        else:
            self.devices.withdraw(container.ids)
            assert container.names[0] not in self.own_devices()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.containers:
            self.containers.remove(data.draw(st.sampled_from(self.containers)))

    @rule()
    def sweep(self) -> None:
        self.clock.at += 1e10
        self.sweeper.sweep()
        assert self.own_devices() <= {container.names[0] for container in self.containers}

    @rule(data=st.data(), where=st.integers(0, 1))
    def forge(self, data: st.DataObject, where: int) -> None:
        """Someone writes all GPUs under our kind, for a name that another file has."""
        taken = sorted(self.own_devices())
        if not taken:
            return
        name = data.draw(st.sampled_from(taken))
        edits = ContainerEdits(env=(("FORGED", "1"),)).encode()
        devices = [{"name": name, "containerEdits": edits}]
        document = {"cdiVersion": "0.5.0", "kind": "gpushare.dev/share", "devices": devices}
        file = self.directories[where] / "forged.json"
        file.write_text(json.dumps(document))
        file.chmod(0o644)
        self.start(data, accepted=data.draw(st.booleans()))

    @invariant()
    def a_container_finds_its_own_gpus_or_nothing(self) -> None:
        for container in self.containers:
            assert self.sees(container) in (set(), set(container.gpus))

    def sees(self, container: Container) -> set[str]:
        edits = injected(self.directories, f"gpushare.dev/share={container.names[0]}")
        if edits is None:
            return set()
        assert "FORGED=1" not in edits["env"]
        return {f"GPU-{node['minor']}" for node in edits["deviceNodes"]}

    def own_devices(self) -> set[str]:
        return {file.device for file in SpecFiles(self.directories[1]).found()}

    def teardown(self) -> None:
        self.root.cleanup()


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=20)
