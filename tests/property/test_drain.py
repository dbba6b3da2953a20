"""Of random GPUs with random budgets, the dry run of a drain says exactly who is then evicted."""

import json
import random

from hypothesis import settings

from testing.builders import Json, make_grant, make_inventory, make_node
from testing.cli.draining import budget, drain, owned, pods, seeded
from testing.cli.explaining import kube_of
from testing.cli.podding import bound
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube

CLUSTERS = 2 * settings().max_examples
NODE = make_node(make_inventory(40, 40))


def cluster(seed: int) -> tuple[FakeKube, dict[str, bool]]:
    """Pods on two GPUs, and budgets for some; the pods' names, and whether they are on the first GPU."""
    chance = random.Random(seed)
    objects: list[Json] = [NODE]
    on_first: dict[str, bool] = {}
    for number in range(chance.randint(0, 8)):
        gpus = chance.choice([(0,), (0,), (1,), (0, 1)])
        labels = {key: "x" for key in "ab" if chance.random() < 0.5}
        phase = chance.choice(["Running", "Running", "Running", "Pending"])
        pod = bound(f"p{number}", make_grant(*gpus, gib=1), labels=labels, phase=phase)
        if phase == "Running" and chance.random() < 0.5:
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        pod["spec"]["priority"] = chance.choice([0, 0, 5])
        pod["metadata"]["creationTimestamp"] = f"2026-01-0{chance.randint(1, 9)}T00:00:00Z"
        if chance.random() < 0.8:
            owned(pod)
        if chance.random() < 0.2:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if chance.random() < 0.2:
            pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
        objects.append(pod)
        on_first[f"p{number}"] = 0 in gpus
    budgets = [budget(key, chance.randint(0, 3), **{key: "x"}) for key in "ab" if chance.random() < 0.6]
    for each in budgets:
        each["status"].update(currentHealthy=chance.randint(0, 3), desiredHealthy=chance.randint(0, 3))
        if chance.random() < 0.2:
            each["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return seeded(kube_of(objects), *budgets), on_first


def test_who_is_named_is_evicted_and_no_one_else() -> None:
    evicted = 0
    for seed in range(CLUSTERS):
        api, on_first = cluster(seed)
        before = pods(api)
        promised = json.loads(drain(api, dry_run=True, output="json").out)["planned"]
        assert {row["name"] for row in promised} == {name for name, there in on_first.items() if there}, seed

        drain(api, clock=ManualClock(0), timeout=0)

        going = {row["name"] for row in promised if row["step"] == "evict"}
        assert before - pods(api) == going, seed
        evicted += len(going)
    assert evicted > CLUSTERS // 2
