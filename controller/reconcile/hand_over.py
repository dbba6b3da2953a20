"""Says in a ConfigMap how the nodes that share hand over GPUs, for the webhook (`gpushare.wire.hand_over`)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from controller.state import ClusterState
from gpushare import names
from gpushare.cluster import node_records
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import hand_over

_LOG: Final = logging.getLogger(__name__)
AGAIN_S: Final = 60.0  # in case somebody changed it
RETRY_S: Final = 5.0


@dataclass(kw_only=True)
class HandOverSummary:
    """Writes it when it changes, and now and then again.

    A node that will share counts before it has published GPUs: a pod that is created now may land there.
    """

    api: KubeApi
    state: ClusterState
    clock: Clock
    namespace: str
    leading: Callable[[], bool]
    """Whether this process may write, at this very moment."""
    _word: str = field(init=False, default="")
    """What was written last, or is to be written when it is due."""
    _due: float = field(init=False, default=float("-inf"))
    _problem: str = field(init=False, default="")

    def tick(self) -> None:
        """Write if there is reason to."""
        word = hand_over.summary(node_records.sharing(self.state.index.snapshot().nodes))
        now = self.clock.monotonic()
        if word == self._word and now < self._due:
            return
        changed, self._word = word != self._word, word
        self._due = now + (AGAIN_S if self._write(word, tell=changed) else RETRY_S)

    def _write(self, word: str, *, tell: bool) -> bool:
        try:
            self.api.patch(
                hand_over.path(self.namespace), hand_over.data(word), timeout_s=3.0, precondition=self.leading
            )
        except kube.KubeError as error:
            self._complain(str(error))
            return False
        if tell or self._problem:
            logs.event(_LOG, "hand-over summarized", hand_over=word)
        self._problem = ""
        return True

    def _complain(self, problem: str) -> None:
        """Once for each problem."""
        if problem != self._problem:
            effect = f"the webhook goes by what ConfigMap {self.namespace}/{names.HAND_OVER} said last"
            fix = "apply the manifests again, if it or the right to patch it is missing"
            logs.event(_LOG, "hand-over not written", level=logging.WARNING, error=problem, effect=effect, fix=fix)
        self._problem = problem
