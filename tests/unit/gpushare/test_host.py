"""CPU and memory of hosts, as kube-scheduler counts them."""

from typing import Any

import pytest

from gpushare.model.capacity import FreeHost
from gpushare.wire import pods
from testing.builders import Json, make_container, make_node, make_pod


def container(name: str = "main", **requests: object) -> Json:
    return make_container(name, resources={"requests": requests})


@pytest.mark.parametrize(
    ("cpu", "memory", "found"),
    [
        *(("4", "16Gi", FreeHost(4000, 16384)), ("3920m", "15990124Ki", FreeHost(3920, 15615))),
        *((96, "412316860416", FreeHost(96000, 393216)), ("0.1", "1.5Gi", FreeHost(100, 1536))),
        *(("-1", "-1Gi", FreeHost(0, 0)), ("many", "16Gi", None), ("1e30", "16Gi", None), (None, "16Gi", None)),
    ],
)
def test_what_a_node_gives_to_pods(cpu: object, memory: object, found: FreeHost | None) -> None:
    given: dict[str, Any] = {"memory": memory} if cpu is None else {"cpu": cpu, "memory": memory}
    assert pods.allocatable({**make_node(), "status": {"allocatable": given}}) == found


def test_containers_add_up_and_init_containers_count_by_maximum_with_the_sidecars_before_them() -> None:
    pod = make_pod(container(cpu="1500u", memory="1"), container("side", cpu="500m", memory="1Gi"))
    assert pods.host_requests(pod) == FreeHost(2 + 500, 1 + 1024)
    sidecar = {**container("proxy", cpu="200m", memory="64Mi"), "restartPolicy": "Always"}
    pod = make_pod(container(cpu="1", memory="1Gi"), init=[sidecar, container("load", cpu="4", memory="512Mi")])
    assert pods.host_requests(pod) == FreeHost(4200, 1088)


def test_limits_requests_of_the_whole_pod_and_overhead_count_where_they_are() -> None:
    both = {"limits": {"cpu": "4", "memory": "4Gi"}, "requests": {"cpu": "1"}}
    assert pods.host_requests(make_pod(make_container(resources=both))) == FreeHost(1000, 4096)
    pod = make_pod(container(cpu="1", memory="1Gi"))
    pod["spec"]["resources"] = {"requests": {"cpu": "6"}}
    assert pods.host_requests(pod) == FreeHost(6000, 1024)
    pod = make_pod(container(cpu="1", memory="1Gi"))
    pod["spec"]["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    assert pods.host_requests(pod) == FreeHost(1250, 1144)
    assert pods.host_requests(make_pod(make_container())) == FreeHost(0, 0)
    assert pods.host_requests({"spec": {"containers": []}}) == FreeHost(0, 0)


INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {**INFEASIBLE, "reason": "Deferred"}
IN_PROGRESS = {"type": "PodResizeInProgress", "status": "True", "reason": ""}


def running(requests: Json, name: str = "main", allocated: Json | None = None) -> Json:
    """As the kubelet tells of a container."""
    told = {"name": name, "resources": {"requests": requests}}
    return told if allocated is None else {**told, "allocatedResources": allocated}


def resized(asks: Json, has: Json, *conditions: Json, **status: object) -> Json:
    """A pod with one container that was resized while it ran."""
    return make_pod(asks) | {"status": {"containerStatuses": [has], "conditions": list(conditions), **status}}


LARGE, SMALL = {"cpu": "8", "memory": "8Gi"}, {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("asks", "has", "conditions", "status", "counts"),
    [
        pytest.param(LARGE, running(SMALL), [INFEASIBLE], {}, SMALL, id="never done, 1.33 and newer"),
        pytest.param(LARGE, running(SMALL), [], {"resize": "Infeasible"}, SMALL, id="never done, 1.32"),
        pytest.param(LARGE, running({}, allocated=SMALL), [], {"resize": "Infeasible"}, SMALL, id="never done, 1.27"),
        pytest.param(LARGE, running(SMALL), [DEFERRED], {}, LARGE, id="later"),
        pytest.param(LARGE, running(SMALL), [], {"resize": "Deferred"}, LARGE, id="later, 1.32"),
        pytest.param(LARGE, running(SMALL), [IN_PROGRESS], {}, LARGE, id="not yet in force"),
        pytest.param(SMALL, running(LARGE), [IN_PROGRESS], {}, LARGE, id="still in force"),
        pytest.param(SMALL, running(SMALL, allocated=LARGE), [], {}, LARGE, id="still allocated"),
        pytest.param(LARGE, running(SMALL, allocated=LARGE), [INFEASIBLE], {}, LARGE, id="never done, allocated"),
        pytest.param(LARGE, {"name": "main"}, [INFEASIBLE], {}, LARGE, id="not told what is in force"),
        pytest.param(LARGE, running(SMALL, "other"), [INFEASIBLE], {}, LARGE, id="another container"),
        pytest.param(
            LARGE, running({}), [INFEASIBLE], {}, {"cpu": "0", "memory": "0"}, id="never done, nothing before"
        ),
        pytest.param(SMALL, running(SMALL), [INFEASIBLE], {"resize": "Deferred"}, SMALL, id="both ways of telling"),
    ],
)
def test_a_resize_in_place_counts_as_kube_scheduler_has_it(
    asks: Json, has: Json, conditions: list[Json], status: Json, counts: Json
) -> None:
    found = pods.host_requests(resized(container(**asks), has, *conditions, **status))
    assert found == pods.host_requests(make_pod(container(**counts)))


def test_a_resized_sidecar_counts_and_an_init_container_does_not() -> None:
    sidecar = {**container("proxy", **LARGE), "restartPolicy": "Always"}
    pod = make_pod(container(**SMALL), init=[sidecar, container("load", **SMALL)])
    told = [running(SMALL, "proxy"), running(LARGE, "load")]
    pod["status"] = {"initContainerStatuses": told, "conditions": [INFEASIBLE]}
    assert pods.host_requests(pod) == FreeHost(2000, 2048)


def test_a_resize_of_the_whole_pod_counts_alike() -> None:
    pod = make_pod(container(cpu="1", memory="1Gi"))
    pod["spec"]["resources"] = {"requests": {"cpu": "6"}}
    told = {"resources": {"requests": {"cpu": "2", "memory": "9Gi"}}, "allocatedResources": {"cpu": "1500m"}}
    for condition, counts in ((INFEASIBLE, 2000), (DEFERRED, 6000)):
        pod["status"] = {"conditions": [condition], **told}
        assert pods.host_requests(pod) == FreeHost(counts, 1024)


@pytest.mark.parametrize(
    "pod",
    [
        resized(container(**SMALL), {"name": ["main"], "resources": {}}),
        resized(container(**SMALL), running({"cpu": "fast"})),
        resized(container(**SMALL), running({}, allocated={"cpu": "fast"})),
        make_pod(container(cpu="fast", memory="1Gi")),
        make_pod(container(cpu=True, memory="1Gi")),
        {"spec": {"resources": 3}},
        *({"spec": {"overhead": {key: "much"}}} for key in ("cpu", "memory")),
    ],
)
def test_of_a_pod_that_cannot_be_read_nothing_counts(pod: Json) -> None:
    assert pods.host_requests(pod) == FreeHost(0, 0)


def test_a_long_amount_is_read_and_not_remembered() -> None:
    """The API server admits none, but the extender reads what anyone sends."""
    before = pods._known_ceiling.cache_info()
    assert pods.host_requests(make_pod(container(cpu="1" + " " * 1000))) == FreeHost(1000, 0)
    assert pods._known_ceiling.cache_info() == before
    assert FreeHost(4000, 4096).left_by([FreeHost(1000, 1024), FreeHost(500, 4096)]) == FreeHost(2500, 0)
