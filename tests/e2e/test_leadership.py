"""A dead leader is followed when its lease has run out, and the follower knows what the pods say."""

from datetime import datetime

import pytest

from tests.e2e import checks, disturb
from tests.e2e.conftest import LEASE_S
from tests.e2e.system import Share, System

pytestmark = pytest.mark.e2e


def serves(system: System) -> bool:
    try:
        answer = system.inspect()
        return bool(answer["nodes"]) and "error" not in answer
    except OSError:
        return False


def written(system: System, field: str) -> datetime:
    """A time of the lease, by the clock of this machine, which runs both replicas."""
    return datetime.fromisoformat(system.api.get(disturb.LEASE)["spec"][field])


def test_the_other_replica_serves_when_the_lease_has_run_out(system: System, namespace: str) -> None:
    system.create(namespace, *[Share(name=f"p{i}").document() for i in range(8)])
    system.all_running(namespace, 8)
    system.eventually("two controllers", lambda: len(disturb.component_pods(system, "controller")) == 2)
    before, renewed = disturb.leader(system), written(system, "renewTime")
    disturb.kill_leader(system)
    system.eventually("another leader", lambda: disturb.leader(system) not in {"", before})
    system.eventually("the new leader serves", lambda: serves(system))
    assert (written(system, "acquireTime") - renewed).total_seconds() >= LEASE_S, "never two leaders"
    checks.the_controllers_ledger_equals_the_pods(system)
    system.create(namespace, Share(name="after").document())
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 9))


def restarts(system: System) -> int:
    pods = disturb.component_pods(system, "controller")
    return sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", ()))


def test_a_leader_that_lost_its_lease_follows_again_without_a_restart(system: System, namespace: str) -> None:
    """The kubelet delays restarts by up to five minutes, and under overload all replicas lose the lead."""
    system.eventually("a controller serves", lambda: serves(system))
    before, held = restarts(system), disturb.leader(system)
    for number in range(3):
        system.api.patch(disturb.LEASE, {"spec": {"holderIdentity": f"thief-{number}", "renewTime": None}})
        system.eventually("another term", lambda: disturb.leader(system).startswith("gpushare-controller"))
        assert disturb.leader(system) != held
        held = disturb.leader(system)
        system.eventually("it serves", lambda: serves(system))
    assert restarts(system) == before
    system.create(namespace, Share(name="after").document())
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 1))
