"""Looks at a cluster while it is disturbed: reads the API and the containers' own output, and believes nothing else."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.ledger import NodeLedger
from tests.e2e import checks, seen
from tests.e2e.seen import Grants
from tests.e2e.system import Json, System, is_ready

PERIOD_S: Final = 1.0
IN_DOUBT_S: Final = 180.0
"""So long the controller may hold more than the pods say: a Binding without an answer is in doubt for 120 s."""

Gpu = tuple[str, int]


@dataclass
class Witness:
    """What it has compared, and what was wrong."""

    system: System
    namespace: str
    clock: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _seen: set[tuple[str, str, int]] = field(default_factory=set)
    """Containers whose environment was compared: pod UID, container, restarts."""
    _differs_since: dict[Gpu, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Look until `stop`, or until something is wrong."""
        while not self.wrong and not stop.wait(PERIOD_S):
            try:
                self.look()
            except (kube.KubeError, OSError, ValueError) as error:
                self.counts[f"rounds without an answer: {type(error).__name__}"] += 1

    def look(self) -> None:
        """Compare everything that can be compared now."""
        before = self.system.ledgers()
        self._sums(before)
        self._ledger(checks.held_of(before))
        grants = Grants({node: ledger.inventory for node, ledger in before.items()})
        for pod in self.system.pods(self.namespace):
            if is_ready(pod) and names.ANNOTATION_ALLOCATION not in pod["metadata"].get("annotations", {}):
                self.wrong.append(f"{pod['metadata']['name']} runs without a grant")
            elif is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._environments(pod, grants)

    def _sums(self, ledgers: Mapping[NodeName, NodeLedger]) -> None:
        self.counts["sums of GPUs"] += sum(len(ledger.inventory.gpus) for ledger in ledgers.values())
        for node, ledger in ledgers.items():
            if over := ledger.over_committed():
                self.wrong.append(f"{node} is over its memory: {over}")

    def _ledger(self, expected: Mapping[Gpu, int]) -> None:
        told = checks.ledger_of_the_controller(self.system)
        self.counts["comparisons of the controller's ledger"] += 1
        now = self.clock()
        for gpu, units in expected.items():
            if told.get(gpu) == units:
                self._differs_since.pop(gpu, None)
            elif now - self._differs_since.setdefault(gpu, now) > IN_DOUBT_S:
                self.wrong.append(f"{gpu}: the controller says {told.get(gpu)}, the pods {units}, for {IN_DOUBT_S} s")

    def _environments(self, pod: Json, grants: Grants) -> None:
        restarts = {status["name"]: status["restartCount"] for status in pod["status"]["containerStatuses"]}
        for container in pod["spec"]["containers"]:
            name = container["name"]
            key = (pod["metadata"]["uid"], name, restarts[name])
            if key in self._seen:
                continue
            printed = self.system.environment(pod, name)
            if printed is None:
                continue
            self._seen.add(key)
            self.counts["environments of containers"] += 1
            found, expected = seen.by(printed), grants.to(pod, name)
            if found != expected:
                self.wrong.append(f"{pod['metadata']['name']}/{name}: sees {found}; was granted {expected}")
