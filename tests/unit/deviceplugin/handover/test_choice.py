"""What a node can, and what its administrator says, decide how its GPUs are handed over."""

from typing import Any

import pytest

from deviceplugin.handover import choice
from deviceplugin.handover.choice import Facts
from deviceplugin.node import NodeFacts, read_node
from gpushare.errors import WireError
from tests.unit.deviceplugin import golden

KUBELET = "v1.36.2"


def facts(runtime: str = "containerd://2.1.9", kubelet: str = KUBELET, label: str = "", **fields: Any) -> Facts:
    given: dict[str, Any] = {"directory": "/var/run/cdi", "writable": True, "nvidia_specs": True} | fields
    return Facts(node=NodeFacts(runtime=runtime, kubelet=kubelet, label=label), **given)


FACTS = [
    facts("containerd://2.0.0"),
    facts("containerd://2.1.9-k3s1"),
    facts("cri-o://1.28.0"),
    facts("", ""),
    facts(nvidia_specs=False, simulated=True),
    facts("containerd://1.7.24"),
    facts("containerd://1.6.20~ds1"),
    facts("cri-o://1.27.4"),
    facts("docker://24.0.7"),
    facts("containerd://"),
    facts(writable=False),
    facts(nvidia_specs=False),
    facts(label="envvar"),
    facts("containerd://1.7.24", label="cdi"),
    facts(setting="cdi", label="volume-mounts"),
    facts(setting="volume-mounts"),
    facts("containerd://1.6.0", setting="cdi"),
    facts(writable=False, label="cdi"),
    facts(setting="envvar", label="auto"),
    facts(label="CDI"),
]


def test_the_way_and_its_reason() -> None:
    golden.compare("hand_over", (f"{found.way.value}: {found.reason}" for found in map(choice.choose, FACTS)))


@pytest.mark.parametrize(
    ("runtime", "never"),
    [
        ("containerd://1.6.36", True),
        ("containerd://1.7.0", False),
        ("cri-o://1.22.5", True),
        ("cri-o://1.23.0", False),
        ("docker://24.0.7", False),
        ("", False),
    ],
)
def test_a_demand_that_can_never_be_met_is_told_from_one_whose_author_may_know_better(
    runtime: str, never: bool
) -> None:
    demanded, free = (choice.choose(facts(runtime, label=label)) for label in ("cdi", ""))
    assert (bool(demanded.impossible), bool(free.impossible), bool(free.never_injects)) == (never, False, never)
    unwritable = choice.choose(facts(label="cdi", writable=False))
    assert (unwritable.impossible, unwritable.never_injects) == (unwritable.reason, "")  # it may be writable again


def test_older_kubelets_are_told_by_an_annotation_and_a_label_beats_the_setting_of_the_default_runtime() -> None:
    field, annotation, both = (True, False), (False, True), (True, True)
    told = {"v1.36.2": field, "v1.29.0-eks-1": field, "v1.28.15": annotation, "v1.20.2": annotation}
    for kubelet, expected in (told | {"": both, "unknown": both}).items():
        chosen = choice.choose(facts(kubelet=kubelet))
        assert (chosen.by_field, chosen.by_annotation) == expected, kubelet
    for label, setting, default in (
        ("", True, True),
        ("", False, False),
        ("false", True, False),
        ("true", False, True),
    ):
        found = Facts(node=NodeFacts(default_label=label), nvidia_default=setting, writable=True)
        assert choice.choose(found).nvidia_default is default, label


def test_a_node_is_read() -> None:
    labels = {"hand-over": "cdi", "nvidia-default-runtime": "true", "limits": "mps.advisory"}
    node: dict[str, Any] = {
        "metadata": {"labels": {f"gpushare.dev/{name}": value for name, value in labels.items()}},
        "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.9", "kubeletVersion": KUBELET}},
    }
    assert read_node(node) == NodeFacts(
        runtime="containerd://2.1.9", kubelet=KUBELET, label="cdi", default_label="true", limits_label="mps.advisory"
    )
    assert read_node({}) == NodeFacts()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("node.metadata", {"metadata": 3}),
        ("node.status", {"status": 3}),
        ("status.nodeInfo", {"status": {"nodeInfo": 3}}),
        ("metadata.labels", {"metadata": {"labels": 3}}),
        *((f"status.nodeInfo.{key}", {"status": {"nodeInfo": {key: 3}}}) for key in node["status"]["nodeInfo"]),
        *((f"metadata.labels.{key}", {"metadata": {"labels": {key: 3}}}) for key in node["metadata"]["labels"]),
    ]
    for path, found in wrong:
        with pytest.raises(WireError, match=f"^{path}: "):
            read_node(found)
