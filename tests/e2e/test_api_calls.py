"""One request to the API server for each pod: the Binding."""

import json
from collections import Counter

import pytest

from gpushare import names
from tests.e2e.system import Share, System

pytestmark = pytest.mark.e2e
CONTROLLER = f"system:serviceaccount:{names.NAMESPACE}:{names.SERVICE_ACCOUNT_CONTROLLER}"


def calls(system: System, namespace: str) -> Counter[str]:
    """Requests of the controller about a namespace's pods, by verb and resource, from the API server's audit log."""
    found: Counter[str] = Counter()
    written, _, _ = system.cluster.audit_log.read_text().rpartition("\n")  # the API server writes meanwhile
    for line in written.splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef") or {}
        # A request that was not authenticated, with the token of a pod that is gone, names no user.
        if entry["user"].get("username") != CONTROLLER or reference.get("namespace") != namespace:
            continue
        if entry["stage"] == "ResponseComplete":
            found["/".join(filter(None, [entry["verb"], reference["resource"], reference.get("subresource")]))] += 1
    return found


def test_the_controller_sends_one_request_for_each_pod(system: System, namespace: str) -> None:
    system.create_complete(namespace, *[Share(name=f"p{i:02}").document() for i in range(20)])
    system.all_running(namespace, 20)
    assert calls(system, namespace) == {"create/pods/binding": 20}
