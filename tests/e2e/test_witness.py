"""The soak's witness sees what is wrong, and its faults come again in the same order."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import NodeLedger
from gpushare.wire import allocations
from testing.builders import Json, make_allocation, make_grant, make_ledger, make_pod
from tests.e2e import faults, witness
from tests.e2e.system import System


def running_pod(name: str = "pod") -> Json:
    grant = make_grant(0, gib=3)
    note = allocations.encode(make_allocation(name, grant))
    pod = make_pod(name=name, node="node-a", annotations={names.ANNOTATION_ALLOCATION: note}, phase="Running")
    pod["status"]["containerStatuses"] = [{"name": "main", "ready": True, "restartCount": 0}]
    return pod


def printed(devices: str) -> Mapping[str, str]:
    return {names.ENV_VISIBLE_DEVICES: devices, "PATH": "/bin"}


def only(gpus: str) -> str:
    return f"GPUs {gpus}, nodes none, can open none"


@dataclass
class Stub:
    """A system whose answers the test writes."""

    listed: list[Json] = field(default_factory=lambda: [running_pod()])
    sees: Mapping[str, str] | None = field(default_factory=lambda: printed("GPU-0"))
    held: NodeLedger = field(default_factory=lambda: make_ledger([15], {0: 3}))
    told: int = 3
    cluster: Any = None
    api: Any = None

    def pods(self, namespace: str, selector: str = "") -> list[Json]:
        return self.listed

    def environment(self, pod: Json, container: str) -> Mapping[str, str] | None:
        return self.sees

    def ledgers(self) -> Mapping[NodeName, NodeLedger]:
        return {NodeName("node-a"): self.held}

    def inspect(self) -> Json:
        return {"nodes": [{"name": "node-a", "devs": [{"id": "0", "usedGPU": self.told}]}]}


def look(stub: Stub, times: int = 1) -> witness.Witness:
    found = witness.Witness(cast("System", stub), "default")
    for _ in range(times):
        found.look()
    return found


def test_what_is_right_is_counted_once() -> None:
    found = look(Stub(), times=3)
    assert found.wrong == []
    assert found.counts["environments of containers"] == 1
    assert found.counts["comparisons of the controller's ledger"] == 3


def test_a_container_that_sees_another_gpu_is_wrong() -> None:
    assert look(Stub(sees=printed("GPU-1"))).wrong == [f"pod/main: sees {only('GPU-1')}; was granted {only('GPU-0')}"]


def test_a_container_with_a_device_node_of_another_gpu_is_wrong() -> None:
    cdi = replace(make_ledger([15, 15], {0: 3}).inventory, hand_over=HandOver.CDI)
    stub = Stub(held=NodeLedger.of(cdi, make_ledger([15, 15], {0: 3}).allocations.values()))
    granted = {"DEVICES": "nvidia0", "OPENABLE": "0"}
    for other in ({}, {"DEVICES": "nvidia1"}, {"DEVICES": "nvidia0,nvidia1"}, {"OPENABLE": "0,1"}, {"OPENABLE": ""}):
        stub.sees = {**printed("GPU-0"), **(granted if other else {}), **other}
        (said,) = look(stub).wrong
        assert said.endswith("; was granted GPUs GPU-0, nodes nvidia0, can open 0")
    stub.sees = {**printed("GPU-0"), **granted}
    assert look(stub).wrong == []
    stub.sees = {**printed("void"), **granted, "GPUSHARE_VISIBLE_DEVICES": "GPU-0"}
    assert look(stub).wrong == []
    stub.sees = {**printed("all"), **granted, "GPUSHARE_VISIBLE_DEVICES": "GPU-0"}
    assert look(stub).wrong != []


def test_a_container_without_output_is_looked_at_again() -> None:
    stub = Stub(sees=None)
    found = look(stub)
    assert (found.wrong, found.counts["environments of containers"]) == ([], 0)
    stub.sees = printed("GPU-0")
    found.look()
    assert found.counts["environments of containers"] == 1


def test_a_pod_that_runs_without_a_grant_is_wrong() -> None:
    pod = running_pod()
    del pod["metadata"]["annotations"]
    assert look(Stub(listed=[pod])).wrong == ["pod runs without a grant"]


def test_a_container_that_never_got_the_variable_is_wrong() -> None:
    assert look(Stub(sees={})).wrong == [f"pod/main: sees {only('?')}; was granted {only('GPU-0')}"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("HOSTNAME=pod\nNVIDIA_VISIBLE_DEVICES=GPU-0\nPATH=/bin\n", "GPU-0"),
        ("HOSTNAME=pod\n", None),
        ("", None),
    ],
)
def test_output_counts_when_it_is_complete(log: str, expected: str | None) -> None:
    """A container runtime that is killed takes output along that it has not written."""

    class Api:
        def ask(self, path: str, *, timeout_s: float) -> kube.Reply:
            return kube.Reply(status=200, text=log)

    seen = System(cast("Any", None), cast("Any", Api())).environment(running_pod(), "main")
    assert (seen and seen[names.ENV_VISIBLE_DEVICES]) == expected


def test_a_gpu_over_its_memory_is_wrong() -> None:
    (said, *_) = look(Stub(held=make_ledger([2], {0: 3}))).wrong
    assert said.startswith("node-a is over its memory")


def test_a_controller_that_differs_is_wrong_only_when_it_stays_so() -> None:
    now, stub = [0.0], Stub(told=7)
    found = witness.Witness(cast("System", stub), "default", clock=lambda: now[0])
    found.look()
    now[0] = witness.IN_DOUBT_S - 1
    stub.told = 3
    found.look()
    stub.told = 7
    found.look()
    now[0] = 2 * witness.IN_DOUBT_S - 1
    found.look()
    assert found.wrong == []
    now[0] = 2 * witness.IN_DOUBT_S
    found.look()
    assert found.wrong == ["('node-a', 0): the controller says 7, the pods 3, for 180.0 s"]


def order(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stop, said = threading.Event(), list[str]()

    def fault(_system: System, chance: object) -> None:
        if len(said) == 2 * len(faults.KINDS):
            stop.set()

    monkeypatch.setattr(faults, "KINDS", dict.fromkeys(faults.KINDS, fault))
    monkeypatch.setattr(faults, "PAUSE_S", (0.0, 0.0))
    faults.Faults(cast("System", Stub()), seed, lambda line: said.append(line.rpartition(" ")[2])).run(stop)
    return said


def test_the_same_seed_breaks_the_same_parts_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first = order(7, monkeypatch)
    assert order(7, monkeypatch) == first
    assert order(8, monkeypatch) != first
    assert sorted(first[: len(faults.KINDS)]) == sorted(faults.KINDS), "each once before any comes again"
