"""Other settings and rights of the device plugins for a while, as an administrator patches a running installation."""

import contextlib
import json
from collections.abc import Iterator, Mapping

from gpushare import names
from gpushare.kube import api as kube
from tests.e2e import disturb
from tests.e2e.system import System

PATH = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/daemonsets/{names.PLUGIN}"


@contextlib.contextmanager
def patched(system: System, settings: Mapping[str, str], *patches: str) -> Iterator[None]:
    """Plugins with these patches and then these variables; afterwards they are as before."""
    before = system.api.get(PATH)["spec"]["template"]
    env = [{"name": name, "value": value} for name, value in settings.items()]
    own = {"spec": {"template": {"spec": {"containers": [{"name": "device-plugin", "env": env}]}}}}
    for patch in (*patches, json.dumps(own)):
        system.cluster.kubectl("-n", names.NAMESPACE, "patch", "daemonset", names.PLUGIN, "--patch", patch)
    rolled(system)
    yield
    system.api.patch(PATH, [{"op": "replace", "path": "/spec/template", "value": before}], kind=kube.PatchKind.JSON)
    rolled(system)


def rolled(system: System) -> None:
    """Wait until all plugins are of the newest template. The others are killed: to end takes each up to a minute."""

    def observed() -> bool:
        found = system.api.get(PATH)
        return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])

    system.eventually("the DaemonSet's controller knows it", observed)
    disturb.restart_plugins(system, *system.cluster.nodes)
    command = ("-n", names.NAMESPACE, "rollout", "status", f"daemonset/{names.PLUGIN}", "--timeout=300s")
    system.cluster.kubectl(*command, timeout_s=320)
