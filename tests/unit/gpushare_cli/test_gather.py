"""What is asked of the API server."""

import pytest

from gpushare.kube import api as kube
from gpushare_cli import gather
from testing.fakes.kube import FakeKube
from tests.unit.gpushare_cli.clusters import (
    CONFIG_MAPS,
    ack_pod,
    aliyun_node,
    aliyun_pod,
    api_of,
    our_pod,
    pod,
    unhealthy_gpus,
)


def plain(name: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
    }


def asked(api: FakeKube) -> list[str]:
    return [call.path for call in api.calls]


def test_lists_are_read_page_by_page_and_of_pods_only_the_bound_ones() -> None:
    api = api_of([aliyun_node(f"n{i}") for i in range(1001)], [aliyun_pod(f"p{i}", gpu=0, mem=1) for i in range(501)])
    cluster = gather.gather(api)
    assert (len(cluster.nodes), len(cluster.pods)) == (1001, 501)
    assert asked(api) == ["/api/v1/nodes"] * 3 + ["/api/v1/pods"] * 2 + [CONFIG_MAPS]
    assert {call.params["limit"] for call in api.calls} == {"500"}
    assert {call.params.get("fieldSelector") for call in api.calls if "pods" in call.path} == {"spec.nodeName!="}


def test_one_node_needs_no_list_of_nodes() -> None:
    api = api_of([aliyun_node("a"), aliyun_node("b")], [pod("x", on="a"), pod("y", on="b")])
    cluster = gather.gather(api, "b")
    assert asked(api) == ["/api/v1/nodes/b", "/api/v1/pods", CONFIG_MAPS]
    assert [found["metadata"]["name"] for found in cluster.pods] == ["y"]


def test_pods_that_neither_ask_nor_hold_are_dropped() -> None:
    no_limit = our_pod("ours", "GPU-1", mib=1024)
    no_limit["spec"]["containers"] = [{"name": "main"}]
    ack = ack_pod("ack", '{"0":{"0":1}}', mem=1)
    ack["spec"]["containers"] = [{"name": "main"}]
    cluster = gather.gather(api_of([], [plain("web"), pod("gpu"), no_limit, ack]))
    assert [found["metadata"]["name"] for found in cluster.pods] == ["ack", "gpu", "ours"]


def test_an_expired_list_is_read_again() -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda _: True, kube.GoneError("too old"), times=2)
    assert len(gather.gather(api).nodes) == 1


def test_a_list_that_expires_every_time_is_given_up() -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda _: True, kube.GoneError("too old"), times=3)
    with pytest.raises(kube.GoneError):
        gather.gather(api)


def test_config_maps_of_unhealthy_gpus_are_read_by_node() -> None:
    maps = [
        unhealthy_gpus("node-a", "0, 2"),
        unhealthy_gpus("node-b", ""),
        {"metadata": {"name": "kube-root-ca.crt", "namespace": "kube-system"}},
    ]
    cluster = gather.gather(api_of([aliyun_node()], [], maps))
    assert cluster.unhealthy == {"node-a": frozenset({0, 2}), "node-b": frozenset()}
    assert cluster.notes == ()


def test_config_maps_that_may_not_be_read_become_a_note() -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda call: call.path == CONFIG_MAPS, kube.ForbiddenError("configmaps is forbidden"))
    cluster = gather.gather(api)
    assert cluster.unhealthy == {}
    assert cluster.notes == (
        "ConfigMaps unhealthy-gpu-* in kube-system cannot be read (configmaps is forbidden);"
        " GPUs that they name are taken for healthy",
    )


def test_everything_includes_pods_that_wait() -> None:
    waiting = pod("waiting")
    del waiting["spec"]["nodeName"]
    assert [found["metadata"]["name"] for found in gather.everything(api_of([], [waiting, plain("web")])).pods] == [
        "waiting"
    ]
