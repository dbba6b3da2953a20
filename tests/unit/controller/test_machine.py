"""Whatever happens in whatever order, no GPU is ever given more than it has, as the API server's pods tell it."""

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from controller.unhealthy import PATH as CONFIG_MAPS
from gpushare import names
from gpushare.cluster import cluster_ledger
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.wire import inventory
from testing.controller.bypassing import REPLICA_SET, add_bypassed
from testing.controller.world import NODES, PODS, World, path_of
from testing.fakes.kube import Call, Fault, LandsLater

NODE_NAMES = ["node-a", "node-b"]
faults = st.sampled_from(
    [
        None,
        None,
        None,
        "lost-reply",
        "lost-request",
        LandsLater(),
        LandsLater(),
        LandsLater(),
        kube.ServerFaultError("boom"),
        kube.ConflictError("somebody else was first"),
        kube.TooManyRequestsError("slow down"),
    ]
)


def is_binding(call: Call) -> bool:
    return call.path.endswith("/binding")


def is_late_binding(call: Call) -> bool:
    return call.verb == "patch" and names.ANNOTATION_LATE in call.body["metadata"].get("annotations", {})


class Cluster(RuleBasedStateMachine):
    """Two small nodes, a controller that may be restarted, and an API server that loses and delays requests."""

    pods = Bundle("pods")

    @initialize(target=pods, checks_uid=st.booleans())
    def start(self, checks_uid: bool) -> Any:
        self.world = World()
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
        if not bound.error:
            assert self.on_node(pod) in {node, None}

    @rule(pod=pods, other=pods, node=st.sampled_from(NODE_NAMES), see=st.booleans(), seconds=st.sampled_from([0, 11]))
    def schedule_while_another_is_on_its_way(
        self, pod: JsonObject, other: JsonObject, node: str, see: bool, seconds: int
    ) -> None:
        self.schedule(pod, node, LandsLater(), unread=False, see=see)
        if seconds:
            self.time_passes(seconds, see=False)
        self.schedule(other, node, None, unread=False, see=False)
        self.late_bindings_land()

    @rule(target=pods, gib=st.sampled_from([[4], [3], [2, 2]]), node=st.sampled_from(NODE_NAMES), mutated=st.booleans())
    def arrive(self, gib: list[int], node: str, mutated: bool) -> JsonObject:
        """A pod gets to a node past the scheduler."""
        return add_bypassed(self.world, *gib, node=node, mutated=mutated, owner=REPLICA_SET)

    @rule(fault=faults, unread=st.booleans(), see=st.booleans())
    def care_for_bypassed_pods(self, fault: Fault | None, unread: bool, see: bool) -> None:
        """Pods on nodes are given GPUs there, or deleted."""
        if see:
            self.world.see()
        if fault is not None:
            self.world.api.fail_next(is_late_binding, fault)
        if unread:
            tried = sum(map(is_late_binding, self.world.api.calls))
            self.world.api.fail_next(
                lambda call: call.verb == "get" and sum(map(is_late_binding, self.world.api.calls)) > tried,
                "lost-request",
            )
        self.world.reconciler.tick()
        self.world.api.calm()

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
        if not any(found["metadata"]["uid"] == pod["metadata"]["uid"] for found in self.world.api.objects(PODS)):
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
    def late_bindings_land(self) -> None:
        self.world.api.land()

    @rule(landed=st.booleans())
    def restart_controller(self, landed: bool) -> None:
        """The next leader lists only after everything of the former has landed or been dropped."""
        self.world.api.land() if landed else self.world.api.lose()
        self.world.start_controller()
        self.world.list_all()

    @rule()
    def the_ledger_equals_the_pods(self) -> None:
        """Once the watches have caught up, nothing but open reservations differs."""
        self.world.see()
        assert self.world.state.cache.snapshot().differences() == []
        if self.world.state.cache.snapshot().unconfirmed == 0:
            kept = self.world.state.cache.snapshot().ledgers
            ledgers = {name: ledger for name, ledger in kept.items() if isinstance(ledger, NodeLedger)}
            expected = self.world.truth()
            reserved = {
                name: [held for uid, held in ledger.allocations.items() if uid not in expected[name].allocations]
                for name, ledger in ledgers.items()
            }
            # A confirmed reservation of a pod that was deleted before it was seen lives a few seconds longer.
            for name, allocations in reserved.items():
                for held in allocations:
                    assert self.world.state.cache.pending(held.pod.uid) is None
                    assert held.pod.uid not in {
                        bypassed_pod.ref.uid for bypassed_pod in self.world.state.cache.snapshot().bypassed
                    }
                    expected[name] = expected[name].with_allocation(held)
            assert cluster_ledger.differences(expected, ledgers) == []

    @invariant()
    def no_gpu_is_over_its_memory(self) -> None:
        if hasattr(self, "world"):
            for name, ledger in self.world.truth().items():
                assert ledger.over_committed() == {}, name

    @invariant()
    def no_gpu_of_a_pod_that_refuses_that_is_oversubscribed(self) -> None:
        if hasattr(self, "world"):
            for ledger in self.world.truth().values():
                for uuid in ledger.physical:
                    assert ledger.used_mib[uuid] <= ledger.inventory.by_uuid[uuid].memory_mib

    @invariant()
    def every_bound_pod_has_its_gpus(self) -> None:
        if hasattr(self, "world"):
            for pod in self.world.api.objects(PODS):
                if pod["spec"].get("nodeName") and not pod["metadata"]["name"].startswith("bypassed"):
                    assert names.ANNOTATION_ALLOCATION in pod["metadata"]["annotations"]

    @invariant()
    def only_pods_for_which_it_helps_are_bound_late(self) -> None:
        if hasattr(self, "world"):
            for pod in self.world.api.objects(PODS):
                if names.ANNOTATION_LATE in pod["metadata"].get("annotations", {}):
                    assert all("env" in container for container in pod["spec"]["containers"])

    def on_node(self, pod: JsonObject) -> NodeName | None:
        for found in self.world.api.objects(PODS):
            if found["metadata"]["uid"] == pod["metadata"]["uid"]:
                node: NodeName | None = found["spec"].get("nodeName")
                return node
        return None


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
test_the_cluster_is_never_over_committed = Cluster.TestCase
