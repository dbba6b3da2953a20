"""Messages and reasons that users meet are on the pages that say what to do."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpushare import names
from gpushare.errors import InvalidRequestError
from gpushare.identity import NodeName
from gpushare.model.ledger import Placed
from gpushare_cli.simulate import plan
from gpushare_cli.world import NodeAnswer
from testing import pages
from testing.builders import make_container, make_inventory, make_node, make_pod
from testing.cli.simulating import manifest, simulate
from testing.reviews import (
    ALL,
    CONTROLLER,
    DEVICES,
    RULES,
    Json,
    admitted,
    asking,
    container,
    encoded,
    pod,
    refused,
    review,
)
from webhook import review as reviews, validation

ELSEWHERE = (
    "the object is too large",  # what depends on the server's state, not on the pod
    "gpushare-webhook is busy",
    "failed calling webhook",
    "it is not known yet",
    "... ValidatingAdmissionPolicy ",
    "a new pod must not choose devices",
    "... choose devices past the scheduler; remove them",
    "mounts ... choose devices past the scheduler; remove them",
)
"""Patterns of rows whose messages are the API server's, its policies', or of a webhook that cannot answer."""


def patterns(section: str) -> list[str]:
    """The messages in the first column of a section's table; three dots stand for anything."""
    rows = pages.section("docs/troubleshoot.md", f"## {section}").splitlines()
    cells = [row.split(" | ")[0] for row in rows if row.startswith("| `")]
    return [found for cell in cells for found in re.findall(r"`([^`]+)`", cell) if not found.startswith(ELSEWHERE)]


def matches(pattern: str, message: str) -> bool:
    return re.search(".*".join(map(re.escape, pattern.split("..."))), message) is not None


def annotated(key: str, value: str, *containers: Json) -> Json:
    return pod(*(containers or (asking(mem=4),)), annotations={key: value})


NEW: list[Json] = [
    *(pod(asking(mem=amount)) for amount in (0, "-1", "1500m", "1.5", "x", "3Gi", 1000000001)),
    pod(asking(mem=3, requests={"mem": 2})),
    pod(asking(requests={"mem": 2})),
    pod(asking(mem=1, count=2)),
    pod(asking(mem=5), labels={names.LABEL_GPU_COUNT: "2"}),
    pod(asking(mem=4), labels={names.LABEL_GPU_COUNT: "2"}, annotations={names.ANNOTATION_GPUS: "2"}),
    annotated(names.ANNOTATION_GPUS, "two"),
    annotated(names.ANNOTATION_GPUS, "65"),
    annotated(names.ANNOTATION_GPUS, "4", asking(mem=1000000000)),
    annotated(names.ANNOTATION_GPUS, "2", asking(percent=20)),
    annotated(names.ANNOTATION_POLICY, "best"),
    annotated(names.ANNOTATION_MODEL, "?"),
    annotated(names.ANNOTATION_LIMIT, "cgroup"),
    annotated(names.ANNOTATION_MIG, "1g.10gb"),
    pod(asking(percent=101)),
    pod(asking(mem=1, percent=20)),
    pod(asking(core=20)),
    pod(*(asking(f"c{number}", mem=1) for number in range(65))),
    pod(*(container(f"c{number}") for number in range(513))),
    annotated("gpushare.dev/gpu-modle", "T4"),
    pod(asking(mem=1), labels={"gpushare.dev/modle": "x"}),
    annotated(names.LABEL_GPU_COUNT, "2"),
    pod(asking(mem=1), labels={names.ANNOTATION_GPUS: "2"}),
    pod(asking(mem=1), nodeName="node-a"),
    pod(container(resources={"limits": {"nvidia.com/gpu": 1}}), nodeName="node-a"),
    pod(container(resources={"limits": {"nvidia.com/gpu": 2**63 - 1}})),
    pod(container(resources={"limits": {"aliyun.com/gpu-memory": "1"}})),
    pod(asking(mem=1), schedulerName="volcano"),
    pod(container(volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}])),
    *(pod(asking(mem=1), volumes=[{"name": "v", "hostPath": {"path": path}}]) for path in ("/", "/etc/cdi")),
    annotated("cdi.k8s.io/x", "nvidia.com/gpu=all"),
    annotated(f"{DEVICES}a", "GPU-1"),
    pod({**asking(mem=1), "env": [ALL]}),
    pod({**asking(mem=1), "securityContext": {"privileged": True}}),
    pod({"name": "a", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": 1, "nvidia.com/gpu": 1}}}),
]


def told_of_new_pods() -> Iterator[str]:
    for value in NEW:
        try:
            yield from admitted(value).warnings
        except InvalidRequestError as error:
            yield from map(str, error.errors)


def told_of_changes() -> Iterator[str]:
    before, forged = pod(asking(mem=1), labels={names.LABEL_MANAGED: "true"}), annotated(f"{DEVICES}a", "GPU-1")
    yield from told_of(forged)
    yield from told_of({"metadata": forged["metadata"]}, resource="pods/binding")
    yield from told_of({"metadata": {"labels": {names.LABEL_GPU_COUNT: "2"}}}, resource="pods/binding")
    for after in (
        forged,
        annotated("cdi.k8s.io/x", "nvidia.com/gpu=all"),
        annotated(names.ANNOTATION_OVERRIDDEN, "a", asking(mem=1)),
        annotated(names.ANNOTATION_GPUS, "2", asking(mem=1)),
    ):
        yield from told_of(after, old=before, operation="UPDATE")


def told_of(value: object, **request: Any) -> Iterator[str]:
    body = reviews.parse(encoded(review(value, **request)))
    yield from map(str, refused(lambda: validation.validate(body, CONTROLLER, RULES.resource_config)))


NEW_MESSAGES, CHANGE_MESSAGES = list(told_of_new_pods()), list(told_of_changes())
SECTIONS = {"The pod is refused when it is created": NEW_MESSAGES, "A change of a pod is refused": CHANGE_MESSAGES}


@pytest.mark.parametrize(
    ("section", "message"), [(section, message) for section, messages in SECTIONS.items() for message in messages]
)
def test_every_message_is_explained(section: str, message: str) -> None:
    assert any(matches(pattern, message) for pattern in patterns(section))


@pytest.mark.parametrize(
    ("section", "pattern"), [(section, pattern) for section in SECTIONS for pattern in patterns(section)]
)
def test_every_message_that_is_explained_is_said(section: str, pattern: str) -> None:
    assert any(matches(pattern, message) for message in SECTIONS[section])


SECTION = pages.section("docs/reference/cli.md", "### What keeps pods away")
ROWS = [line.split(" | ") for line in SECTION.splitlines() if line.startswith("| `")]
TOLD = [name for cells in ROWS for name in re.findall(r"`([^`]+)`", cells[0])]
PLACEHOLDERS = {"KEY": "[^=]+", "VALUE": ".+", "RESOURCE": ".+/.+", r"\.\.\.": ".+"}
"""In the rows -> what they stand for; a row may end in dots."""


def node(**status: str) -> Json:
    made = make_node(make_inventory(15, node="node-a"))
    made["status"]["allocatable"] |= {"cpu": "4", "memory": "8Gi", "pods": "110"} | status
    return made


def tainted(value: str) -> Json:
    return {**node(), "spec": {"taints": [{"key": "team", "value": value, "effect": "NoSchedule"}]}}


def simulated_pod(name: str = "x", gpu_mem: int = 3, spec: Mapping[str, Any] | None = None, **requests: str) -> Json:
    resources = {"limits": {names.GPU_MEM: gpu_mem}, "requests": requests}
    made = make_pod(make_container(resources=resources), name=name)
    made["spec"] |= spec or {}
    return manifest(made)


NODES: Json = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
TERM: Json = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
PODS: Json = {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
NODE_AFFINITY, POD_AFFINITY = {"affinity": {"nodeAffinity": NODES}}, {"affinity": {"podAffinity": PODS}}
BESIDE_GPUS = {
    "Insufficient cpu": (node(), simulated_pod(cpu="5")),
    "Insufficient memory": (node(), simulated_pod(memory="9Gi")),
    "Insufficient aliyun.com/gpu-mem": (node(**{names.GPU_MEM: "2"}), simulated_pod()),
    "Too many pods": (node(pods="1"), simulated_pod(), simulated_pod(name="y")),
    "cordoned (spec.unschedulable)": ({**node(), "spec": {"unschedulable": True}}, simulated_pod()),
    "taint team=ml": (tainted("ml"), simulated_pod()),
    "taint team": (tainted(""), simulated_pod()),
    "spec.nodeSelector wants disk=ssd, the node has no such label": (
        node(),
        simulated_pod(spec={"nodeSelector": {"disk": "ssd"}}),
    ),
    "no term of the required node affinity matches": (node(), simulated_pod(spec=NODE_AFFINITY)),
    "pod affinity or topology spread, its own or that of pods there, keeps it away": (
        node(),
        simulated_pod(spec=POD_AFFINITY),
    ),
    "RefusedByWebhook": (node(), simulated_pod(gpu_mem=-1)),
    "NotReady": (node(), simulated_pod(spec={"schedulingGates": [{"name": "quota"}]})),
}


def is_told(reason: str) -> bool:
    """Whether a row means it."""
    meant = "\n".join(map(re.escape, TOLD))
    for placeholder, pattern in PLACEHOLDERS.items():
        meant = meant.replace(placeholder, pattern)
    return any(re.fullmatch(pattern, reason) for pattern in meant.splitlines())


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
    left = pages.section("docs/reference/cli.md", "### Which GPUs are left")
    found = simulate(node(), simulated_pod(), summary=True)
    [header] = [line for line in found.out.splitlines() if line.startswith("MODEL")]
    assert [name for name in re.split(r" {2,}", header)[3:] if f"| `{name}` |" not in left] == []
    [gpus] = simulate(node(), simulated_pod(), as_json=True).value["summary"]["gpus"]
    assert [field for field in gpus if field != "model" and f"`{field}`" not in left] == []
