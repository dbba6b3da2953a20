"""What the page on NVIDIA's GPU Operator names is what the doctor, the manifests and the settings have."""

import re
import shlex
from pathlib import Path

import jsonpatch
import pytest
import yaml

from deviceplugin.settings import Settings
from gpushare import names
from gpushare.runtime import options
from gpushare_cli.doctor import checks_conflicts, checks_hand_over, checks_webhook
from gpushare_cli.doctor.checks import CHECKS
from testing.cli import doctor_cluster
from testing.manifests import tree

PAGE = (tree.ROOT / "docs/gpu-operator.md").read_text(encoding="utf-8")
TOLD = PAGE.split("\n## What to check\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("check", re.findall(r"^\| `([a-z-]+)` \|", TOLD, flags=re.MULTILINE))
def test_every_check_that_it_names_exists(check: str) -> None:
    assert check in {each.id for each in CHECKS}


def test_what_the_doctor_says_about_it_is_told() -> None:
    for way_out in (checks_conflicts._KEPT_OFF, checks_conflicts._CONFIG, checks_conflicts._MPS_CAPABLE):
        assert way_out in PAGE
    assert checks_webhook.ISOLATION in PAGE
    assert (tree.ROOT / checks_hand_over._OPERATOR_PAGE).is_file()


def test_labels_and_settings_are_those_of_the_device_plugin() -> None:
    for label in (names.LABEL_HAND_OVER, names.LABEL_NVIDIA_DEFAULT, names.LABEL_ISOLATION):
        assert f"`{label}" in PAGE
    for field in ("hand_over", "nvidia_default_runtime"):
        assert f"`{options.flag_names(field)[0]}`" in PAGE
        assert field in Settings.__dataclass_fields__


def test_the_patch_names_the_container_of_the_device_plugin() -> None:
    [patch] = [
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL) if "DaemonSet" in text
    ]
    found = tree.one(tree.objects("base"), patch["kind"], names.PLUGIN)
    assert patch["metadata"] == {key: found["metadata"][key] for key in ("name", "namespace")}
    [patched], [container] = (each["spec"]["template"]["spec"]["containers"] for each in (patch, found))
    assert patched["name"] == container["name"]
    assert f"nvidia.cdi.k8s.io/container.{container['name']}:" in PAGE


def test_the_patch_and_the_components_lose_no_capability_to_each_other() -> None:
    def added(component: str) -> set[str]:
        [patch] = tree.documents(tree.MANIFESTS / component)
        [container] = patch["spec"]["template"]["spec"]["containers"]
        return set(container["securityContext"]["capabilities"]["add"])

    assert "add: [SYS_ADMIN]" in PAGE  # which replaces the list of a component
    assert "SYS_ADMIN" in added("limits/cgroup/device-plugin.yaml")
    assert "With [`limits/cgroup`](limits.md#cgroup) it has that already" in PAGE
    assert added("watchdog-kill/capability.yaml") == {"KILL"}
    assert "with `KILL` in the list beside `watchdog-kill`" in PAGE


def test_the_webhook_that_it_takes_out_is_that_for_pods_without_gpus() -> None:
    [found] = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL) if "patchesJson6902" in text]
    [patched] = yaml.safe_load(found)["patchesJson6902"]
    operations = yaml.safe_load(patched["patch"])
    config = tree.one(tree.objects("servers/1.30"), patched["target"]["kind"], patched["target"]["name"])
    left = jsonpatch.apply_patch(config, operations)["webhooks"]
    assert [each for each in config["webhooks"] if each not in left] == [
        each for each in config["webhooks"] if each["name"] == checks_webhook.ISOLATION
    ]
    added = yaml.safe_load((tree.MANIFESTS / "whole-gpus/1.30/webhooks.yaml").read_text(encoding="utf-8"))
    whole = jsonpatch.apply_patch(config, added)
    assert [each["name"] for each in whole["webhooks"]].index(checks_webhook.ISOLATION) == 3
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(whole, operations)


def test_the_files_that_it_has_changed_exist() -> None:
    kustomization = Path("manifests/gpus/nvidia/kustomization.yaml")
    assert str(kustomization) in PAGE
    assert "  - runtimeclass.yaml\n" in (tree.ROOT / kustomization).read_text(encoding="utf-8")
    [patch] = tree.documents(tree.MANIFESTS / "gpus/nvidia/device-plugin.yaml")
    spec = patch["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == names.RUNTIME_CLASS
    assert tree.settings_of(spec["containers"][0])[names.ENV_VISIBLE_DEVICES] == "all"


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
        checks_conflicts._KEPT_OFF: "true",
        checks_conflicts._CONFIG: "shared",
        checks_conflicts._MPS_CAPABLE: "true",
    }

    def conflicts() -> list[str]:
        label = {"labels": node}
        doctor_cluster.edit(cluster, "Node", "node-b", lambda found: found["metadata"].update(label))
        return [line for line in doctor_cluster.lines(cluster) if "nvidia-sharing" in line]

    steps = PAGE.split("\n## Step by step\n")[1].split("\n## ")[0]
    commands = re.findall(r"\$ (kubectl label node NODE .*)", steps)
    node = labelled(node, next(command for command in commands if "gpushare=true" in command))
    assert len(conflicts()) == 1
    for command in commands:
        node = labelled(node, command)
    assert conflicts() == []
    assert node == {names.LABEL_SHARES: "true", checks_conflicts._KEPT_OFF: "false"}
    node |= {names.LABEL_HAND_OVER: "cdi", names.LABEL_LIMITS: "mps", names.LABEL_NVIDIA_DEFAULT: "true"}
    for command in re.findall(r"\$ (kubectl label node NODE .*)", PAGE.split("\n## Back\n")[1]):
        node = labelled(node, command)
    assert node == {checks_conflicts._KEPT_OFF: "true"}


def test_no_node_stays_drained() -> None:
    assert PAGE.count("$ kubectl drain NODE") == PAGE.count("$ kubectl uncordon NODE") == 2
