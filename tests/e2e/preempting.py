"""Preemption as kube-scheduler does it; where its version forgets to ask extenders, the test asks in its place.

kube-scheduler 1.20.0 to 1.20.9 and 1.21.0 to 1.21.3 ask no extender about preemption (kubernetes/kubernetes#103019).
"""

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare import names
from gpushare.kube import api as kube
from tests.e2e.system import Json, System, is_ready

PLAYED = "none"
"""Scheduler of pods that the test schedules itself."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Anyone who evicts: kube-scheduler, or the test in its place."""

    system: System

    @property
    def asks(self) -> bool:
        """Whether this kube-scheduler asks extenders."""
        version = self.system.cluster.version
        return (version.major, version.minor) >= (1, 22)

    def create(self, namespace: str, pod: Json) -> None:
        """A pod that needs others out of its way."""
        if not self.asks:
            pod["spec"]["schedulerName"] = PLAYED
        self.system.create(namespace, pod)

    def makes_room(self, namespace: str, pod: str, node: str, given: Sequence[str]) -> None:
        """Wait until the pod runs.

        Args:
            namespace: of all pods.
            pod: the one that needs room.
            node: where.
            given: victims that free the node's sum, as kube-scheduler finds them.
        """
        if not self.asks:
            victims = self.victims(namespace, pod, node, given)
            for name in victims:
                self.system.api.delete(kube.pod_path(namespace, name), {"gracePeriodSeconds": 1})
            self.system.eventually("the victims are gone", lambda: not self._names(namespace) & set(victims))
            self.system.eventually("it is bound", lambda: self._binds(namespace, pod, node))
        self.system.eventually("the pod runs", lambda: is_ready(self.system.pod(namespace, pod)))

    def victims(self, namespace: str, pod: str, node: str, given: Sequence[str]) -> Sequence[str]:
        """Names of those whom the controller would evict in their place."""
        by_name = {one["metadata"]["name"]: one["metadata"]["uid"] for one in self.system.pods(namespace)}
        meta = {"Pods": [{"UID": by_name[name]} for name in given], "NumPDBViolations": 0}
        arguments = {"Pod": self.system.pod(namespace, pod), "NodeNameToMetaVictims": {node: meta}}
        answer = self._ask("preempt", arguments)["NodeNameToMetaVictims"]
        by_uid = {uid: name for name, uid in by_name.items()}
        return [by_uid[victim["UID"]] for victim in answer.get(node, {"Pods": []})["Pods"]]

    def _names(self, namespace: str) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.system.pods(namespace)}

    def _binds(self, namespace: str, pod: str, node: str) -> bool:
        uid = self.system.pod(namespace, pod)["metadata"]["uid"]
        arguments = {"PodNamespace": namespace, "PodName": pod, "PodUID": uid, "Node": node}
        return not self._ask("bind", arguments)["Error"]

    def _ask(self, verb: str, arguments: Json) -> Json:
        service = self.system.api.get(f"/api/v1/namespaces/{names.NAMESPACE}/services/{names.CONTROLLER_SERVICE}")
        url = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}{names.EXTENDER_PREFIX}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/{verb}", json.dumps(arguments).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            value: Json = json.load(answer)
        return value
