"""Before a release: everything breaks at random while pods come and go, and nothing may ever be wrong.

`make soak SOAK_SECONDS=300 SOAK_SEED=7` breaks the same parts in the same order again. That its witness sees what is
wrong, and that its faults come in that order, is tested here without a cluster.
"""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import NodeLedger
from gpushare.wire import allocations
from localcluster import installation
from localcluster.provision import Say
from testing.builders import make_allocation, make_grant, make_ledger, make_pod
from tests.e2e import checks, soak
from tests.e2e.disturb import Background
from tests.e2e.soak import KINDS, Churn, Faults, Witness
from tests.e2e.system import Json, System, is_incomplete, is_ready

SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "3600"))
SEED: Final = int(os.environ.get("SOAK_SEED") or time.time_ns() % 10**6)
SETTLED_S: Final = 900.0
"""A kubelet waits up to 300 s before it starts a container again that has ended several times."""


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 3 * SETTLED_S)
def test_no_container_sees_a_wrong_gpu_and_no_gpu_is_over_its_memory_whatever_breaks(
    system: System, namespace: str, say: Say
) -> None:
    say(f"soak of {SECONDS:.0f} s with SOAK_SEED={SEED}")
    faults, churn, witness = Faults(system, SEED, say), Churn(system, namespace, SEED), Witness(system, namespace)
    with Background(faults.run, churn.run, witness.run) as running:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not witness.wrong and not running.stop.wait(1):
            pass
    ended = time.monotonic()
    if not witness.wrong:
        installation.wait_ready(system.cluster, SETTLED_S)
        system.eventually("what waits fits nowhere", lambda: settled(system, namespace), timeout_s=SETTLED_S)
        witness.look()
    say(f"settled {time.monotonic() - ended:.0f} s after the last fault")
    say(f"faults: {dict(faults.done)}; not possible: {dict(faults.impossible)}")
    say(f"pods: {dict(churn.counts)}")
    say(f"compared: {dict(witness.counts)}")
    assert not witness.wrong, f"SOAK_SEED={SEED}: {witness.wrong}"
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)
    assert witness.counts["environments of containers"] > 0
    assert set(faults.done) == set(KINDS) or SECONDS < 300, "every kind of fault has happened"


def settled(system: System, namespace: str) -> bool:
    """Whether every pod either runs or has not been bound, or is about to be deleted."""
    pods = [pod for pod in system.pods(namespace) if pod["status"].get("phase") != "Failed"]
    return all(is_ready(pod) or is_incomplete(pod) or not pod["spec"].get("nodeName") for pod in pods)


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


def look(**answers: Any) -> Witness:
    found = Witness(cast("System", Stub(**answers)), "default")
    found.look()
    return found


def without_grant() -> Json:
    pod = running_pod()
    del pod["metadata"]["annotations"]
    return pod


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ({}, []),
        ({"sees": printed("GPU-1")}, [f"pod/main: sees {only('GPU-1')}; was granted {only('GPU-0')}"]),
        ({"sees": {}}, [f"pod/main: sees {only('?')}; was granted {only('GPU-0')}"]),
        ({"sees": None}, []),
        ({"listed": [without_grant()]}, ["pod runs without a grant"]),
        ({"held": make_ledger([2], {0: 3})}, ["node-a is over its memory: {'GPU-0': 1024}"]),
    ],
)
def test_what_is_wrong_is_said(answers: Mapping[str, Any], wrong: list[str]) -> None:
    assert look(**answers).wrong == wrong


@pytest.mark.parametrize(
    ("sees", "is_right"),
    [
        ({}, True),
        ({"DEVICES": "nvidia1"}, False),
        ({"DEVICES": "nvidia0,nvidia1"}, False),
        ({"DEVICES": ""}, False),
        ({"OPENABLE": "0,1"}, False),
        ({"OPENABLE": ""}, False),
        ({names.ENV_VISIBLE_DEVICES: "void", names.ENV_GRANTED_DEVICES: "GPU-0"}, True),
        ({names.ENV_VISIBLE_DEVICES: "all", names.ENV_GRANTED_DEVICES: "GPU-0"}, False),
    ],
)
def test_a_container_with_a_device_node_of_another_gpu_is_wrong(sees: Mapping[str, str], is_right: bool) -> None:
    ledger = make_ledger([15, 15], {0: 3})
    held = NodeLedger.of(replace(ledger.inventory, hand_over=HandOver.CDI), ledger.allocations.values())
    found = look(held=held, sees={**printed("GPU-0"), "DEVICES": "nvidia0", "OPENABLE": "0", **sees}).wrong
    assert [said.endswith("; was granted GPUs GPU-0, nodes nvidia0, can open 0") for said in found] == (
        [] if is_right else [True]
    )


def test_a_container_is_counted_once_and_not_before_it_has_printed() -> None:
    stub = Stub(sees=None)
    found = Witness(cast("System", stub), "default")
    counts = []
    for sees in (None, printed("GPU-0"), printed("GPU-0")):
        stub.sees = sees
        found.look()
        counts.append(found.counts["environments of containers"])
    assert (found.wrong, counts) == ([], [0, 1, 1])
    assert found.counts["comparisons of the controller's ledger"] == 3


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


def test_a_controller_that_differs_is_wrong_only_when_it_stays_so() -> None:
    now, stub = [0.0], Stub()
    found = Witness(cast("System", stub), "default", clock=lambda: now[0])
    doubt = soak.IN_DOUBT_S
    for at, told in ((0.0, 7), (doubt - 1, 3), (doubt - 1, 7), (2 * doubt - 1, 7)):
        now[0], stub.told = at, told
        found.look()
    assert found.wrong == []
    now[0] = 2 * doubt
    found.look()
    assert found.wrong == ["('node-a', 0): the controller says 7, the pods 3, for 180.0 s"]


def order(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stop, said = threading.Event(), list[str]()

    def fault(_system: System, chance: object) -> None:
        if len(said) == 2 * len(KINDS):
            stop.set()

    monkeypatch.setattr(soak, "KINDS", dict.fromkeys(KINDS, fault))
    monkeypatch.setattr(soak, "PAUSE_S", (0.0, 0.0))
    Faults(cast("System", Stub()), seed, lambda line: said.append(line.rpartition(" ")[2])).run(stop)
    return said


def test_the_same_seed_breaks_the_same_parts_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first = order(7, monkeypatch)
    assert order(7, monkeypatch) == first
    assert order(8, monkeypatch) != first
    assert sorted(first[: len(KINDS)]) == sorted(KINDS), "each once before any comes again"
