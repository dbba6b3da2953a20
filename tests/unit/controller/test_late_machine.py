"""As `test_machine`, with one small node and little but pods that get there past the scheduler."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from testing.controller.bypassing import add_bypassed, run_containers
from testing.controller.world import PODS, World, path_of
from testing.fakes.kube import Call, Fault, LandsLater

faults = st.sampled_from([None, "lost-reply", "lost-request", LandsLater(), LandsLater(), kube.ConflictError("no")])


def is_late_binding(call: Call) -> bool:
    return call.verb == "patch" and names.ANNOTATION_LATE in call.body["metadata"].get("annotations", {})


class LateCluster(RuleBasedStateMachine):
    """One node with GPUs of 6 and 5 GiB."""

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

    @rule(fault=faults, unread=st.booleans(), see=st.booleans(), seconds=st.sampled_from([0, 6, 50]))
    def care(self, fault: Fault | None, unread: bool, see: bool, seconds: int) -> None:
        self.time_passes(seconds)
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
        if not self.exists(pod):
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
    def requests_land(self) -> None:
        self.world.api.land()

    @rule(landed=st.booleans())
    def restart_controller(self, landed: bool) -> None:
        self.world.api.land() if landed else self.world.api.lose()
        self.world.start_controller()
        self.world.list_all()

    @rule()
    def all_is_known_in_the_end(self) -> None:
        """Nothing stays set aside when everything has been answered and looked at."""
        self.world.api.lose()
        for _ in range(4):
            self.world.clock.at += 130
            self.world.see()
            self.world.reconciler.tick()
        self.world.see()
        assert self.world.state.cache.snapshot().unconfirmed == 0
        assert self.world.state.cache.snapshot().differences() == []
        assert dict(self.world.ledger().used_mib) == dict(
            self.world.truth()[self.world.ledger().inventory.node].used_mib
        )

    @invariant()
    def no_gpu_is_over_its_memory(self) -> None:
        if hasattr(self, "world"):
            assert [ledger.over_committed() for ledger in self.world.truth().values()] == [{}]

    @invariant()
    def the_ledger_holds_no_less_than_the_pods_that_were_seen(self) -> None:
        if hasattr(self, "world"):
            assert self.world.state.cache.snapshot().differences() == []
            assert all(isinstance(ledger, NodeLedger) for ledger in self.world.state.cache.snapshot().ledgers.values())

    def exists(self, pod: JsonObject) -> bool:
        return any(found["metadata"]["uid"] == pod["metadata"]["uid"] for found in self.world.api.objects(PODS))


LateCluster.TestCase.settings = settings(max_examples=150, stateful_step_count=25)
test_late_binding_never_over_commits = LateCluster.TestCase
