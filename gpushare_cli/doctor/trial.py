"""The pod that shows whether admission works: it is sent as a dry run and never stored. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.wire import pods as pods_wire

_CONTAINER: Final = "main"


def pod() -> JsonObject:
    """A pod that asks for one unit, and that the strictest policies and quotas of a namespace would let in."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpushare-doctor-"},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": "registry.k8s.io/pause:3.9",  # never pulled
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "16Mi"},
                        "limits": {"cpu": "10m", "memory": "16Mi", names.GPU_MEM: "1"},
                    },
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def missing(admitted: Mapping[str, Any]) -> list[str]:
    """What the webhook should have written into it and has not."""
    lacking = []
    if pods_wire.labels(admitted).get(names.LABEL_MANAGED) != "true":
        lacking.append(f"the label {names.LABEL_MANAGED}")
    if not any(pods_wire.takes_its_grant(container, _CONTAINER) for _, _, container in pods_wire.containers(admitted)):
        lacking.append(f"{names.ENV_VISIBLE_DEVICES} from the annotation of its binding")
    return lacking
