"""One replica leads; what it knows is read afresh; losing the lead ends its worker, and the replica follows again."""

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from controller.claims import NO_NODES
from controller.watches import BUDGETS_V1, CONFIG_MAPS
from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import NodeLedger, RefusalReason
from gpushare.units import ResourceConfig
from gpushare.wire import claim_templates, hand_over
from testing import ledgers
from testing.builders import make_container, make_inventory, make_node, make_pod
from testing.controller.bypassing import changed
from testing.controller.world import CLAIMS, NODES, PODS, bind_args, is_binding, path_of
from testing.fakes.kube import Delayed, FakeKube, LandsLater
from tests.integration.controller.replicas import LEASE, Replica, SharedClock, add_pod, stopping

PATIENCE = 50  # ticks, far fewer than a watch may be silent for


class Clock(SharedClock):
    """With what tests wait for."""

    def eventually(self, _what: str, check: Callable[[], object]) -> None:
        """In a bounded time on this clock, and however long the machine takes for it."""
        for _ in range(PATIENCE):
            if check():
                return
            self.tick()
        while not check():
            time.sleep(0.01)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api() -> Iterator[FakeKube]:
    api = FakeKube()
    for name in ("node-a", "node-b"):
        api.seed(NODES, make_node(make_inventory(10, 10, node=name)))
    yield api
    api.close()


def ready(replica: Replica) -> bool:
    return not replica.line.is_cut.is_set() and replica.term.leadership.unready() == ""


@contextlib.contextmanager
def leading(api: FakeKube, clock: Clock, **options: float) -> Iterator[Replica]:
    """The first replica, once it is ready."""
    first = Replica(api, clock, "first", **options).start()
    with stopping([first]):
        clock.eventually("first is ready", lambda: ready(first))
        yield first


def following(api: FakeKube, clock: Clock) -> contextlib.AbstractContextManager[list[Replica]]:
    return stopping([Replica(api, clock, "second").start()])


def truth(api: FakeKube) -> node_ledger.Ledgers:
    return ledgers.of_objects(api.objects(NODES), api.objects(PODS), ResourceConfig())


def kept(replica: Replica) -> node_ledger.Ledgers:
    return {
        name: ledger
        for name, ledger in replica.term.state.index.snapshot().ledgers.items()
        if isinstance(ledger, NodeLedger)
    }


def test_one_leads_and_the_other_waits_for_the_lease(api: FakeKube, clock: Clock) -> None:
    with leading(api, clock) as first, following(api, clock) as [second]:
        for _ in range(30):
            clock.tick()
        assert second.term.leadership.unready() == "this replica of the gpushare controller does not lead"
        assert second.term.state.index.snapshot().ledgers == {}
        first.die()
        clock.eventually("second is ready", lambda: ready(second))


def test_the_service_finds_the_leader_by_a_label_that_a_dead_one_loses(api: FakeKube, clock: Clock) -> None:
    """Both are ready; else `kubectl rollout status`, and all that waits for it, would never end."""
    for name in ("first", "second"):
        api.seed(OWN_PODS, {"metadata": {"name": name, "labels": {names.LABEL_APP: names.CONTROLLER}}})
    with leading(api, clock) as first, following(api, clock) as [second]:
        clock.eventually("first is labelled", lambda: labelled(api) == ["first"])
        clock.eventually("second could lead", lambda: second.term.leadership.pod_problem() == "")
        assert first.term.leadership.pod_problem() == ""
        first.die()
        clock.eventually("second is labelled", lambda: labelled(api) == ["second"])
        api.fail_next(lambda call: call.path == LEASE, kube.ForbiddenError("no"), times=10**6)
        clock.eventually("second loses the lead", second.lost.is_set)
        assert second.term.leadership.pod_problem().startswith("this replica cannot read its Lease")


OWN_PODS = f"/api/v1/namespaces/{names.NAMESPACE}/pods"


def labelled(api: FakeKube) -> list[str]:
    return [pod["metadata"]["name"] for pod in api.objects(OWN_PODS) if names.LABEL_LEADER in pod["metadata"]["labels"]]


def test_the_leader_tells_the_webhook_how_nodes_hand_over_gpus(api: FakeKube, clock: Clock) -> None:
    config_map = hand_over.path(names.NAMESPACE)
    api.seed(config_map.rpartition("/")[0], {"metadata": {"name": names.HAND_OVER}})
    first = Replica(api, clock, "first", lease_s=60).start()
    with stopping([first]):
        clock.eventually("it is told", lambda: hand_over.word(api.read(config_map)) == "envvar")
        inventory = replace(make_inventory(10, node="node-c"), hand_over=HandOver.CDI)
        api.seed(NODES, make_node(inventory))
        clock.eventually("it is told again", lambda: hand_over.word(api.read(config_map)) == "mixed")


def test_the_leader_makes_the_templates_of_claims(api: FakeKube, clock: Clock) -> None:
    api.seed("/api/v1/namespaces", {"metadata": {"name": "team", "labels": {names.LABEL_SHARE_BY: names.CLAIMS}}})
    spec = {"containers": [make_container("main", 3)]}
    found = claim_templates.translate({"metadata": {}, "spec": spec}, ResourceConfig())
    assert found is not None
    mark = {names.CLAIM_TEMPLATE: found.template.name}
    metadata = {"name": "p", "labels": mark, "annotations": {names.CLAIM_TEMPLATE: found.template.text}}
    api.seed("/api/v1/namespaces/team/pods", {"metadata": metadata, "spec": found.spec})
    with leading(api, clock, lease_s=60):
        clock.eventually("it is made", lambda: api.objects(claim_templates.PATH.format("team")))


def test_a_stopped_leader_ends_its_chores_before_it_releases_the_lease(api: FakeKube, clock: Clock) -> None:
    gate = threading.Event()
    api.fail_next(lambda call: call.verb == "get" and "/pods/" in call.path, Delayed(gate))
    with leading(api, clock, lease_s=60, quiet_s=30) as first:
        for name in ("late-0", "late-1"):
            spec = {"nodeName": "node-a", "containers": [changed(make_container("main", 3))]}
            api.seed("/api/v1/namespaces/team/pods", {"metadata": {"name": name}, "spec": spec})
        clock.eventually("one of them is looked at", lambda: looks(api))
        stopped = threading.Thread(target=first.stop)
        stopped.start()
        stopped.join(0.3)
        assert api.read(LEASE)["spec"]["holderIdentity"] != ""
        gate.set()
        stopped.join()
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""
    assert (looks(api), api.count("patch", "/team/pods/")) == (1, 0)


def looks(api: FakeKube) -> int:
    return api.count("get", "/pods/")


def test_a_leader_whose_lease_was_taken_follows_again_without_what_it_knew(api: FakeKube, clock: Clock) -> None:
    with leading(api, clock) as first:
        term = first.term
        api.edit(LEASE, lambda lease: lease["spec"].update(holderIdentity="thief", renewTime="now"))
        clock.eventually("first loses the lead", first.lost.is_set)
        assert term.exit_code() in {3, -9}
        assert not first.term.leadership.leading()
        assert first.term.state.index.snapshot().ledgers == {}
        clock.eventually("first is ready again, after the thief's lease", lambda: ready(first))
        assert api.read(LEASE)["spec"]["holderIdentity"] == "first_2"


def test_replicas_that_all_lose_the_lead_lead_again_when_the_api_server_is_back(api: FakeKube, clock: Clock) -> None:
    """Both containers ended and waited for the kubelet's back-off, minutes after the API server was back."""
    replicas = [Replica(api, clock, "first").start(), Replica(api, clock, "second").start()]
    with stopping(replicas):
        clock.eventually("one is ready", lambda: any(map(ready, replicas)))
        leader = next(replica for replica in replicas if ready(replica))
        api.fail_next(lambda _: True, kube.UnreachableError("overloaded"), times=10**6)
        clock.eventually("leader loses the lead", leader.lost.is_set)
        assert not any(replica.term.leadership.leading() for replica in replicas)
        why = "this replica of the gpushare controller does not lead; try again"
        assert leader.term.binder.bind(bind_args(add_pod(api, "p"))).error == why
        api.calm()
        clock.eventually("one is ready again", lambda: any(map(ready, replicas)))


def test_a_dead_watch_ends_the_lead(api: FakeKube, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is renewed, and what the leader knows is of the past."""
    with leading(api, clock, dead_s=3) as first, following(api, clock) as [second]:
        term = first.term
        api.fail_next(
            lambda call: call.path == PODS and not first.lost.is_set(), kube.ServerFaultError("oops"), times=10**6
        )
        api.cut()
        clock.eventually("one leads that is not the first's first worker", lambda: term.exit_code() is not None)
        assert "watch dead" in caplog.messages
        clock.eventually("somebody is ready", lambda: ready(first) or ready(second))


def test_a_leader_with_a_broken_part_ends(api: FakeKube, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Replica(api, clock, "first")

    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(first.term.state.index, "rebuild", boom)
    with stopping([first.start()]):
        clock.eventually("first loses the lead", first.lost.is_set)


@pytest.mark.parametrize("path", [PODS, BUDGETS_V1, CONFIG_MAPS])
def test_a_new_leader_is_not_ready_before_it_has_read_the_cluster(api: FakeKube, clock: Clock, path: str) -> None:
    gate = threading.Event()
    api.fail_next(lambda call: call.path == path, Delayed(gate))
    first = Replica(api, clock, "first", lease_s=60).start()
    with stopping([first]):
        what = f"the gpushare controller became leader and is still listing {path}"
        clock.eventually("all else is read", lambda: first.term.leadership.unready() == what)
        gate.set()
        clock.eventually("ready", lambda: ready(first))


def test_a_binding_that_lands_while_the_lead_changes_is_in_the_new_leaders_ledger(api: FakeKube, clock: Clock) -> None:
    with leading(api, clock) as first, following(api, clock) as [second]:
        pod = add_pod(api, "p")
        api.fail_next(is_binding, LandsLater())
        assert "the memory stays reserved" in first.term.binder.bind(bind_args(pod)).error
        first.die()
        api.land()
        clock.eventually("second is ready", lambda: ready(second))
        assert second.term.state.index.snapshot().ledgers[NodeName("node-a")] == truth(api)[NodeName("node-a")]
        assert truth(api)[NodeName("node-a")].used_mib == {"GPU-0": 3072}


def test_pods_are_bound_while_the_lead_changes_again_and_again(api: FakeKube, clock: Clock) -> None:
    """Eight workers schedule on anyone who is ready; leaders die in the middle of it; nothing is given twice."""
    replicas = [Replica(api, clock, "r0").start(), Replica(api, clock, "r1").start()]
    pods = [add_pod(api, f"p{i}") for i in range(60)]
    fresh = itertools.count(2)
    done = threading.Event()

    def schedule(pod: JsonObject) -> None:
        for node in itertools.cycle(["node-a", "node-b"]):
            if done.is_set() or api.read(path_of(pod))["spec"].get("nodeName"):
                return
            leader = next((replica for replica in replicas if ready(replica)), None)
            if leader is not None:
                leader.term.binder.bind(bind_args(pod, node))
            time.sleep(0.01)

    with stopping(replicas), concurrent.futures.ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as end:
        end.callback(done.set)
        api.fail_next(is_binding, "lost-reply", times=3)
        futures = [pool.submit(schedule, pod) for pod in pods]
        for _ in range(3):
            clock.eventually("somebody leads", lambda: any(map(ready, replicas)))
            time.sleep(0.1)
            next(replica for replica in replicas if ready(replica)).die()
            replicas.append(Replica(api, clock, f"r{next(fresh)}").start())
        # 4 GPUs of 10 GiB hold 12 pods of 3 GiB; the others wait forever.
        clock.eventually("the GPUs are full", lambda: sum("nodeName" in p["spec"] for p in api.objects(PODS)) == 12)
        done.set()
        for future in futures:
            future.result()
        clock.eventually("a leader is ready", lambda: any(map(ready, replicas)))
        leader = next(replica for replica in replicas if ready(replica))
        clock.eventually("the ledger is equal", lambda: node_ledger.differences(truth(api), kept(leader)) == [])
    assert all(ledger.over_committed() == {} for ledger in truth(api).values())
    assert len([call for call in api.calls if is_binding(call)]) < 12 + 3 + 8 * 4


def test_pods_with_claims_are_told_what_they_lack_and_a_server_without_claims_keeps_no_one_waiting(
    api: FakeKube, clock: Clock
) -> None:
    absent = kube.NotFoundError("the server could not find the requested resource")
    api.fail_next(lambda call: call.path == CLAIMS, absent, times=2)
    owner = {"kind": "Pod", "name": "web", "uid": "uid-of-web", "controller": True}
    exactly = {"deviceClassName": names.DEVICE_CLASS, "capacity": {"requests": {"memory": "3Gi"}}}
    claim = {
        "metadata": {"name": "web-gpu", "uid": "uid-of-claim", "ownerReferences": [owner]},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    api.seed(CLAIMS.replace("v1/", "v1/namespaces/team/", 1), claim)
    pod = make_pod(make_container(), name="web", namespace="team")
    pod["metadata"]["uid"] = "uid-of-web"
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "x"}]
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    api.seed("/api/v1/namespaces/team/pods", pod)
    with leading(api, clock) as first:
        events = "/api/v1/namespaces/team/events"
        clock.eventually("the pod is told", lambda: any(NO_NODES in each["message"] for each in api.objects(events)))
        assert first.term.leadership.reconciler.counts["team", RefusalReason.NO_INVENTORY.value] == 1
