"""Preemption as kube-scheduler does it; where its version forgets to ask extenders, the test asks in its place.

kube-scheduler 1.20.0 to 1.20.9 and 1.21.0 to 1.21.3 ask no extender about preemption (kubernetes/kubernetes#103019).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from localcluster.provision import Version
from tests.apiserver.server import Json, Server

PLAYED = "none"
"""Scheduler of pods that the test schedules itself."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Anyone who evicts: kube-scheduler, or the test in its place."""

    server: Server

    @property
    def asks(self) -> bool:
        """Whether this kube-scheduler asks extenders."""
        return self.server.version >= Version(1, 22)

    def create(self, namespace: str, pod: Json) -> None:
        """A pod that needs others out of its way."""
        if not self.asks:
            pod["spec"]["schedulerName"] = PLAYED
        self.server.create_pod(namespace, pod)

    def makes_room(self, namespace: str, pod: str, node: str, given: Sequence[str]) -> Json:
        """Wait until the pod is bound.

        Args:
            namespace: of all pods.
            pod: the one that needs room.
            node: where.
            given: victims that free the node's sum, as kube-scheduler finds them.
        """
        if not self.asks:
            for name in self.victims(namespace, pod, node, given):
                self.server.delete_pod(namespace, name)
            self.server.eventually("it is bound", lambda: self._binds(namespace, pod, node))
        [bound] = self.server.bound(namespace, pod)
        return bound

    def victims(self, namespace: str, pod: str, node: str, given: Sequence[str]) -> Sequence[str]:
        """Names of those whom the controller would evict in their place."""
        by_name = {one["metadata"]["name"]: one["metadata"]["uid"] for one in self.server.pods(namespace)}
        meta = {"Pods": [{"UID": by_name[name]} for name in given], "NumPDBViolations": 0}
        arguments = {"Pod": self.server.pod(namespace, pod), "NodeNameToMetaVictims": {node: meta}}
        answer = self.server.ask_extender("preempt", arguments)["NodeNameToMetaVictims"]
        by_uid = {uid: name for name, uid in by_name.items()}
        return [by_uid[victim["UID"]] for victim in answer.get(node, {"Pods": []})["Pods"]]

    def _binds(self, namespace: str, pod: str, node: str) -> bool:
        uid = self.server.pod(namespace, pod)["metadata"]["uid"]
        arguments = {"PodNamespace": namespace, "PodName": pod, "PodUID": uid, "Node": node}
        return not self.server.ask_extender("bind", arguments)["Error"]
