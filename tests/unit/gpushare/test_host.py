"""CPU and memory of hosts, as kube-scheduler counts them."""

from typing import Any

import pytest

from gpushare.errors import WireError
from gpushare.model.room import HostRoom
from gpushare.wire import host
from testing.builders import Json, make_container, make_node, make_pod


def container(name: str = "main", **requests: object) -> Json:
    return make_container(name, resources={"requests": requests})


@pytest.mark.parametrize(
    ("cpu", "memory", "found"),
    [
        ("4", "16Gi", HostRoom(4000, 16384)),
        ("3920m", "15990124Ki", HostRoom(3920, 15615)),
        (96, "412316860416", HostRoom(96000, 393216)),
        ("0.1", "1.5Gi", HostRoom(100, 1536)),
        ("-1", "-1Gi", HostRoom(0, 0)),
        ("many", "16Gi", None),
        ("1e30", "16Gi", None),
        (None, "16Gi", None),
    ],
)
def test_what_a_node_gives_to_pods(cpu: object, memory: object, found: HostRoom | None) -> None:
    given: dict[str, Any] = {"memory": memory} if cpu is None else {"cpu": cpu, "memory": memory}
    assert host.allocatable({**make_node(), "status": {"allocatable": given}}) == found


def test_containers_add_up_and_are_rounded_up() -> None:
    pod = make_pod(container(cpu="1500u", memory="1"), container("side", cpu="500m", memory="1Gi"))
    assert host.requested(pod) == HostRoom(2 + 500, 1 + 1024)


def test_an_init_container_counts_by_maximum_with_the_sidecars_before_it() -> None:
    sidecar = {**container("proxy", cpu="200m", memory="64Mi"), "restartPolicy": "Always"}
    pod = make_pod(container(cpu="1", memory="1Gi"), init=[sidecar, container("load", cpu="4", memory="512Mi")])
    assert host.requested(pod) == HostRoom(4200, 1088)


def test_a_limit_counts_where_there_is_no_request() -> None:
    both = {"limits": {"cpu": "4", "memory": "4Gi"}, "requests": {"cpu": "1"}}
    assert host.requested(make_pod(make_container(resources=both))) == HostRoom(1000, 4096)


def test_requests_of_the_whole_pod_count_instead_of_the_containers() -> None:
    pod = make_pod(container(cpu="1", memory="1Gi"))
    pod["spec"]["resources"] = {"requests": {"cpu": "6"}}
    assert host.requested(pod) == HostRoom(6000, 1024)


def test_a_runtimes_overhead_is_added() -> None:
    pod = make_pod(container(cpu="1", memory="1Gi"))
    pod["spec"]["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    assert host.requested(pod) == HostRoom(1250, 1144)


def test_a_pod_that_asks_for_nothing_takes_nothing() -> None:
    assert host.requested(make_pod(make_container())) == HostRoom(0, 0)


def test_an_amount_that_is_none_is_named() -> None:
    with pytest.raises(
        WireError, match=r"spec\.containers\[0\]\.resources\.cpu: expected an amount such as 500m or 2Gi"
    ):
        host.requested(make_pod(container(cpu="fast")))


def test_a_long_amount_is_read_and_not_remembered() -> None:
    """The API server admits none, but the extender reads what anyone sends."""
    before = host._known_ceiling.cache_info()
    assert host.requested(make_pod(container(cpu="1" + " " * 1000))) == HostRoom(1000, 0)
    assert host._known_ceiling.cache_info() == before


def test_what_pods_leave_is_never_less_than_nothing() -> None:
    assert host.left(HostRoom(4000, 4096), [HostRoom(1000, 1024), HostRoom(500, 4096)]) == HostRoom(2500, 0)
