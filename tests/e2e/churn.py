"""Pods that come and go."""

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.kube import api as kube
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, Share, System, is_incomplete

PERIOD_S: Final = 0.7
MOST: Final = 36
SIZES: Final = ((1,), (1,), (3,), (7,), (GPU_GIB,), (2, 5), (1, 1, None), (4, None, 4))


@dataclass
class Churn:
    """Creates and deletes pods until it is stopped."""

    system: System
    namespace: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    _made: int = 0

    def run(self, stop: threading.Event) -> None:
        """A step at a time: another pod, or one less; pods that a node has rejected are deleted."""
        chance = random.Random(self.seed)
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        while not stop.wait(PERIOD_S):
            try:
                pods = [pod for pod in self.system.pods(self.namespace) if "deletionTimestamp" not in pod["metadata"]]
                failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
                for pod in failed:
                    self.counts[f"rejected: {pod['status'].get('reason')}"] += 1
                    self._delete(pod)
                for pod in filter(is_incomplete, pods):
                    self.counts["came without the webhook"] += 1
                    self._delete(pod)
                if pods and chance.random() < len(pods) / MOST:
                    self._delete(chance.choice(pods))
                    self.counts["deleted"] += 1
                else:
                    self.system.api.create(path, self._pod(chance), timeout_s=30)
                    self.counts["created"] += 1
            except kube.NotFoundError:
                pass  # it went by itself
            except kube.KubeError as error:
                self.counts[f"refused: {type(error).__name__}"] += 1

    def _pod(self, chance: random.Random) -> Json:
        annotations = {names.ANNOTATION_GPUS: "2"} if chance.random() < 0.2 else {}
        size = chance.choice(SIZES)
        self._made += 1
        return Share(name=f"c{self._made:05}", gib=size, annotations=annotations).document()

    def _delete(self, pod: Json) -> None:
        body = {"gracePeriodSeconds": 1, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self.system.api.delete(kube.pod_path(self.namespace, pod["metadata"]["name"]), body, timeout_s=30)
