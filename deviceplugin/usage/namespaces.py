"""What a namespace asks of the watchdog, by its label. Read only for pods that are above their grant."""

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.usage.values import Policy
from gpushare import names
from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
_FRESH_S: Final = 60.0
_REMEMBERED: Final = 256
_TIMEOUT_S: Final = 2.0


@dataclass(kw_only=True)
class Namespaces:
    """Used by one thread."""

    api: KubeApi
    clock: Clock
    _known: OrderedDict[str, tuple[float, Policy]] = field(init=False, default_factory=OrderedDict)
    """When each was read, the oldest first."""

    def policy(self, namespace: str) -> Policy:
        """OFF if it asks for nothing, or cannot be read: then the node's own policy counts."""
        now = self.clock.monotonic()
        if namespace not in self._known or now - self._known[namespace][0] >= _FRESH_S:
            self._known[namespace] = now, self._read(namespace)
            self._known.move_to_end(namespace)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[namespace][1]

    def _read(self, namespace: str) -> Policy:
        try:
            found = self.api.get(f"/api/v1/namespaces/{namespace}", timeout_s=_TIMEOUT_S)
            labels = fields.mapping(fields.mapping(found, "metadata", "namespace"), "labels", "metadata")
            return Policy.parse(str(labels.get(names.WATCHDOG, Policy.OFF)))
        except kube.ForbiddenError:
            return Policy.OFF  # a component that gives the right to act on it gives the right to read it
        except (kube.KubeError, WireError, ValueError) as error:
            logs.event(_LOG, "namespace unread", level=logging.WARNING, namespace=namespace, error=str(error))
            return Policy.OFF
