"""What the components of `manifests/` ask of container runtimes, in real containers."""

from typing import Final

import pytest

from gpushare import names
from testing.manifests import tree
from tests.e2e.system import Share, System

pytestmark = pytest.mark.e2e
NUMBERS: Final = {"KILL": 5, "SYS_ADMIN": 21}


@pytest.mark.parametrize("component", ["limits/cgroup", "watchdog-kill"])
def test_the_plugin_has_the_capabilities_that_a_component_adds(system: System, namespace: str, component: str) -> None:
    """Of a name that a runtime does not know it makes nothing, without an error."""
    patch = tree.patches(component)[-1]
    assert patch["metadata"]["name"] == names.PLUGIN
    [container] = patch["spec"]["template"]["spec"]["containers"]
    added = container["securityContext"]["capabilities"]["add"]
    pod = Share(name="capable", gib=(None,)).document()
    pod["spec"]["containers"][0]["securityContext"] = {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": added},
    }
    system.create(namespace, pod)
    system.running(namespace, "capable")

    status = system.cluster.kubectl("exec", "-n", namespace, "capable", "--", "cat", "/proc/1/status").stdout
    [effective] = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    assert int(effective, 16) == sum(1 << NUMBERS[name] for name in added)
