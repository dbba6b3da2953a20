"""Before a release: everything breaks at random while pods come and go, and nothing may ever be wrong.

`make soak SOAK_SECONDS=300 SOAK_SEED=7` breaks the same parts in the same order again.
"""

import os
import time

import pytest

from localcluster import installation
from localcluster.provision import Say
from tests.e2e import checks
from tests.e2e.background import Background
from tests.e2e.churn import Churn
from tests.e2e.faults import KINDS, Faults
from tests.e2e.system import System, is_incomplete, is_ready
from tests.e2e.witness import Witness

SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
SEED = int(os.environ.get("SOAK_SEED") or time.time_ns() % 10**6)
SETTLED_S = 900.0
"""A kubelet waits up to 300 s before it starts a container again that has ended several times."""

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(SECONDS + 3 * SETTLED_S)]


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
