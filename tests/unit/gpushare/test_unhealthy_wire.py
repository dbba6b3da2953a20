"""Aliyun's ConfigMaps of unhealthy GPUs: what they say, and what cannot be read."""

import pytest

from gpushare.cluster import node_records
from gpushare.cluster.node_records import Marked
from gpushare.errors import WireError
from gpushare.identity import NodeName
from testing.builders import Json

A, B = NodeName("node-a"), NodeName("node-b")


def config_map(name: str, gpus: object, namespace: str = "kube-system") -> Json:
    return {"metadata": {"name": name, "namespace": namespace}, "data": {"gpus": gpus}}


@pytest.mark.parametrize(
    ("value", "expected", "problem"),
    [
        *(("0", {0}, ""), ("0,2", {0, 2}, ""), (" 0 , 2 ,", {0, 2}, ""), ("", set(), ""), ("  ", set(), "")),
        *((",,", set(), ""), (None, set(), ""), ("1,x", {1}, "gpus: no numbers of GPUs: 'x'")),
        ("-1", set(), "gpus: no numbers of GPUs: '-1'"),
        ("1.5,1", {1}, "gpus: no numbers of GPUs: '1.5'"),
        ("99999", set(), "gpus: no numbers of GPUs: '99999'"),
        ("٣,1", {1}, "gpus: no numbers of GPUs: '٣'"),
        ("a,b,c,d,e,f", set(), "gpus: no numbers of GPUs: 'a', 'b', 'c', 'd', 'e'"),
    ],
)
def test_numbers_are_read_and_all_else_is_named(value: object, expected: set[int], problem: str) -> None:
    found = node_records.read_unhealthy({"metadata": {"name": "unhealthy-gpu-node-a"}, "data": {"gpus": value}})
    assert found == Marked(A, frozenset(expected), problem)


def test_a_config_map_without_the_key_means_none_and_others_are_none_of_them() -> None:
    for data in [None, {}, {"other": "0"}]:
        assert node_records.read_unhealthy({"metadata": {"name": "unhealthy-gpu-node-a"}, "data": data}) == Marked(A)
    for name in ["kube-root-ca.crt", "unhealthy-gpu-", "my-unhealthy-gpu-node-a", ""]:
        assert node_records.read_unhealthy({"metadata": {"name": name}, "data": {"gpus": "0"}}) is None


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"metadata": {"name": 3}}, "metadata.name: expected a string, found a number"),
        (config_map("unhealthy-gpu-a", 7), "ConfigMap unhealthy-gpu-a.data.gpus: expected a string, found a number"),
    ],
)
def test_what_is_no_config_map_is_an_error(obj: Json, message: str) -> None:
    with pytest.raises(WireError) as caught:
        node_records.read_unhealthy(obj)
    assert str(caught.value) == message


def test_they_are_known_by_their_names_and_namespace() -> None:
    for namespace, name, expected in [
        ("kube-system", "unhealthy-gpu-node-a", True),
        ("kube-system", "unhealthy-gpu-", False),
        ("kube-system", "my-unhealthy-gpu-node-a", False),
        ("default", "unhealthy-gpu-node-a", False),
    ]:
        assert node_records.is_unhealthy_list(namespace, name) is expected
    maps = [
        config_map("unhealthy-gpu-node-a", "0,1"),
        config_map("unhealthy-gpu-node-b", ""),
        config_map("unhealthy-gpu-node-c", "0", namespace="default"),
        config_map("kube-root-ca.crt", "0"),
    ]
    assert node_records.unhealthy_by_node(maps) == {A: frozenset({0, 1}), B: frozenset()}
