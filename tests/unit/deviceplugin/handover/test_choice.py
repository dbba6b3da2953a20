"""What a node can, and what its administrator says, decide how its GPUs are handed over."""

from typing import Any

import pytest

from deviceplugin.handover import choice
from deviceplugin.handover.choice import Facts
from deviceplugin.node import NodeFacts, read_node
from gpushare.errors import WireError
from gpushare.model.gpu import HandOver

KUBELET = "v1.36.2"


def facts(runtime: str = "containerd://2.1.9", kubelet: str = KUBELET, label: str = "", **fields: Any) -> Facts:
    given: dict[str, Any] = {"directory": "/var/run/cdi", "writable": True, "nvidia_specs": True} | fields
    return Facts(node=NodeFacts(runtime=runtime, kubelet=kubelet, label=label), **given)


DOES_NOT = "does not inject CDI devices; containerd does from 2.0 on, CRI-O from 1.28"
UNKNOWN = "is not known to inject CDI devices; if it does, label the node gpushare.dev/hand-over=cdi"
NO_DIRECTORY = "/var/run/cdi is not mounted into the device plugin, not writable, or was removed since its pod started"
LABEL = "the node's label gpushare.dev/hand-over"
ENVVAR = "label the node gpushare.dev/hand-over=envvar"


@pytest.mark.parametrize(
    ("found", "way", "reason"),
    [
        (facts("containerd://2.0.0"), "cdi", "containerd 2.0.0 injects CDI devices"),
        (facts("containerd://2.1.9-k3s1"), "cdi", "containerd 2.1.9-k3s1 injects CDI devices"),
        (facts("cri-o://1.28.0"), "cdi", "cri-o 1.28.0 injects CDI devices"),
        (facts("", ""), "cdi", "the Node was not read yet; a container runtime without CDI ignores CDI devices"),
        (facts(nvidia_specs=False, simulated=True), "cdi", "containerd 2.1.9 injects CDI devices"),
        (
            facts("containerd://1.7.24"),
            "envvar",
            "containerd 1.7.24 injects CDI devices only with enable_cdi = true in its configuration; if it has that,"
            " label the node gpushare.dev/hand-over=cdi",
        ),
        (facts("containerd://1.6.20~ds1"), "envvar", f"containerd 1.6.20~ds1 {DOES_NOT}"),
        (facts("cri-o://1.27.4"), "envvar", f"cri-o 1.27.4 {DOES_NOT}"),
        (facts("docker://24.0.7"), "envvar", f"docker 24.0.7 {UNKNOWN}"),
        (facts("containerd://"), "envvar", f"containerd {UNKNOWN}"),
        (facts(writable=False), "envvar", NO_DIRECTORY),
        (
            facts(nvidia_specs=False),
            "envvar",
            "the node has no CDI spec of NVIDIA's; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml or the GPU"
            " Operator writes one",
        ),
        (facts(label="envvar"), "envvar", f"{LABEL} says so"),
        (facts("containerd://1.7.24", label="cdi"), "cdi", f"{LABEL} says so"),
        (facts(setting="cdi", label="volume-mounts"), "volume-mounts", f"{LABEL} says so"),
        (facts(setting="volume-mounts"), "volume-mounts", "the setting --hand-over=volume-mounts says so"),
        (
            facts("containerd://1.6.0", setting="cdi"),
            "cdi",
            f"the setting --hand-over=cdi demands CDI, but containerd 1.6.0 {DOES_NOT}; {ENVVAR}",
        ),
        (facts(writable=False, label="cdi"), "cdi", f"{LABEL} demands CDI, but {NO_DIRECTORY}; {ENVVAR}"),
        (facts(setting="envvar", label="auto"), "envvar", "the setting --hand-over=envvar says so"),
        (
            facts(label="CDI"),
            "cdi",
            f"containerd 2.1.9 injects CDI devices; {LABEL}=CDI is none of auto, cdi, envvar, volume-mounts",
        ),
    ],
)
def test_the_way_and_its_reason(found: Facts, way: str, reason: str) -> None:
    chosen = choice.choose(found)
    assert (chosen.way, chosen.reason) == (HandOver(way), reason)


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
    assert (bool(demanded.impossible), bool(free.impossible)) == (never, False)
    assert bool(free.never_injects) is never
    unwritable = choice.choose(facts(label="cdi", writable=False))
    assert unwritable.impossible == unwritable.reason
    assert unwritable.never_injects == ""  # it may be writable again


@pytest.mark.parametrize(
    ("kubelet", "told"),
    [
        ("v1.36.2", (True, False)),
        ("v1.29.0-eks-1", (True, False)),
        ("v1.28.15", (False, True)),
        ("v1.20.2", (False, True)),
        ("", (True, True)),
        ("unknown", (True, True)),
    ],
)
def test_older_kubelets_are_told_by_an_annotation(kubelet: str, told: tuple[bool, bool]) -> None:
    chosen = choice.choose(facts(kubelet=kubelet))
    assert (chosen.by_field, chosen.by_annotation) == told


@pytest.mark.parametrize(
    ("label", "setting", "expected"),
    [("", True, True), ("", False, False), ("false", True, False), ("true", False, True)],
)
def test_the_default_runtime_by_label_and_setting(label: str, setting: bool, expected: bool) -> None:
    found = Facts(node=NodeFacts(default_label=label), nvidia_default=setting, writable=True)
    assert choice.choose(found).nvidia_default is expected


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
