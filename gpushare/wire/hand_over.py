"""How all nodes that share hand over GPUs, in one word of a ConfigMap: the controller writes it, the webhook reads it.

So no webhook has to list nodes to know whether a pod needs NVIDIA's runtime. Pure.
"""

from collections.abc import Iterable
from typing import Final

from gpushare import names
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.wire import fields
from gpushare.wire.fields import JsonObject

NO_NODE: Final = "none"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"
WORDS: Final = frozenset({NO_NODE, MIXED, UNKNOWN, *(way.value for way in HandOver)})
NOTHING: Final = "nothing"
WITHOUT_GPUS: Final = "without-gpus"
REFUSALS: Final = (NOTHING, WITHOUT_GPUS, "always")
"""What an administrator may refuse; any other word counts as the last."""
AGAIN: Final = "delete the pod and create it again, so that it suits how the node hands GPUs over now"
"""How the device plugin ends what it says of a pod that came to its node when that handed GPUs over in another way."""
_KEY: Final = "hand-over"


def path(namespace: str, name: str = names.HAND_OVER) -> str:
    """Of the ConfigMap, or of another one, in the installation's namespace."""
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def refuses(config_map: JsonObject | None, runtime_class: str) -> bool:
    """Whether an administrator refuses the RuntimeClass to all pods, as the policy reads it. Raises WireError."""
    said = fields.mapping(config_map or {}, "data", names.RUNTIME_CLASS_POLICY)
    listed = fields.text(said, "names", f"{names.RUNTIME_CLASS_POLICY}.data").split(",")
    return runtime_class in map(str.strip, listed) and said.get("refuse", NOTHING) not in {NOTHING, WITHOUT_GPUS}


def summary(inventories: Iterable[NodeInventory | None]) -> str:
    """The strategy of all these nodes; `mixed` if they have several, `none` if there is no node.

    None stands for a node that has not published its inventory yet, whose strategy is `unknown`.
    """
    words = {UNKNOWN if inventory is None else inventory.hand_over.value for inventory in inventories}
    return MIXED if len(words) > 1 else next(iter(words), NO_NODE)


def data(word: str) -> JsonObject:
    return {"data": {_KEY: word}}


def word(config_map: JsonObject | None) -> str:
    """What the ConfigMap says; empty if it says nothing yet, or is not there. Raises WireError: it is none."""
    return fields.text(fields.mapping(config_map or {}, "data", names.HAND_OVER), _KEY, f"{names.HAND_OVER}.data")


def is_all_cdi(config_map: JsonObject | None) -> bool:
    """Whether every node that shares hands GPUs over by CDI. Anything else may need NVIDIA's runtime."""
    return word(config_map) == HandOver.CDI.value
