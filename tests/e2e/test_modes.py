"""GPUs of one node that change between gpu-mem and claims while pods of both come and go."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare import names
from gpushare.model.gpu import NodeInventory
from gpushare.wire import inventory as inventory_wire
from testing.claims import template
from tests.e2e import disturb
from tests.e2e.claims import NODE, claiming, gpus, need_server
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import System, allocated, is_ready, make_pod

STEPS_PER_MODE: Final = 100
PACE_S: Final = 0.15  # a change takes some 20 s, and pods as long to be bound after it


@dataclass
class Steps:
    """Pods of both kinds on one node come and go, and its GPUs change their modes, at random."""

    system: System
    namespace: str
    chance: Random
    inventory: NodeInventory
    counts: Counter[str] = field(default_factory=Counter)

    def step(self, number: int) -> None:
        if number % STEPS_PER_MODE == 0:
            some = self.chance.sample(self.inventory.gpus, self.chance.randint(1, GPUS_PER_NODE - 1))
            text = ",".join(f"{gpu.uuid}=dra" for gpu in some)
            self.system.cluster.kubectl("annotate", "--overwrite", "node", NODE, f"{names.ANNOTATION_MODE}={text}")
        pods = [
            pod["metadata"]["name"]
            for pod in self.system.pods(self.namespace)
            if "deletionTimestamp" not in pod["metadata"]
        ]
        if self.chance.random() < len(pods) / 24:
            self.system.delete(self.namespace, self.chance.choice(pods), force=self.chance.random() < 0.2)
            return
        gib = self.chance.choice((1, 4, 9, 20))
        made = (
            claiming(f"p{number}", f"gib-{gib}")
            if self.chance.random() < 0.5
            else make_pod(f"p{number}", gib, node=NODE)
        )
        self.system.api.create(f"/api/v1/namespaces/{self.namespace}/pods", made)

    def check(self) -> None:
        """No GPU has more on it than it holds, and none is of both kinds: of what runs, not of what was decided."""
        pods, claimed = self.system.pods(self.namespace), self.claimed()
        of_pods: Counter[str] = Counter()
        for pod in pods:
            if names.ANNOTATION_ALLOCATION in pod["metadata"].get("annotations", {}) and is_ready(pod):
                gib = int(pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM])
                of_pods.update({gpu: gib << 30 for gpus in allocated(pod).values() for gpu in gpus})
        for gpu in self.inventory.gpus:
            held = of_pods[gpu.uuid], claimed.get(gpu.uuid, 0)
            assert sum(held) <= GPU_GIB << 30, (gpu, held)
            assert not all(held), (gpu, held)
            self.counts["gpu-mem"] += bool(held[0])
            self.counts["claims"] += bool(held[1])

    def claimed(self) -> Mapping[str, int]:
        """What the node has prepared."""
        page = disturb.plugin_metrics(self.system, NODE)
        return {
            sample.labels["UUID"]: int(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "gpushare_plugin_claimed_bytes"
        }


@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_no_gpu_is_given_twice_while_modes_change_under_load(system: System, namespace: str, steps: int) -> None:
    need_server(system)
    inventory = inventory_wire.of_node(system.node(NODE))
    assert inventory
    run = Steps(system, namespace, Random(steps), inventory)
    system.create(namespace, *(template(f"gib-{gib}", gib) for gib in (1, 4, 9, 20)))
    try:
        for number in range(steps):
            run.step(number)
            run.check()
            time.sleep(PACE_S)
    finally:
        system.cluster.kubectl("annotate", "node", NODE, f"{names.ANNOTATION_MODE}-")
        system.delete_all(namespace)
    system.eventually("all GPUs are back", lambda: gpus(system) == (GPUS_PER_NODE, 0))
    assert run.counts["gpu-mem"], run.counts
    assert run.counts["claims"], run.counts
