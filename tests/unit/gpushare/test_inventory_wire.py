"""A node's GPUs on the wire: its inventory, and Aliyun's ConfigMaps of unhealthy ones."""

import json
import re
from dataclasses import replace

import pytest

from gpushare.cluster import node_records
from gpushare.cluster.node_records import Marked
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.model.gpu import GpuHealth, HandOver, LeftOut, Limit, MigInstance, Mode
from gpushare.wire import inventory
from testing.builders import Json, make_inventory, make_node

NODE = NodeName("node-a")
COUNT = "expected a whole number, 0 or more, found"
WHAT = "annotation gpushare.dev/inventory of node node-a"


def test_the_annotation_has_the_promised_fields_in_the_order_of_indices() -> None:
    text = (
        '{"version":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-0","index":0,"model":"Tesla T4","memoryMiB":15360,'
        '"numa":null,"health":"Healthy"}]}'
    )
    assert inventory.encode(make_inventory(15)) == text
    assert inventory.of_node(make_node()) is None
    assert inventory.of_node(make_node(make_inventory(15))) == make_inventory(15)
    both = make_inventory(15, 23)
    shuffled = replace(both, gpus=both.gpus[::-1])
    assert inventory.decode(inventory.encode(shuffled), NODE) == both


def test_words_of_a_later_version_promise_nothing_and_its_fields_are_no_hindrance() -> None:
    text = inventory.encode(make_inventory(15)).replace("Healthy", "Degraded")
    assert inventory.decode(text, NODE).gpus[0].health is GpuHealth.UNHEALTHY
    text = inventory.encode(make_inventory(15)).replace('"version":1', '"version":2,"minReader":1,"new":{}')
    assert inventory.decode(text, NODE) == make_inventory(15)
    said = replace(make_inventory(15), hand_over=HandOver.CDI)
    said = replace(said, gpus=(replace(said.gpus[0], limit=Limit.CGROUP),))
    text = inventory.encode(said).replace("cgroup", "stronger").replace("cdi", "newer")
    assert inventory.decode(text, NODE) == make_inventory(15)


def test_gpus_for_claims_are_where_no_older_version_looks_for_gpus_to_grant() -> None:
    first, second, third = make_inventory(15, 15, 23).gpus
    said = replace(make_inventory(), gpus=(second,), dra=(third, first))
    text = inventory.encode(said)
    found = inventory.decode(text, NODE)
    assert (found.gpus, found.dra) == ((second,), (first, third))
    assert [gpu["uuid"] for gpu in json.loads(text)["gpus"]] == [second.uuid]
    assert found.of_modes == {Mode.DEVICE_PLUGIN: (second,), Mode.DRA: (first, third)}
    with pytest.raises(ValueError, match="two GPUs with the same UUID or index"):
        replace(said, dra=(second,))


def test_what_is_not_said_has_its_weakest_meaning_and_only_what_no_one_can_avoid_is_enforced() -> None:
    [gpu] = make_inventory(15).gpus
    assert (gpu.limit, gpu.mig, gpu.reason) == (Limit.ADVISORY, None, "")
    assert make_inventory(15).hand_over is HandOver.ENVVAR
    for limit in Limit:
        assert limit.enforced == (limit.value in {"mig", "cgroup"})


def test_limit_hand_over_mig_and_gpus_that_cannot_be_shared_come_back_as_they_were() -> None:
    plain = make_inventory(15, 10)
    first, second = plain.gpus
    gpus = (
        replace(first, health=GpuHealth.UNHEALTHY, reason="Xid 79", limit_reason="cgroup: old driver"),
        replace(second, limit=Limit.MIG, mig=MigInstance(gpu=0, number=2, profile="1g.10gb")),
    )
    said = replace(plain, gpus=gpus, hand_over=HandOver.CDI, hand_over_reason="containerd 2.1.9")
    text = inventory.encode(said)
    assert text.endswith('"handOver":{"strategy":"cdi","reason":"containerd 2.1.9"}}')
    assert '"limit":"mig","mig":{"gpu":0,"number":2,"profile":"1g.10gb"}' in text
    assert '"reason":"Xid 79","limitReason":"cgroup: old driver"}' in text
    assert inventory.decode(text, NODE) == said
    said = replace(make_inventory(15), left_out=(LeftOut(index=1, reason="in MIG mode without instances"),))
    text = inventory.encode(said)
    assert text.endswith('"leftOut":[{"index":1,"reason":"in MIG mode without instances"}]}')
    assert inventory.decode(text, NODE) == said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON (Input is a zero-length, empty document: line 1 column 1 (char 0))"),
        ("{", "not JSON ("),
        ("{}", f"version: {COUNT} nothing"),
        ('{"version":0}', "version 0 (readable from version 1), this program reads version 2; upgrade it"),
        (
            '{"version":4,"minReader":3}',
            "version 4 (readable from version 3), this program reads version 2; upgrade it",
        ),
        ('{"version":1}', "gpus: expected a list, found nothing"),
        ('{"version":1,"gpus":[],"unitMiB":0}', "unitMiB: expected a whole number, 1 or more, found 0"),
        ('{"version":1,"gpus":[{"uuid":"a","index":-1}],"unitMiB":1}', f"gpus[0].index: {COUNT} -1"),
        ('{"version":1,"gpus":[],"unitMiB":1,"handOver":1}', "handOver: expected an object, found a number"),
        (
            '{"version":1,"unitMiB":1,"gpus":[{"uuid":"a","index":0,"model":"m","memoryMiB":1,"mig":{"gpu":"x"}}]}',
            f"gpus[0].mig.gpu: {COUNT} a string",
        ),
        (
            '{"version":1,"unitMiB":1,"gpus":[{"uuid":"a","index":0,"model":"m","memoryMiB":1,"numa":0},'
            '{"uuid":"a","index":1,"model":"m","memoryMiB":1}]}',
            "node node-a: two GPUs with the same UUID or index",
        ),
    ],
)
def test_a_broken_inventory_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(WireError, match=re.escape(f"{WHAT}: {message}")):
        inventory.decode(text, NODE)


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
    assert node_records.is_unhealthy_list("kube-system", "unhealthy-gpu-node-a")
    assert not node_records.is_unhealthy_list("default", "unhealthy-gpu-node-a")
    for name in ("unhealthy-gpu-", "my-unhealthy-gpu-node-a"):
        assert not node_records.is_unhealthy_list("kube-system", name)
    maps = [
        config_map("unhealthy-gpu-node-a", "0,1"),
        config_map("unhealthy-gpu-node-b", ""),
        config_map("unhealthy-gpu-node-c", "0", namespace="default"),
        config_map("kube-root-ca.crt", "0"),
    ]
    assert node_records.unhealthy_by_node(maps) == {A: frozenset({0, 1}), B: frozenset()}
