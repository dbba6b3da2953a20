"""Pods that the pages on other systems and on models show are admitted, and their sums are right."""

import contextlib
import io
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.units import GIB
from gpushare.wire import profile as profile_wire, requests
from release.pages.requests import EXAMPLES, RESOURCE_CONFIG, Example
from testing import pages
from testing.granted import environments
from testing.pages import fraction_of, text
from testing.reviews import WHOLE, mutated, warnings

Json = dict[str, Any]

PAGE: Final = "docs/neighbours.md"
WORKFLOWS: Final = "Workflows, training and serving"
SYSTEMS: Final = ("Kueue", "Other schedulers", WORKFLOWS)
ROWS: Final = re.findall(
    r"^\| (.+) \| (.+) \| (.+) \|$", pages.section(PAGE, "## Kueue").split("counts as |\n")[1], flags=re.MULTILINE
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


PYTHON: Final = pages.blocks("docs/inference.md", "python")
YAML: Final = [each for block in pages.blocks("docs/inference.md", "yaml") for each in yaml.safe_load_all(block)]
CONTEXT: Final = 512
EVERY_WAY: Final = [each for each in EXAMPLES if each.name != "same" and not each.request().shape.gpus.enforced]
"""But those that need another pod, or a limit that the profile's GPUs lack."""


def node() -> NodeInventory:
    return profile_wire.inventory(yaml.safe_load(text("testing/profiles/a100x8.yaml")), NodeName("node-a"), GIB)


@pytest.mark.parametrize("example", EVERY_WAY, ids=lambda each: each.name)
def test_the_fraction_keeps_every_way_to_ask_within_its_share(example: Example) -> None:
    inventory = node()
    [variables] = environments(example.pod(), NodeLedger.of(inventory, []), RESOURCE_CONFIG).values()
    [request] = example.request().shape.containers
    gpu = inventory.gpus[0]
    granted = request.need(gpu).memory_mib
    whole = gpu.memory_mib
    assert variables.get(names.ENV_MEMORY_MIB) == (None if request.whole else str(granted))
    # CUDA reports the whole GPU; a bit less, as it keeps some; or the share.
    for total in (whole, whole - 500, granted):
        allowed = fraction_of(variables, total) * total
        room = min(granted, total) - CONTEXT
        assert room - total / 10_000 - 1 <= allowed <= room, (example.name, total)


def test_shares_that_fill_a_gpu_fit_beside_each_other_with_their_contexts() -> None:
    total = 15109
    fractions = [fraction_of({names.ENV_MEMORY_MIB: str(gib * 1024)}, total) for gib in (8, 4, 2)]
    assert sum(fraction * total + CONTEXT for fraction in fractions) <= 14 * 1024


def test_a_share_without_room_for_the_context_is_told() -> None:
    with pytest.raises(ValueError, match="512 MiB leave no room beside CUDA's context of 512 MiB: ask for more"):
        fraction_of({names.ENV_MEMORY_MIB: "512"}, 15109)


class Torch(types.ModuleType):
    """As much of PyTorch as the page calls; `set_per_process_memory_fraction` is as particular as the real one."""

    def __init__(self, *total_mib: int) -> None:
        super().__init__("torch")
        self.totals, self.limits = total_mib, dict[int, float]()
        self.cuda = self

    def device_count(self) -> int:
        return len(self.totals)

    def mem_get_info(self, device: int) -> tuple[int, int]:
        return 0, self.totals[device] * 2**20 + 12345

    def get_device_properties(self, device: int) -> Any:
        return types.SimpleNamespace(total_memory=self.totals[device] * 2**20 + 12345)

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        assert isinstance(fraction, float)
        assert 0 <= fraction <= 1
        self.limits[device] = fraction


def run(code: str, torch: Torch, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, **more: object) -> str:
    """What it prints."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv(names.ENV_MEMORY_MIB, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {**more})
    return printed.getvalue()


@pytest.mark.parametrize("variables", [{names.ENV_MEMORY_MIB: "8192"}, {}], ids=["share", "whole"])
@pytest.mark.parametrize("totals", [(81920,), (15109, 81920), (8192,)], ids=str)
def test_vllms_script_says_the_same_for_the_gpu_that_has_least_room(
    variables: Mapping[str, str], totals: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = YAML[0]["data"]["fraction.py"]
    printed = run(script, Torch(*totals), variables, monkeypatch)
    assert float(printed) == min(fraction_of(variables, total) for total in totals)


def test_pytorch_is_limited_on_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = [block for block in PYTHON if "set_per_process_memory_fraction" in block]
    torch = Torch(15109, 81920)
    variables = {names.ENV_MEMORY_MIB: "3072"}
    run(block, torch, variables, monkeypatch, memory_fraction=pages.memory_fraction())
    assert torch.limits == {0: fraction_of(variables, 15109), 1: fraction_of(variables, 81920)}


def test_the_deployment_is_admitted_as_it_is_and_mounts_the_script() -> None:
    script, deployment = YAML[:2]
    template = deployment["spec"]["template"]
    metadata = {"name": "p", **template["metadata"]}
    assert warnings({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}) == ()
    [container] = template["spec"]["containers"]
    [mount] = container["volumeMounts"]
    assert f"{mount['mountPath']}/{next(iter(script['data']))}" in container["args"][0]
    assert template["spec"]["volumes"] == [{"name": mount["name"], "configMap": {"name": script["metadata"]["name"]}}]


def test_pods_that_share_a_gpu_name_a_label_that_both_have() -> None:
    deployment, second = YAML[1], YAML[2]
    key, _, value = second["metadata"]["annotations"][names.ANNOTATION_SAME_GPU].partition("=")
    assert {deployment["spec"]["template"]["metadata"]["labels"][key], second["metadata"]["labels"][key]} == {value}
