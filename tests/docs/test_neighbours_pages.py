"""The page on other systems: its pods are admitted as they say, and its sums are right."""

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from gpushare.wire import requests
from testing import pages
from testing.reviews import WHOLE, mutated

Json = dict[str, Any]

PAGE: Final = "docs/neighbours.md"
WORKFLOWS: Final = "Workflows, training and serving"
SYSTEMS: Final = ("Kueue", "Other schedulers", WORKFLOWS)
ROWS: Final = re.findall(
    r"^\| (.+) \| (.+) \| (.+) \|$",
    pages.section(PAGE, "## Kueue").split("counts as |\n")[1],
    flags=re.MULTILINE,
)


def blocks(system: str) -> list[Json]:
    written = re.findall(r"^```yaml\n(.*?)^```$", pages.section(PAGE, f"## {system}"), re.DOTALL | re.MULTILINE)
    return [document for block in written for document in yaml.safe_load_all(block)]


def templates(value: object, metadata: Json | None = None) -> Iterator[Json]:
    """The pods that an object's templates describe: anything with containers, with the metadata beside it."""
    if isinstance(value, list):
        for each in value:
            yield from templates(each)
    elif isinstance(value, dict):
        own = {key: value.get("metadata", {}).get(key, {}) for key in ("labels", "annotations")}
        if "containers" in value:
            yield {"metadata": {"name": "p", **(metadata or {})}, "spec": value}
        elif "container" in value:  # Argo's, which calls it so
            main = {**value["container"], "name": "main"}
            yield {"metadata": {"name": "p", **own}, "spec": {"containers": [main]}}
        elif "resourcesPerNode" in value:  # Trainer's
            node = {"name": "node", "image": "node", "resources": value["resourcesPerNode"]}
            yield {"metadata": {"name": "p"}, "spec": {"containers": [node]}}
        else:
            for key, each in value.items():
                yield from templates(each, own if key == "spec" else None)


def granted(pod: Json) -> dict[str, tuple[int, int]]:
    """Container -> number of GPUs, and MiB on each."""
    found = requests.of_pod(pod, WHOLE.resource_config)
    assert found
    return {each.container: (each.gpu_count, each.memory_mib) for each in found.shape.containers}


PODS: Final = {
    ("Kueue", "Job", "train"): [{"main": (1, 3072)}],
    ("Other schedulers", "Job", "train"): [{"main": (1, 3072)}],
    ("Other schedulers", "Pod", "train"): [{"main": (1, 3072)}],
    (WORKFLOWS, "Workflow", "train-"): [{"main": (2, 2048)}],
    (WORKFLOWS, "PyTorchJob", "ddp"): [{"pytorch": (1, 3072)}, {"pytorch": (1, 3072)}],
    (WORKFLOWS, "TrainJob", "ddp"): [{"node": (1, 8192)}],
    (WORKFLOWS, "InferenceService", "sklearn"): [{"kserve-container": (1, 2048)}],
}
"""By section, kind and name: what the pods of each object hold."""


def test_every_pod_of_the_page_is_admitted() -> None:
    found = {}
    for system in SYSTEMS:
        for document in blocks(system):
            pods = [mutated({"apiVersion": "v1", "kind": "Pod", **each}, WHOLE) for each in templates(document)]
            if pods:
                metadata = document["metadata"]
                name = metadata.get("name", metadata.get("generateName"))
                found[system, document["kind"], name] = [granted(pod) for pod in pods]
    assert found == PODS


def test_kueues_queues_belong_together() -> None:
    kinds = {each["kind"]: each for each in blocks("Kueue") if "metadata" in each and "kind" in each}
    [group] = kinds["ClusterQueue"]["spec"]["resourceGroups"]
    [flavor] = group["flavors"]
    assert flavor["name"] == kinds["ResourceFlavor"]["metadata"]["name"]
    assert kinds["ResourceFlavor"]["spec"]["nodeLabels"] == {names.LABEL_SHARES: "true"}
    assert group["coveredResources"] == [each["name"] for each in flavor["resources"]] == [names.GPU_MEM]
    assert kinds["LocalQueue"]["spec"]["clusterQueue"] == kinds["ClusterQueue"]["metadata"]["name"]
    assert kinds["Job"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == kinds["LocalQueue"]["metadata"]["name"]


def configuration() -> Json:
    [found] = [each for each in blocks("Kueue") if each.get("kind") == "Configuration"]
    return found


def test_what_kueue_leaves_out_is_nothing_that_memory_is_counted_by() -> None:
    prefixes = tuple(configuration()["resources"]["excludeResourcePrefixes"])
    assert names.GPU_CORE.startswith(prefixes)
    assert not any(each.startswith(prefixes) for each in (names.GPU_MEM, names.GPU_PERCENT, names.GPU))


def counted(pod: Json) -> int:
    """Units by which Kueue counts a pod: its limits, transformed by the page's configuration and rounded up."""
    factors = {each["input"]: each["outputs"] for each in configuration()["resources"]["transformations"]}
    [container] = pod["spec"]["containers"]
    [(resource, amount)] = container["resources"]["limits"].items()
    factor = str(factors.get(resource, {names.GPU_MEM: 1})[names.GPU_MEM])
    one = Decimal(factor.removesuffix("m")) / (1000 if factor.endswith("m") else 1)
    return math.ceil(int(amount) * one)


def written(text: str) -> Json:
    """The pod that a row of the table describes; "and" goes on from the limit of the row before."""
    limit = re.search(r"limit `(\S+): (\d+)`", text) or re.search(r"limit `(\S+): (\d+)`", ROWS[0][0])
    assert limit
    marks = dict(re.findall(r'`(\S+): "(\w+)"`', text))
    if "the same annotation" in text:
        marks[names.ANNOTATION_GPUS] = "2"
    labels = {key: marks.pop(key) for key in (names.LABEL_GPU_COUNT,) if key in marks}
    container = {"name": "main", "image": "main", "resources": {"limits": {limit[1]: limit[2]}}}
    metadata = {"name": "p", "labels": labels, "annotations": marks}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


@pytest.mark.parametrize(("request_", "of_a_job", "of_a_pod"), ROWS)
def test_what_kueue_sees_is_what_the_table_says(request_: str, of_a_job: str, of_a_pod: str) -> None:
    pod = written(request_)
    assert str(counted(pod)) == (re.findall(r"\d+", of_a_job) or [""])[0]
    assert str(counted(mutated(pod, WHOLE))) == of_a_pod


def test_the_table_has_every_way_to_ask() -> None:
    text = "".join(row[0] for row in ROWS)
    ways = (names.GPU_MEM, names.GPU_PERCENT, names.GPU, names.LABEL_GPU_COUNT, names.ANNOTATION_GPUS)
    assert all(f"`{each}: " in text for each in (*ways, names.ANNOTATION_TOTALS))


def test_the_spawner_offers_a_resource_of_ours() -> None:
    [found] = [each for each in blocks(WORKFLOWS) if "spawnerFormDefaults" in each]
    value = found["spawnerFormDefaults"]["gpus"]["value"]
    assert [each["limitsKey"] for each in value["vendors"]] == [value["vendor"]] == [names.GPU_MEM]
    assert value["num"] in {"none", "1", "2", "4", "8"}
