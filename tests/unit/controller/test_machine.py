"""Whatever happens in whatever order, no GPU is ever given more than it has, as the API server's pods tell it."""

from dataclasses import replace
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from controller.extender.bind import Outcome
from controller.watches import CONFIG_MAPS
from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.wire import inventory
from testing.controller.bypassing import REPLICA_SET, add_bypassed, run_containers
from testing.controller.world import NODES, PODS, World, is_binding, path_of, uid_of
from testing.fakes.kube import Call, Fault, LandsLater, Meanwhile

NODE_NAMES = ["node-a", "node-b"]
errors = kube.ServerFaultError("boom"), kube.ConflictError("was first"), kube.TooManyRequestsError("slow down")
faults = st.sampled_from([*[None] * 3, "lost-reply", "lost-request", *[LandsLater()] * 3, *errors])


def is_late_binding(call: Call) -> bool:
    return call.verb == "patch" and names.ANNOTATION_LATE in call.body["metadata"].get("annotations", {})


def care(world: World, fault: Fault | None, unread: bool) -> None:
    """A tick in which a patch goes wrong, and the pod cannot be read after it."""
    if fault is not None:
        world.api.fail_next(is_late_binding, fault)
    if unread:
        tried = sum(map(is_late_binding, world.api.calls))
        world.api.fail_next(
            lambda call: call.verb == "get" and sum(map(is_late_binding, world.api.calls)) > tried, "lost-request"
        )
    world.reconciler.tick()
    world.api.calm()


class Machine(RuleBasedStateMachine):
    """What is true of every cluster. Invariants are looked at once it has been started."""

    world: World

    @rule()
    def requests_land(self) -> None:
        self.world.api.land()

    @rule(landed=st.booleans())
    def restart_controller(self, landed: bool) -> None:
        """The next leader lists only after everything of the former has landed or been dropped."""
        self.world.api.land() if landed else self.world.api.lose()
        self.world.start_controller()
        self.world.list_all()

    @invariant()
    def no_gpu_is_over_its_memory(self) -> None:
        for name, ledger in self.world.truth().items():
            assert ledger.over_committed() == {}, name


class Unlocked(list[Call]):
    """Calls of the API server, none of which is made while the index is locked."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def append(self, call: Call) -> None:
        assert not self.world.state.index.lock.locked()
        super().append(call)


class Cluster(Machine):
    """Two small nodes, a controller that may be restarted, and an API server that loses and delays requests."""

    pods = Bundle("pods")

    @initialize(target=pods, checks_uid=st.booleans())
    def start(self, checks_uid: bool) -> Any:
        self.world = World()
        self.world.api.calls = Unlocked(self.world)
        self.doubted: set[PodUid] = set()
        self.world.api.binding_checks_uid = checks_uid
        for node in NODE_NAMES:
            self.world.api.seed(CONFIG_MAPS, {"metadata": {"name": f"{names.PREFIX_UNHEALTHY}{node}"}})
        self.world.add_node("node-a", 6)
        self.world.add_node("node-b", 4, 5)
        self.world.list_all()
        return multiple(*(self.world.add_pod(4) for _ in range(3)))

    @rule(
        target=pods,
        gib=st.sampled_from([[4], [4], [3], [5], [2, 2], [3, 3, 1]]),
        gpus=st.sampled_from(["1", "1", "2"]),
        refuses=st.sampled_from([False, False, True]),
    )
    def create(self, gib: list[int], gpus: str, refuses: bool) -> JsonObject:
        annotations = {names.ANNOTATION_GPUS: gpus, names.ANNOTATION_TOTALS: "true"}
        if refuses:
            annotations[names.ANNOTATION_OVERSUBSCRIPTION] = names.NEVER
        amounts = [amount * int(gpus) for amount in gib]
        return self.world.add_pod(*amounts, annotations=annotations)

    @rule(pod=pods, node=st.sampled_from(NODE_NAMES), fault=faults, unread=st.booleans(), see=st.booleans())
    def schedule(self, pod: JsonObject, node: str, fault: Fault | None, unread: bool, see: bool) -> None:
        """One attempt: filter, then bind to the wanted node if it passed."""
        if see:
            self.world.see()
        answer = self.world.post("filter", {"Pod": pod, "NodeNames": NODE_NAMES})
        if node not in (answer["NodeNames"] or ()):
            return
        if fault is not None:
            self.world.api.fail_next(is_binding, fault)
        if unread:
            self.world.api.fail_next(lambda call: call.verb == "get", "lost-request")
        bound = self.world.bind(pod, node)
        self.world.api.calm()
        if bound.outcome in {Outcome.IN_DOUBT, Outcome.POD_GONE}:
            self.doubted.add(uid_of(pod))
        if not bound.error:
            assert self.on_node(pod) in {node, None}

    @rule(
        target=pods,
        gib=st.sampled_from([1, 3, 4]),
        node=st.sampled_from(NODE_NAMES),
        fault=st.none() | faults,
        unread=st.booleans(),
        until=st.sampled_from(["bound", "finished", "gone"]),
    )
    def schedule_and_see_before_the_reply(
        self, gib: int, node: str, fault: Fault | None, unread: bool, until: str
    ) -> JsonObject:
        pod = self.world.add_pod(gib)

        def see() -> None:
            self.world.see()
            if until == "finished":
                self.finish(pod)
            elif until == "gone":
                self.vanish(pod, again=False)
            self.world.see()

        self.schedule(pod, node, Meanwhile(see, fault), unread, see=True)
        return pod

    @rule(pod=pods, other=pods, node=st.sampled_from(NODE_NAMES), see=st.booleans(), seconds=st.sampled_from([0, 11]))
    def schedule_while_another_is_on_its_way(
        self, pod: JsonObject, other: JsonObject, node: str, see: bool, seconds: int
    ) -> None:
        self.schedule(pod, node, LandsLater(), unread=False, see=see)
        if seconds:
            self.time_passes(seconds, see=False)
        self.schedule(other, node, None, unread=False, see=False)
        self.requests_land()

    @rule(target=pods, gib=st.sampled_from([[4], [3], [2, 2]]), node=st.sampled_from(NODE_NAMES), mutated=st.booleans())
    def arrive(self, gib: list[int], node: str, mutated: bool) -> JsonObject:
        """A pod gets to a node past the scheduler."""
        return add_bypassed(self.world, *gib, node=node, mutated=mutated, owner=REPLICA_SET)

    @rule(fault=faults, unread=st.booleans(), see=st.booleans())
    def care_for_bypassed_pods(self, fault: Fault | None, unread: bool, see: bool) -> None:
        """Pods on nodes are given GPUs there, or deleted."""
        if see:
            self.world.see()
        care(self.world, fault, unread)

    @rule(node=st.sampled_from(NODE_NAMES), gpus=st.sampled_from(["", "0", "0,1", "1,x", "7"]))
    def call_unhealthy(self, node: str, gpus: str) -> None:
        path = f"{CONFIG_MAPS}/{names.PREFIX_UNHEALTHY}{node}"
        self.world.api.edit(path, lambda found: found.update(data={names.UNHEALTHY_KEY: gpus}))

    @rule(node=st.sampled_from(NODE_NAMES), gpus=st.sampled_from(["", "0", "GPU-1", "0, 1"]))
    def cordon(self, node: str, gpus: str) -> None:
        mark = {names.ANNOTATION_CORDON: gpus}
        self.world.api.edit(f"{NODES}/{node}", lambda found: found["metadata"]["annotations"].update(mark))

    @rule(node=st.sampled_from(NODE_NAMES), percent=st.sampled_from([0, 50, 100]))
    def oversubscribe(self, node: str, percent: int) -> None:
        """The plugin publishes another factor while pods run and Bindings are on their way."""

        def change(found: JsonObject) -> None:
            known = inventory.of_node(found)
            assert known is not None
            gpus = tuple(replace(gpu, extra_mib=gpu.memory_mib * percent // 100) for gpu in known.gpus)
            found["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory.encode(replace(known, gpus=gpus))

        self.world.api.edit(f"{NODES}/{node}", change)

    @rule(pod=pods)
    def finish(self, pod: JsonObject) -> None:
        if self.on_node(pod):
            self.world.finish(pod)

    @rule(pod=pods)
    def ask_for_deletion(self, pod: JsonObject) -> None:
        if self.on_node(pod):
            self.world.api.delete(path_of(pod))

    @rule(target=pods, pod=pods, again=st.booleans())
    def vanish(self, pod: JsonObject, again: bool) -> Any:
        """A pod is gone; it may be recreated under the same name, with another request."""
        if self.world.find(pod) is None:
            return multiple()
        self.world.api.vanish(path_of(pod))
        return self.world.add_pod(2, name=pod["metadata"]["name"]) if again else multiple()

    @rule(expired=st.booleans())
    def watches_catch_up(self, expired: bool) -> None:
        if expired:
            self.world.list_all()
        else:
            self.world.see()

    @rule(seconds=st.sampled_from([1, 11, 130]), see=st.booleans())
    def time_passes(self, seconds: int, see: bool) -> None:
        """A busy API server may forget that it drops requests after two seconds, and the watch may lag.

        A server that does not compare uids is not that late: nothing but the time tells when a Binding cannot land on
        the successor of its pod any more.
        """
        self.world.clock.at += seconds
        if seconds > 11 or (seconds > 1 and not self.world.api.binding_checks_uid):
            self.world.api.lose()
        if see:
            self.world.see()
        self.world.reconciler.tick()

    @rule()
    def the_ledger_equals_the_pods(self) -> None:
        """Once the watches have caught up, nothing but open reservations differs."""
        self.world.see()
        assert self.world.audit() == []
        if self.world.state.index.unconfirmed() == 0:
            kept = self.world.snapshot().ledgers
            ledgers = {name: ledger for name, ledger in kept.items() if isinstance(ledger, NodeLedger)}
            expected = self.world.truth()
            reserved = {
                name: [held for uid, held in ledger.allocations.items() if uid not in expected[name].allocations]
                for name, ledger in ledgers.items()
            }
            # A confirmed reservation of a pod that was deleted before it was seen lives a few seconds longer.
            for name, allocations in reserved.items():
                for held in allocations:
                    assert self.world.state.index.pending(held.pod.uid) is None
                    assert held.pod.uid not in {bypassed_pod.ref.uid for bypassed_pod in self.world.snapshot().bypassed}
                    expected[name] = expected[name].with_allocation(held)
            assert node_ledger.differences(expected, ledgers) == []

    @invariant()
    def nothing_but_a_binding_in_doubt_is_counted_after_its_pod_was_seen(self) -> None:
        """Between two steps no request is under way."""
        snapshot = self.world.snapshot()
        seen = [held for held in snapshot.reserved if held not in snapshot.chosen]
        assert {held.pod.uid for held in seen} <= self.doubted

    @invariant()
    def no_gpu_of_a_pod_that_refuses_that_is_oversubscribed(self) -> None:
        for ledger in self.world.truth().values():
            for uuid in ledger.physical:
                assert ledger.used_mib[uuid] <= ledger.inventory.by_uuid[uuid].memory_mib

    @invariant()
    def every_bound_pod_has_its_gpus(self) -> None:
        for pod in self.world.api.objects(PODS):
            if pod["spec"].get("nodeName") and not pod["metadata"]["name"].startswith("bypassed"):
                assert names.ANNOTATION_ALLOCATION in pod["metadata"]["annotations"]

    @invariant()
    def only_pods_for_which_it_helps_are_bound_late(self) -> None:
        for pod in self.world.api.objects(PODS):
            if names.ANNOTATION_LATE in pod["metadata"].get("annotations", {}):
                assert all("env" in container for container in pod["spec"]["containers"])

    def on_node(self, pod: JsonObject) -> NodeName | None:
        found = self.world.find(pod)
        return None if found is None else found["spec"].get("nodeName")


Cluster.TestCase.settings = settings(stateful_step_count=30)
test_the_cluster_is_never_over_committed = Cluster.TestCase


late_faults = st.sampled_from([None, "lost-reply", "lost-request", *[LandsLater()] * 2, kube.ConflictError("no")])


class LateCluster(Machine):
    """As above, with one node of 6 and 5 GiB, and little but pods that get there past the scheduler."""

    pods = Bundle("pods")

    @initialize(target=pods)
    def start(self) -> Any:
        self.world = World()
        self.sent_at = self.world.clock.at
        self.world.add_node("node-a", 6, 5)
        self.world.list_all()
        return multiple(*(self.arrive(gib) for gib in (4, 3)))

    @rule(target=pods, gib=st.sampled_from([2, 4]))
    def arrive(self, gib: int) -> JsonObject:
        return add_bypassed(self.world, gib)

    @rule(fault=late_faults, unread=st.booleans(), see=st.booleans(), seconds=st.sampled_from([0, 6, 50]))
    def care(self, fault: Fault | None, unread: bool, see: bool, seconds: int) -> None:
        self.time_passes(seconds)
        if see:
            self.world.see()
        care(self.world, fault, unread)

    @rule(target=pods, see=st.booleans())
    def schedule(self, see: bool) -> Any:
        """A pod comes by the scheduler and takes what is free."""
        if see:
            self.world.see()
        pod = self.world.add_pod(3)
        self.world.bind(pod)
        return pod

    @rule(target=pods, then=st.sampled_from(["news", "retry", "refusal", "nothing"]))
    def others_come_before_a_patch_lands(self, then: str) -> Any:
        self.care(LandsLater(), unread=False, see=True, seconds=400)
        match then:
            case "news":
                self.other_news()
            case "retry":
                self.care(LandsLater(), unread=True, see=True, seconds=6)
            case "refusal":
                self.care(kube.ConflictError("no"), unread=False, see=True, seconds=6)
        pod = self.schedule(see=True)
        self.world.api.land()
        return pod

    @rule()
    def other_news(self) -> None:
        for pod in self.world.api.objects(PODS):
            self.world.edit_pod(pod, lambda found: found["metadata"].update(labels={"at": str(self.world.clock.at)}))
        self.world.see()

    @rule(pod=pods, what=st.sampled_from(["end", "end", "vanish", "start"]))
    def end(self, pod: JsonObject, what: str) -> None:
        if self.world.find(pod) is None:
            return
        match what:
            case "end":
                self.world.finish(pod)
            case "vanish":
                self.world.api.vanish(path_of(pod))
            case "start" if self.world.api.read(path_of(pod))["status"]["phase"] == "Pending":
                run_containers(self.world, pod, "c0")

    @rule(seconds=st.sampled_from([1, 50, 130]))
    def time_passes(self, seconds: int) -> None:
        """The API server drops what is on its way for longer than a minute."""
        self.world.clock.at += seconds
        if self.world.clock.at - self.sent_at > 60:
            self.world.api.lose()
            self.sent_at = self.world.clock.at

    @rule()
    def all_is_known_in_the_end(self) -> None:
        """Nothing stays set aside when everything has been answered and looked at."""
        self.world.api.lose()
        for _ in range(4):
            self.world.clock.at += 130
            self.world.see()
            self.world.reconciler.tick()
        self.world.see()
        assert (self.world.state.index.unconfirmed(), self.world.audit()) == (0, [])
        [truth] = self.world.truth().values()
        assert dict(self.world.ledger().used_mib) == dict(truth.used_mib)

    @invariant()
    def the_ledger_holds_no_less_than_the_pods_that_were_seen(self) -> None:
        assert self.world.audit() == []
        assert all(isinstance(ledger, NodeLedger) for ledger in self.world.snapshot().ledgers.values())


LateCluster.TestCase.settings = settings(stateful_step_count=25)
test_late_binding_never_over_commits = LateCluster.TestCase
