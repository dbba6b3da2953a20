"""The cache of the node's pods."""

import sys
import threading
from collections.abc import Iterable

import pytest

from deviceplugin import pods
from deviceplugin.pods import PodCache
from gpushare.identity import PodUid
from gpushare.model.request import ContainerKind
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations, pods as wire
from testing.builders import Json, make_container, make_grant, make_pod
from testing.clock import ManualClock
from testing.deviceplugin.build import bound_pod, fields_of
from testing.deviceplugin.usage import claiming

EVERYTHING = ResourceConfig(whole_gpus=True)


def test_a_reduced_pod_says_all_that_a_decision_needs() -> None:
    init = [{"name": "i", "restartPolicy": "Always"}]
    pod = bound_pod(make_grant(0), annotations={"other": "x"}, initContainers=init, runtimeClassName="nvidia")
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {"startedAt": "now"}}}]
    pod["spec"]["containers"][0] |= {"volumeMounts": [{}], "image": "x"}
    reduced = pods.reduce(pod)
    assert wire.ref(reduced) == wire.ref(pod)
    assert reduced["spec"]["runtimeClassName"] == "nvidia"  # which container runtime writes what it is handed
    assert allocations.granted(reduced, GIB) == allocations.granted(pod, GIB)
    assert wire.holds_gpus(reduced) == wire.holds_gpus(pod)
    assert [kind for _, kind, _ in wire.containers(reduced)] == [ContainerKind.APP]  # the one that asks
    assert wire.asks(reduced["spec"]["containers"][0], EVERYTHING)
    assert reduced["spec"]["containers"][0]["env"] == pod["spec"]["containers"][0]["env"]
    assert "other" not in reduced["metadata"]["annotations"]
    assert set(reduced["spec"]["containers"][0]) == {"name", "restartPolicy", "image", "env", "envFrom", "resources"}
    assert "startedAt" not in str(reduced)


def test_of_a_pod_with_claims_those_are_kept_and_the_containers_that_use_them() -> None:
    names = ("a", "b", "other")
    pod = claiming(make_pod(*map(make_container, names)), {"x": "pod-x", "y": "pod-y"}, a="x/one x/two", b="y")
    pod["spec"]["resourceClaims"] += [{"name": "own", "resourceClaimName": "team"}, {"name": "none"}]
    kept = PodCache(ManualClock()).read(pod) or {}
    made = {each["name"]: each["resourceClaimName"] for each in kept["spec"]["resourceClaims"]}
    assert made == {"x": "pod-x", "y": "pod-y", "own": "team"}
    uses = [(each["name"], each["resources"]["claims"]) for each in kept["spec"]["containers"]]
    assert uses == [
        ("a", [{"name": "x", "request": "one"}, {"name": "x", "request": "two"}]),
        ("b", [{"name": "y", "request": ""}]),
    ]


def test_what_limits_depend_on_stays_and_is_bounded() -> None:
    annotations = {"gpushare.dev/framework-variables": "jax," * 1000, "gpushare.dev/limit": "enforced"}
    pod = bound_pod(make_grant(0), annotations=annotations)
    pod["spec"]["containers"][0] |= {"image": "x" * 10_000}
    variables = [{"name": name, "value": "v"} for name in ("OTHER", "XLA_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT")]
    pod["spec"]["containers"][0]["env"] += variables * 100
    reduced = pods.reduce(pod)
    kept, container = wire.annotations(reduced), reduced["spec"]["containers"][0]
    assert (len(kept["gpushare.dev/framework-variables"]), kept["gpushare.dev/limit"]) == (128, "enforced")
    assert len(container["image"]) == 256
    known = [{"name": "CUPY_GPU_MEMORY_LIMIT"}, {"name": "XLA_CLIENT_MEM_FRACTION"}]
    assert container["env"] == [pod["spec"]["containers"][0]["env"][0], *known]


def test_a_waiter_gets_a_pod_as_soon_as_the_watch_tells_of_it() -> None:
    cache, got = PodCache(ManualClock()), list[object]()
    thread = threading.Thread(target=lambda: got.append(cache.wait_for(lambda: cache.by_uid(PodUid("uid-a")), 10.0)))
    thread.start()
    for name in "za":
        cache.upsert(make_pod(name=name))
    thread.join()
    assert got == [make_pod(name="a")]

    def look() -> object:
        found = cache.by_uid(PodUid("uid-b"))
        cache.upsert(make_pod(name="b"))
        return found

    assert cache.wait_for(look, 10.0) == make_pod(name="b"), "what changes while it decides makes it decide again"


def test_the_watch_goes_on_while_a_waiter_decides() -> None:
    cache = PodCache(ManualClock())
    deciding, decided = threading.Event(), threading.Event()

    def look() -> bool:
        deciding.set()
        return decided.wait()

    waiter = threading.Thread(target=cache.wait_for, args=(look, 10.0))
    watch = threading.Thread(target=cache.upsert, args=(make_pod(name="a"),))
    waiter.start()
    assert deciding.wait()
    watch.start()
    watch.join()
    went_on = not watch.is_alive()
    decided.set()
    waiter.join()
    watch.join()
    assert went_on


def test_a_waiter_gives_up_in_time_however_much_changes() -> None:
    clock, looks = ManualClock(), list[float]()
    cache = PodCache(clock)

    def look() -> None:
        looks.append(clock.monotonic())
        clock.at += 1.0
        cache.upsert(make_pod(name="z"))

    assert cache.wait_for(look, 3.0) is None
    assert len(looks) == 3
    assert cache.wait_for(lambda: None, 0.01) is cache.wait_for(lambda: None, -1.0) is None


def test_waiters_decide_one_at_a_time_when_something_has_changed() -> None:
    cache, deciding, most = PodCache(SystemClock()), list[int](), list[int]()
    first = threading.Barrier(9)

    def look() -> object:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            first.wait()
            return None
        deciding.append(1)
        most.append(len(deciding))
        turns.wait(0.01)
        deciding.pop()
        return True

    seen, turns = set[int](), threading.Event()
    waiters = [threading.Thread(target=cache.wait_for, args=(look, 60.0)) for _ in range(8)]
    for waiter in waiters:
        waiter.start()
    first.wait()
    cache.upsert(make_pod(name="a"))
    for waiter in waiters:
        waiter.join(60.0)
    assert most == [1] * 8


def test_a_waiter_whose_turn_does_not_come_gives_up_in_time() -> None:
    cache, started, done = PodCache(SystemClock()), threading.Event(), threading.Event()
    looks = list[int]()

    def slow() -> object:
        looks.append(1)
        if len(looks) == 1:
            cache.upsert(make_pod(name="a"))
            return None
        started.set()
        return done.wait()

    def quick() -> None:
        cache.upsert(make_pod(name="b"))

    waiter = threading.Thread(target=cache.wait_for, args=(slow, 60.0))
    waiter.start()
    assert started.wait()
    assert cache.wait_for(quick, 0.01) is None
    done.set()
    waiter.join()


def test_a_reduced_pod_keeps_every_resource_and_every_systems_allocation() -> None:
    limits = {"aliyun.com/gpu-mem": "3", "nano-gpu/gpu-percent": "20"}
    limits |= {"aliyun.com/gpu-core.percentage": "10", "nvidia.com/gpu": "1"}
    annotations = {"gpushare.dev/bound-late": "true", "scheduler.framework.gpushare.allocation": "{}"}
    annotations |= {"ALIYUN_COM_GPU_MEM_IDX": "0", "nano-gpu/assume": "true", "nano-gpu/container-main": "0"}
    container = {**make_container(), "resources": {"limits": {**limits, "cpu": "1"}, "requests": limits}}
    reduced = pods.reduce(make_pod(container, annotations={**annotations, "other": "x"}))
    assert reduced["spec"]["containers"][0]["resources"] == {"limits": limits}
    assert reduced["metadata"]["annotations"] == annotations


UID = PodUid("uid-pod")


def test_an_allocation_is_seen_since_the_watch_told_of_it_first_and_while_the_pod_is_there() -> None:
    clock = ManualClock()
    cache = PodCache(clock)
    assert cache.allocation_seen_since(UID) is None
    cache.upsert(bound_pod(annotations={"gpushare.dev/allocation": None}))
    assert cache.allocation_seen_since(UID) is None
    clock.at = 2000.0
    cache.upsert(bound_pod())
    clock.at = 3000.0
    cache.upsert(bound_pod(phase="Running"))
    cache.replace([bound_pod()])
    assert cache.allocation_seen_since(UID) == 2000.0
    cache.upsert(bound_pod(make_grant(1)))
    assert cache.allocation_seen_since(UID) == 3000.0, "another one counts from when it is shown"
    cache.upsert(bound_pod(annotations={"gpushare.dev/allocation": None}))
    assert cache.allocation_seen_since(UID) is None
    cache.replace([bound_pod(make_grant(1))])
    assert cache.allocation_seen_since(UID) == 3000.0
    cache.remove(bound_pod())
    assert cache.allocation_seen_since(UID) is None
    cache.upsert(bound_pod())
    cache.replace([])
    assert cache.allocation_seen_since(UID) is None


def size(value: object) -> int:
    """Bytes of memory that a decoded object takes, about."""
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = (*value.keys(), *value.values())
    elif isinstance(value, list):
        inner = value
    return sys.getsizeof(value) + sum(map(size, inner))


def asking(name: str = "main") -> Json:
    return make_container(name, 1)


def using(requests: int) -> Json:
    return make_container("c", resources={"claims": [{"name": "gpu", "request": f"r{i}"} for i in range(requests)]})


CLAIM = {"name": "gpu", "resourceClaimName": "x" * 253}
DEVICES = {"name": "NVIDIA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [asking()], "affinity": {"terms": [{"weight": 1}] * 30_000}},
        {"containers": [asking() | {"env": [DEVICES | {"value": "x"}] * 50_000}]},
        {"containers": [asking() | {"env": [DEVICES | {"value": "x" * 1_500_000}]}]},
        {"containers": [asking(), *({"name": f"c{i}"} for i in range(20_000))]},
        {"containers": [asking(f"c{i}") for i in range(10_000)]},
        {"initContainers": [asking(f"c{i}") for i in range(10_000)]},
        {"containers": [asking()], "schedulerName": "x" * 1_500_000},
        {"containers": [asking()], "resourceClaims": [CLAIM] * 10_000},
        {"containers": [using(1)] * 10_000, "resourceClaims": [CLAIM]},
        {"containers": [using(10_000)], "resourceClaims": [CLAIM] * 32},
    ],
    ids=["affinity", "variables", "value", "containers", "asking", "init", "scheduler", "claims", "users", "uses"],
)
def test_what_is_kept_of_a_pod_is_small_however_large_it_is(spec: Json) -> None:
    annotations = {"gpushare.dev/watchdog": "x" * 250_000}
    pod = make_pod(node="node-a", labels={f"k{i}": "v" for i in range(30_000)}, annotations=annotations)
    pod["spec"] = spec
    pod["status"]["containerStatuses"] = [{"name": f"c{i}", "state": {"running": {}}} for i in range(10_000)]
    kept = PodCache(ManualClock()).read(pod)
    assert size(kept) < 100_000
    assert wire.holds_gpus(kept or {})


def test_of_pods_that_have_ended_nothing_is_kept() -> None:
    """A node's pods are few, but those that it has rejected stay by the thousand."""
    cache = PodCache(ManualClock())
    pod = bound_pod(containers=[asking(f"c{i}") for i in range(64)])
    pod["status"]["containerStatuses"] = [{"name": "c0", "state": {"running": {}}}]
    cache.upsert(cache.read(pod) or {})
    evicted = cache.read(pod | {"status": pod["status"] | {"phase": "Failed"}}) or {}
    cache.upsert(evicted)
    assert cache.all() == (evicted,)
    ended = cache.read(pod | {"status": {"phase": "Failed"}}) or {}
    assert size(ended) < 2_000
    for _ in range(2):
        cache.upsert(ended)
        assert cache.all() == ()
    assert cache.allocation_seen_since(UID) is None
    cache.replace([ended])
    assert cache.all() == ()


def test_pods_that_ask_for_nothing_are_not_kept_and_those_that_cannot_be_read_neither(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = PodCache(ManualClock())
    assert cache.read(make_pod({"name": "c", "resources": {"limits": {"cpu": "1"}}})) is None
    assert cache.read(make_pod(asking()) | {"metadata": 3}) is None
    assert cache.read(make_pod(asking() | {"env": [DEVICES | {"valueFrom": 3}]})) is None
    assert [line["error"].partition(":")[0] for line in fields_of(caplog, "object left out")][1] == "env.valueFrom"
    assert cache.read(make_pod({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}})) is not None


def test_the_last_variable_counts() -> None:
    own = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['devices.gpushare.dev/main']"}}}
    for env, takes in (([DEVICES | {"value": "all"}, DEVICES | own], True), ([DEVICES | own, DEVICES], False)):
        [container] = pods.reduce(make_pod(asking() | {"env": env}))["spec"]["containers"]
        assert wire.takes_its_grant(container, "main") is takes


def test_a_pod_that_another_system_bound_is_read_alike_when_it_is_reduced() -> None:
    places = {"scheduler.framework.gpushare.allocation": '{"1":{"0":1}}'}  # of containers, which stay there
    percent = make_container(resources={"limits": {"nano-gpu/gpu-percent": "20"}})
    for pod in (
        make_pod({"name": "side"}, make_container("main", 1), node="node-a", annotations=places),
        make_pod(percent, node="node-a", annotations={"nano-gpu/assume": "true", "nano-gpu/container-main": "1"}),
    ):
        assert allocations.granted(pods.reduce(pod), GIB) == allocations.granted(pod, GIB) is not None
