"""The page on models computes the right fraction from the variables that containers really get."""

import contextlib
import io
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.units import GIB
from gpushare.wire import profile as profile_wire
from release.pages.requests import EXAMPLES, RESOURCE_CONFIG, Example
from testing import pages
from testing.granted import environments
from testing.pages import fraction_of, text
from testing.reviews import warnings

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
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **template["metadata"]},
        "spec": template["spec"],
    }
    assert warnings(pod) == ()
    [container] = template["spec"]["containers"]
    [mount] = container["volumeMounts"]
    assert f"{mount['mountPath']}/{next(iter(script['data']))}" in container["args"][0]
    assert template["spec"]["volumes"] == [{"name": mount["name"], "configMap": {"name": script["metadata"]["name"]}}]


def test_pods_that_share_a_gpu_name_a_label_that_both_have() -> None:
    deployment, second = YAML[1], YAML[2]
    key, _, value = second["metadata"]["annotations"][names.ANNOTATION_SAME_GPU].partition("=")
    assert {deployment["spec"]["template"]["metadata"]["labels"][key], second["metadata"]["labels"][key]} == {value}
