"""Objects that no author should send: containers without a name, ephemeral containers, odd resources."""

import pytest

from testing.reviews import ALL, VOID, Json, asking, container, debugged, pod, review
from tests.unit.webhook.conftest import Webhook

EXPLAIN = "see kubectl explain pod.spec"
EPHEMERAL = "spec.ephemeralContainers"


EPHEMERALS: list[tuple[Json, str]] = [
    (
        pod(container("a"), ephemeralContainers="debug"),
        f"{EPHEMERAL}: expected a list, found a string; {EXPLAIN}.ephemeralContainers",
    ),
    (debugged("debug"), f"{EPHEMERAL}[0]: expected an object, found a string; {EXPLAIN}.ephemeralContainers"),
    (debugged({}), f"{EPHEMERAL}[0].name: expected a string, found nothing; {EXPLAIN}.ephemeralContainers.name"),
    (
        debugged({"name": ""}),
        f"{EPHEMERAL}[0].name: expected a string, found nothing; {EXPLAIN}.ephemeralContainers.name",
    ),
    (
        debugged({"name": 7}),
        f"{EPHEMERAL}[0].name: expected a string, found a number; {EXPLAIN}.ephemeralContainers.name",
    ),
    (
        debugged(container("d", env="all")),
        f"{EPHEMERAL}[0].env: expected a list, found a string; {EXPLAIN}.ephemeralContainers.env",
    ),
    (
        debugged(container("d"), container("e", env=["X=1"])),
        f"{EPHEMERAL}[1].env[0]: expected an object, found a string; {EXPLAIN}.ephemeralContainers.env",
    ),
    (
        debugged(container("d", resources=[])),
        f"{EPHEMERAL}[0].resources: expected an object, found a list; {EXPLAIN}.ephemeralContainers.resources",
    ),
    (
        debugged(*[container(f"d{i}") for i in range(513)]),
        f"{EPHEMERAL}: 513 containers are more than any node runs; write at most 512",
    ),
]


@pytest.mark.parametrize("path", ["/mutate", "/isolate"])
@pytest.mark.parametrize(("obj", "message"), EPHEMERALS)
def test_ephemeral_containers_that_cannot_be_read_are_refused(
    webhook: Webhook, path: str, obj: Json, message: str
) -> None:
    body = review(obj, old=debugged(), operation="UPDATE", resource="pods/ephemeralcontainers")
    webhook.refuses(path, body, message)


@pytest.mark.parametrize("asked", [{"mem": 3}, {"percent": 101}, {"gpu": "x"}, {"core": 1}])
def test_an_ephemeral_container_gets_no_gpu_whatever_it_asks_for(whole: Webhook, asked: dict[str, object]) -> None:
    """The API server refuses its resources itself."""
    debug = {**asking("d", **asked), "env": [ALL]}
    body = review(debugged(debug), old=debugged(), operation="UPDATE", resource="pods/ephemeralcontainers")
    [admitted] = whole.admit("/mutate", body)["spec"]["ephemeralContainers"]
    assert admitted == {**debug, "env": [VOID]}


NAMELESS = f"expected a string, found nothing; {EXPLAIN}.containers.name"
OBJECTS: list[tuple[Json, str]] = [
    (pod(asking("", mem=3)), f"spec.containers[0].name: {NAMELESS}"),
    (pod(asking("", percent=3)), f"spec.containers[0].name: {NAMELESS}"),
    (pod(asking("", gpu=3)), f"spec.containers[0].name: {NAMELESS}"),
    (
        pod(container("a"), container("b", resources={"limits": ["nano-gpu/gpu-percent"]})),
        f"spec.containers[1].resources.limits: expected an object, found a list; {EXPLAIN}.containers.resources.limits",
    ),
    (
        pod(container("a", resources={"limits": {}, "requests": "nvidia.com/gpu=1"})),
        "spec.containers[0].resources.requests: expected an object, found a string;"
        f" {EXPLAIN}.containers.resources.requests",
    ),
    (
        pod(asking(percent=20), runtimeClassName=["nvidia"]),
        f"spec.runtimeClassName: expected a string, found a list; {EXPLAIN}.runtimeClassName",
    ),
    (
        pod(asking(percent=20), schedulerName=1, nodeName={}),
        f"spec.nodeName: expected a string, found an object; {EXPLAIN}.nodeName"
        f" | spec.schedulerName: expected a string, found a number; {EXPLAIN}.schedulerName",
    ),
    (
        pod(container("a", securityContext="privileged"), asking("b", gpu=1)),
        f"spec.containers[0].securityContext: expected an object, found a string; {EXPLAIN}.containers.securityContext",
    ),
]


@pytest.mark.parametrize("asked", [{"mem": 1}, {"percent": 1}, {"gpu": 1}, {"mem": 1, "core": 1}])
@pytest.mark.parametrize("init", [0, 1, 40])
def test_at_most_64_containers_of_a_pod_ask_for_gpus(whole: Webhook, asked: dict[str, object], init: int) -> None:
    def of(count: int) -> Json:
        askers = [asking(f"c{i}", **asked) for i in range(count)]
        return pod(*askers[init:], container("other"), init=[container("first"), *askers[:init]])

    for path in ("/mutate", "/isolate"):
        whole.admit(path, review(of(64)))
        whole.refuses(path, review(of(65)), "spec: 65 containers ask for GPUs; let at most 64 of a pod ask")


@pytest.mark.parametrize("path", ["/mutate", "/isolate"])
@pytest.mark.parametrize(("obj", "message"), OBJECTS)
def test_objects_that_cannot_be_read_are_refused(whole: Webhook, path: str, obj: Json, message: str) -> None:
    whole.refuses(path, review(obj), message)
