"""What the page on NVIDIA's GPU Operator names is what the doctor, the manifests and the settings have."""

import re
import shlex

import jsonpatch
import pytest
import yaml

from gpushare import names
from gpushare_cli.doctor import checks_admission, checks_conflicts
from testing.cli import doctor_cluster
from testing.manifests import tree
from testing.pages import blocks, section, text

PAGE = text("docs/gpu-operator.md")


def test_the_patch_names_the_container_of_the_device_plugin() -> None:
    [patch] = [yaml.safe_load(block) for block in blocks("docs/gpu-operator.md", "yaml") if "DaemonSet" in block]
    found = tree.one(tree.installed(), patch["kind"], names.PLUGIN)
    assert patch["metadata"] == {key: found["metadata"][key] for key in ("name", "namespace")}
    [patched], [container] = (each["spec"]["template"]["spec"]["containers"] for each in (patch, found))
    assert patched["name"] == container["name"]
    assert f"nvidia.cdi.k8s.io/container.{container['name']}:" in PAGE


def test_the_webhook_that_it_takes_out_is_that_for_pods_without_gpus() -> None:
    [found] = [block for block in blocks("docs/gpu-operator.md", "yaml") if "patchesJson6902" in block]
    [patched] = yaml.safe_load(found)["patchesJson6902"]
    operations = yaml.safe_load(patched["patch"])
    config = tree.one(tree.objects("servers/1.30"), patched["target"]["kind"], patched["target"]["name"])
    left = jsonpatch.apply_patch(config, operations)["webhooks"]
    assert [each for each in config["webhooks"] if each not in left] == [
        each for each in config["webhooks"] if each["name"] == checks_admission.ISOLATION
    ]
    whole = tree.one(tree.objects("whole-gpus/1.30"), config["kind"], config["metadata"]["name"])
    assert [each["name"] for each in whole["webhooks"]].index(checks_admission.ISOLATION) == 3
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(whole, operations)


def labelled(labels: dict[str, str], command: str) -> dict[str, str]:
    """The labels of a node after `kubectl label node NODE ...`."""
    changes = [word for word in shlex.split(command)[4:] if word != "--overwrite"]
    gone = {word[:-1] for word in changes if word.endswith("-")}
    added = dict(word.split("=") for word in changes if "=" in word)
    assert len(gone) + len(added) == len(changes)
    return {key: value for key, value in labels.items() if key not in gone} | added


def test_its_steps_are_what_the_doctor_asks_for() -> None:
    """A node on which the operator's plugin shares by MPS, as the operator and its feature discovery label it."""
    cluster = doctor_cluster.healthy()
    node: dict[str, str] = {
        checks_conflicts.KEPT_OFF: "true",
        checks_conflicts.CONFIG: "shared",
        checks_conflicts.MPS_CAPABLE: "true",
    }

    def conflicts() -> list[str]:
        label = {"labels": node}
        doctor_cluster.edit(cluster, "Node", "node-b", lambda found: found["metadata"].update(label))
        return [line for line in doctor_cluster.lines(cluster) if "nvidia-sharing" in line]

    steps = section("docs/gpu-operator.md", "## Step by step")
    commands = re.findall(r"\$ (kubectl label node NODE .*)", steps)
    node = labelled(node, next(command for command in commands if "gpushare=true" in command))
    assert len(conflicts()) == 1
    for command in commands:
        node = labelled(node, command)
    assert conflicts() == []
    assert node == {names.LABEL_SHARES: "true", checks_conflicts.KEPT_OFF: "false"}
    node |= {names.LABEL_HAND_OVER: "cdi", names.LABEL_LIMITS: "mps", names.LABEL_NVIDIA_DEFAULT: "true"}
    for command in re.findall(r"\$ (kubectl label node NODE .*)", PAGE.split("\n## Back\n")[1]):
        node = labelled(node, command)
    assert node == {checks_conflicts.KEPT_OFF: "true"}
