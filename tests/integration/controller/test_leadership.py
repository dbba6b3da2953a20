"""One replica leads; what it knows is read afresh; losing the lead ends its worker, and the replica follows again."""

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from controller import disruption, unhealthy
from gpushare.cluster import cluster_ledger
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.resource_config import ResourceConfig
from testing import ledgers
from testing.builders import make_container, make_inventory, make_node, make_pod
from testing.fakes.kube import Call, Delayed, FakeKube, LandsLater
from tests.integration.controller.replicas import LEASE, Replica, stopping
from tests.unit.controller.bypassing import changed
from tests.unit.controller.world import NODES, PODS, bind_args, path_of


def eventually(what: str, check: Callable[[], object], timeout_s: float = 250.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


@pytest.fixture
def api() -> Iterator[FakeKube]:
    api = FakeKube()
    for name in ("node-a", "node-b"):
        api.seed(NODES, make_node(make_inventory(10, 10, node=name)))
    yield api
    api.close()


def add_pod(api: FakeKube, name: str) -> JsonObject:
    pod = make_pod(name=name)
    del pod["metadata"]["uid"]
    return api.seed("/api/v1/namespaces/team/pods", pod)


def ready(replica: Replica) -> bool:
    return not replica.line.is_cut.is_set() and replica.leadership.unready() == ""


def truth(api: FakeKube) -> cluster_ledger.Ledgers:
    return ledgers.of_objects(api.objects(NODES), api.objects(PODS), ResourceConfig())


def kept(replica: Replica) -> cluster_ledger.Ledgers:
    return {
        name: ledger
        for name, ledger in replica.state.cache.snapshot().ledgers.items()
        if isinstance(ledger, NodeLedger)
    }


def test_one_leads_and_the_other_waits_for_the_lease(api: FakeKube) -> None:
    first, second = Replica(api, "first").start(), Replica(api, "second")
    with stopping([first, second]):
        eventually("first is ready", lambda: ready(first))
        second.start()
        time.sleep(0.3)
        assert second.leadership.unready() == "this replica of the gpushare controller does not lead"
        assert second.state.cache.snapshot().ledgers == {}
        first.die()
        eventually("second is ready", lambda: ready(second))


def test_a_stopped_leader_releases_the_lease(api: FakeKube) -> None:
    first = Replica(api, "first", lease_s=60).start()
    eventually("first is ready", lambda: ready(first))
    first.stop()
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""
    assert not first.lost.is_set()
    second = Replica(api, "second", lease_s=60).start()
    with stopping([second]):
        eventually("second is ready", lambda: ready(second))


def test_a_leader_that_is_stopped_in_the_middle_of_its_chores_ends_them_before_it_releases_the_lease(
    api: FakeKube,
) -> None:
    gate = threading.Event()
    api.fail_next(lambda call: call.verb == "get" and "/pods/" in call.path, Delayed(gate))
    first = Replica(api, "first", lease_s=60, quiet_s=30).start()
    with stopping([first]):
        eventually("first is ready", lambda: ready(first))
        for name in ("late-0", "late-1"):
            spec = {"nodeName": "node-a", "containers": [changed(make_container("main", 3))]}
            api.seed("/api/v1/namespaces/team/pods", {"metadata": {"name": name}, "spec": spec})
        eventually("one of them is looked at", lambda: looks(api))
        stopped = threading.Thread(target=first.stop)
        stopped.start()
        stopped.join(0.3)
        assert api.read(LEASE)["spec"]["holderIdentity"] != ""
        gate.set()
        stopped.join()
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""
    assert (looks(api), api.count("patch")) == (1, 0)


def looks(api: FakeKube) -> int:
    return api.count("get", "/pods/")


def test_a_leader_whose_lease_was_taken_follows_again_without_what_it_knew(api: FakeKube) -> None:
    first = Replica(api, "first").start()
    with stopping([first]):
        eventually("first is ready", lambda: ready(first))
        term = first.term
        api.edit(LEASE, lambda lease: lease["spec"].update(holderIdentity="thief", renewTime="now"))
        assert first.lost.wait()
        assert term.exit_code() in {3, -9}
        assert not first.leadership.leading()
        assert first.state.cache.snapshot().ledgers == {}
        eventually("first is ready again, after the thief's lease", lambda: ready(first))
        assert api.read(LEASE)["spec"]["holderIdentity"] == "first_2"


def test_a_leader_without_the_api_server_stops_binding_before_its_lease_ends(api: FakeKube) -> None:
    first = Replica(api, "first").start()
    with stopping([first]):
        eventually("first is ready", lambda: ready(first))
        first.line.is_cut.set()
        assert first.lost.wait()
        assert first.binder.bind(bind_args(add_pod(api, "p"))).error == (
            "this replica of the gpushare controller does not lead; try again"
        )


def test_replicas_that_all_lose_the_lead_lead_again_when_the_api_server_is_back(api: FakeKube) -> None:
    """Both containers ended and waited for the kubelet's back-off, minutes after the API server was back."""
    replicas = [Replica(api, "first").start(), Replica(api, "second").start()]
    with stopping(replicas):
        eventually("one is ready", lambda: any(map(ready, replicas)))
        leader = next(replica for replica in replicas if ready(replica))
        api.fail_next(lambda _: True, kube.UnreachableError("overloaded"), times=10**6)
        assert leader.lost.wait(30)
        assert not any(replica.leadership.leading() for replica in replicas)
        api.calm()
        eventually("one is ready again", lambda: any(map(ready, replicas)), timeout_s=30)


def test_a_leader_whose_watch_is_dead_gives_up_the_lead(api: FakeKube, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is renewed, and what the leader knows is of the past."""
    first, second = Replica(api, "first", dead_s=0.5).start(), Replica(api, "second")
    with stopping([first, second]):
        eventually("first is ready", lambda: ready(first))
        second.start()
        term = first.term
        api.fail_next(
            lambda call: call.path == PODS and not first.lost.is_set(), kube.ServerFaultError("oops"), times=10**6
        )
        api.cut()
        eventually("one leads that is not the first's first worker", lambda: term.exit_code() is not None)
        assert "watch dead" in caplog.messages
        eventually("somebody is ready", lambda: ready(first) or ready(second), timeout_s=30)


def test_a_leader_with_a_broken_part_ends(api: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Replica(api, "first")

    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(first.state.cache.cluster_index, "rebuild", boom)
    with stopping([first.start()]):
        assert first.lost.wait()


def test_a_new_leader_is_not_ready_before_it_has_read_the_cluster(api: FakeKube) -> None:
    gate = threading.Event()
    api.fail_next(lambda call: call.path == PODS, Delayed(gate))
    first = Replica(api, "first", lease_s=60).start()
    with stopping([first]):
        eventually("nodes are read", lambda: first.state.cache.snapshot().ledgers)
        assert first.leadership.unready() == (
            "the gpushare controller has just taken the lead and is still reading /api/v1/pods"
        )
        gate.set()
        eventually("ready", lambda: ready(first))


@pytest.mark.parametrize("path", [disruption.V1, unhealthy.PATH])
def test_a_new_leader_waits_also_for_what_it_may_do_without(api: FakeKube, path: str) -> None:
    gate = threading.Event()
    api.fail_next(lambda call: call.path == path, Delayed(gate))
    first = Replica(api, "first", lease_s=60).start()
    with stopping([first]):
        what = f"the gpushare controller has just taken the lead and is still reading {path}"
        eventually("all else is read", lambda: first.leadership.unready() == what)
        gate.set()
        eventually("ready", lambda: ready(first))


def test_a_leader_that_must_not_read_budgets_and_marks_works_without_them(api: FakeKube) -> None:
    optional = {disruption.V1, unhealthy.PATH}
    api.fail_next(lambda call: call.path in optional, kube.ForbiddenError("forbidden"), times=1000)
    first = Replica(api, "first", lease_s=60).start()
    with stopping([first]):
        eventually("ready", lambda: ready(first))
        pod = add_pod(api, "p")
        assert first.binder.bind(bind_args(pod)).error == ""


def test_a_leader_knows_the_budgets(api: FakeKube) -> None:
    collection = disruption.V1.replace("/pod", "/namespaces/team/pod")
    budget = {"metadata": {"name": "web"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 1}}
    api.seed(collection, budget)
    first = Replica(api, "first", lease_s=60).start()
    with stopping([first]):
        eventually("ready", lambda: ready(first))
        [found] = first.leadership.budgets.all()
        assert (found.namespace, found.name, found.allowed) == ("team", "web", 1)
        api.edit(f"{collection}/web", lambda obj: obj["status"].update(disruptionsAllowed=0))
        eventually("seen", lambda: first.leadership.budgets.all()[0].allowed == 0)


def test_a_binding_that_lands_while_the_lead_changes_is_in_the_new_leaders_ledger(api: FakeKube) -> None:
    first, second = Replica(api, "first").start(), Replica(api, "second")
    with stopping([first, second]):
        eventually("first is ready", lambda: ready(first))
        second.start()
        pod = add_pod(api, "p")
        api.fail_next(lambda call: call.path.endswith("/binding"), LandsLater())
        assert "the memory stays reserved" in first.binder.bind(bind_args(pod)).error
        first.die()
        api.land()
        eventually("second is ready", lambda: ready(second))
        assert second.state.cache.snapshot().ledgers[NodeName("node-a")] == truth(api)[NodeName("node-a")]
        assert truth(api)[NodeName("node-a")].used_mib == {"GPU-0": 3072}


def test_watches_survive_cuts_and_expired_versions(api: FakeKube) -> None:
    first = Replica(api, "first", lease_s=60).start()
    with stopping([first]):
        eventually("ready", lambda: ready(first))
        for disturb in (api.cut, api.compact, api.bookmark):
            disturb()
            pod = add_pod(api, f"p-{disturb.__name__}")
            eventually("the pod is seen", lambda: first.state.cache.pending(pod["metadata"]["uid"]))  # noqa: B023 - used at once


def test_pods_are_bound_while_the_lead_changes_again_and_again(api: FakeKube) -> None:
    """Eight workers schedule on anyone who is ready; leaders die in the middle of it; nothing is given twice."""
    replicas = [Replica(api, "r0").start(), Replica(api, "r1").start()]
    pods = [add_pod(api, f"p{i}") for i in range(60)]
    fresh = itertools.count(2)
    done = threading.Event()

    def schedule(pod: JsonObject) -> None:
        for node in itertools.cycle(["node-a", "node-b"]):
            if done.is_set() or api.read(path_of(pod))["spec"].get("nodeName"):
                return
            leader = next((replica for replica in replicas if ready(replica)), None)
            if leader is not None:
                leader.binder.bind(bind_args(pod, node))
            time.sleep(0.01)

    with stopping(replicas), concurrent.futures.ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as end:
        end.callback(done.set)
        api.fail_next(lambda call: call.path.endswith("/binding"), "lost-reply", times=3)
        futures = [pool.submit(schedule, pod) for pod in pods]
        for _ in range(3):
            eventually("somebody leads", lambda: any(map(ready, replicas)))
            time.sleep(0.1)
            next(replica for replica in replicas if ready(replica)).die()
            replicas.append(Replica(api, f"r{next(fresh)}").start())
        # 4 GPUs of 10 GiB hold 12 pods of 3 GiB; the others wait for ever.
        eventually("the GPUs are full", lambda: sum("nodeName" in p["spec"] for p in api.objects(PODS)) == 12)
        done.set()
        for future in futures:
            future.result()
        eventually("a leader is ready", lambda: any(map(ready, replicas)))
        leader = next(replica for replica in replicas if ready(replica))
        eventually("the ledger is equal", lambda: cluster_ledger.differences(truth(api), kept(leader)) == [])
    assert all(ledger.over_committed() == {} for ledger in truth(api).values())
    assert len([call for call in api.calls if is_binding(call)]) < 12 + 3 + 8 * 4


def is_binding(call: Call) -> bool:
    return call.path.endswith("/binding")
