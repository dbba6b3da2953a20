"""The mirror of the node's pods."""

import threading

from deviceplugin import pods
from deviceplugin.pods import PodCache
from gpushare.identity import NodeName, PodUid
from gpushare.units import GIB
from gpushare.wire import pods as wire
from tests.builders import make_grant, make_pod
from tests.unit.deviceplugin.build import bound_pod


def test_the_watch_asks_for_the_nodes_pods_only() -> None:
    assert pods.selector(NodeName("node-a")) == {"fieldSelector": "spec.nodeName=node-a"}


def test_a_reduced_pod_says_all_that_a_decision_needs() -> None:
    pod = bound_pod(
        make_grant(0), annotations={"other": "x"}, initContainers=[{"name": "i", "restartPolicy": "Always"}]
    )
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {"startedAt": "now"}}}]
    pod["spec"]["containers"][0] |= {"volumeMounts": [{}], "image": "x"}
    reduced = pods.reduce(pod)
    assert wire.ref(reduced) == wire.ref(pod)
    assert wire.allocation(reduced, GIB) == wire.allocation(pod, GIB)
    assert wire.holds_gpus(reduced) == wire.holds_gpus(pod)
    assert [kind for _, kind, _ in wire.containers(reduced)] == [kind for _, kind, _ in wire.containers(pod)]
    assert wire.asks(reduced["spec"]["containers"][0])
    assert reduced["spec"]["containers"][0]["env"] == pod["spec"]["containers"][0]["env"]
    assert "other" not in reduced["metadata"]["annotations"]
    assert set(reduced["spec"]["containers"][0]) == {"name", "restartPolicy", "env", "resources"}
    assert "startedAt" not in str(reduced)


def test_a_pod_without_anything_is_reduced_too() -> None:
    reduced = pods.reduce({"metadata": {"name": "p"}})
    assert wire.ref(reduced).name == "p"
    assert not wire.needs_gpu(reduced)
    assert wire.holds_gpus(reduced)
    other = {"metadata": {}, "spec": {"containers": [{"name": "c"}]}, "status": {"containerStatuses": [{}]}}
    assert not wire.needs_gpu(pods.reduce(other))


def test_pods_are_found_by_uid_and_by_name() -> None:
    cache = PodCache()
    a, b = make_pod(name="a"), make_pod(name="b", namespace="other")
    cache.replace([a])
    cache.upsert(b)
    assert cache.by_uid(PodUid("uid-a")) is a
    assert cache.by_name("other", "b") is b
    assert cache.by_name("default", "b") is None
    assert list(cache.all()) == [a, b]
    cache.remove(b)
    cache.remove(b)
    assert cache.by_uid(PodUid("uid-b")) is None
    cache.replace([])
    assert cache.all() == ()


def test_a_waiter_gets_a_pod_as_soon_as_the_watch_tells_of_it() -> None:
    cache, got = PodCache(), list[object]()
    thread = threading.Thread(target=lambda: got.append(cache.wait_for(lambda: cache.by_uid(PodUid("uid-a")), 10.0)))
    thread.start()
    cache.upsert(make_pod(name="z"))
    cache.upsert(make_pod(name="a"))
    thread.join(10.0)
    assert got == [make_pod(name="a")]


def test_a_waiter_gives_up_in_time() -> None:
    cache = PodCache()
    assert cache.wait_for(lambda: cache.by_uid(PodUid("uid-a")), 0.01) is None
    assert cache.wait_for(lambda: cache.by_uid(PodUid("uid-a")), -1.0) is None
