"""Every reason and column in the summary of `gpushare simulate` is on its page, with what to do."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.ledger import Placed
from gpushare_cli.simulate import plan
from gpushare_cli.world import NodeAnswer
from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.simulating import manifest, simulate

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### What keeps pods away\n")[2].partition("\n### ")[0]
ROWS = [line.split(" | ") for line in SECTION.splitlines() if line.startswith("| `")]
TOLD = [name for cells in ROWS for name in re.findall(r"`([^`]+)`", cells[0])]
MATCHING = {
    "taint KEY=VALUE": "taint .+=.+",
    "taint KEY": "taint [^=]+",
    "Insufficient RESOURCE": r"Insufficient .+/.+",
}


def node(**status: str) -> Json:
    made = make_node(make_inventory(15, node="node-a"))
    made["status"]["allocatable"] |= {"cpu": "4", "memory": "8Gi", "pods": "110"} | status
    return made


def tainted(value: str) -> Json:
    return {**node(), "spec": {"taints": [{"key": "team", "value": value, "effect": "NoSchedule"}]}}


def pod(name: str = "x", gpu_mem: int = 3, spec: Mapping[str, Any] | None = None, **requests: str) -> Json:
    resources = {"limits": {names.GPU_MEM: gpu_mem}, "requests": requests}
    made = make_pod(make_container(resources=resources), name=name)
    made["spec"] |= spec or {}
    return manifest(made)


NODE_AFFINITY: Json = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
TERM: Json = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
POD_AFFINITY: Json = {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
BESIDE_GPUS = {
    "Insufficient cpu": (node(), pod(cpu="5")),
    "Insufficient memory": (node(), pod(memory="9Gi")),
    "Insufficient aliyun.com/gpu-mem": (node(**{names.GPU_MEM: "2"}), pod()),
    "Too many pods": (node(pods="1"), pod(), pod(name="y")),
    "cordoned (spec.unschedulable)": ({**node(), "spec": {"unschedulable": True}}, pod()),
    "taint team=ml": (tainted("ml"), pod()),
    "taint team": (tainted(""), pod()),
    "spec.nodeSelector wants disk=ssd, the node has no such label": (
        node(),
        pod(spec={"nodeSelector": {"disk": "ssd"}}),
    ),
    "no term of the required node affinity matches": (node(), pod(spec={"affinity": {"nodeAffinity": NODE_AFFINITY}})),
    "pod affinity or topology spread, its own or that of pods there, keeps it away": (
        node(),
        pod(spec={"affinity": {"podAffinity": POD_AFFINITY}}),
    ),
    "RefusedByWebhook": (node(), pod(gpu_mem=-1)),
    "NotReady": (node(), pod(spec={"schedulingGates": [{"name": "quota"}]})),
}


def is_told(reason: str) -> bool:
    """Whether a row means it; a row may end in dots."""
    return any(
        re.fullmatch(MATCHING.get(name) or re.escape(name).replace(r"KEY=VALUE", ".+").replace(r"\.\.\.", ".+"), reason)
        for name in TOLD
    )


@pytest.mark.parametrize("reason", BESIDE_GPUS)
def test_every_reason_beside_gpus_is_told(reason: str) -> None:
    found = simulate(*BESIDE_GPUS[reason], as_json=True).value
    assert found["summary"]["refused"] == {reason: 1}
    assert is_told(reason)


def test_what_is_said_where_no_node_says_anything_is_told() -> None:
    assert plan.reason([NodeAnswer(node=NodeName("node-a"), verdict=Placed(()))]) in TOLD


def test_each_reason_says_what_to_do() -> None:
    assert all(len(cells) == 3 and len(cells[2]) > len("| ") for cells in ROWS)
    assert len(TOLD) == len(set(TOLD))


def test_the_columns_and_fields_of_the_gpus_that_are_left_are_told() -> None:
    left = PAGE.partition("### Which GPUs are left\n")[2].partition("\n### ")[0]
    found = simulate(node(), pod(), summary=True)
    [header] = [line for line in found.out.splitlines() if line.startswith("MODEL")]
    assert [name for name in re.split(r" {2,}", header)[3:] if f"| `{name}` |" not in left] == []
    [gpus] = simulate(node(), pod(), as_json=True).value["summary"]["gpus"]
    assert [field for field in gpus if field != "model" and f"`{field}`" not in left] == []
