"""Pods that were given their GPUs after the kubelet had seen them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from deviceplugin import late, resources
from deviceplugin.decision import Accept, Reason, Refuse
from deviceplugin.identify import Listed
from deviceplugin.late import LateStarts
from deviceplugin.pods import PodCache
from deviceplugin.prestart import StartCheck
from deviceplugin.refusals import Refusals
from deviceplugin.resources import Resource
from gpushare.identity import ContainerName, PodUid
from gpushare.resource_config import ResourceConfig
from testing.builders import Json, make_grant, make_inventory
from testing.deviceplugin.build import NODE, ManualClock, bound_pod, handing_over, ids_of
from testing.deviceplugin.running import feed_with
from testing.fakes.kube import FakeKube

MESSAGE = (
    "pod default/p was given its GPUs after it had come to the node, and the kubelet may still have a copy that does"
    " not name them; it starts at the kubelet's next try, in some seconds"
)
TRY_S = 12.0  # a kubelet tries again after 10 to 15 s


@dataclass
class NoPods:
    """See Lister."""

    def list(self, resource: Resource, timeout_s: float) -> Sequence[Listed]:
        return []


@dataclass(kw_only=True)
class Node:
    """A gate, the pod p on its node, and what the gate looks at."""

    start_check: StartCheck
    api: FakeKube
    cache: PodCache
    clock: ManualClock

    def show(self, pod: Json) -> None:
        self.cache.upsert(pod)

    def start(self, container: str = "main") -> str:
        """Reason of the refusal, or nothing."""
        decision = self.start_check.check(resources.MEMORY, sorted(devices(container)))
        return "" if isinstance(decision, Accept) else decision.reason.value

    def restart(self) -> None:
        """The plugin starts again, with the pods as they are."""
        self.start_check.cache = self.cache = PodCache(self.clock)
        self.start_check.late = LateStarts(cache=self.cache, clock=self.clock)

    @property
    def events(self) -> list[Json]:
        return self.api.objects("/api/v1/namespaces/default/events")


def devices(container: str) -> frozenset[str]:
    return ids_of(3, first={"main": 0, "side": 10, "full": 20}[container])


def waiting() -> Json:
    return bound_pod(name="p", annotations={"gpushare.dev/allocation": None, "devices.gpushare.dev/main": None})


def late_pod(name: str = "p", *, at: int = 1) -> Json:
    grants = [make_grant(0, container="main"), make_grant(0, container="side")]
    return bound_pod(*grants, name=name, annotations={"gpushare.dev/bound-late": "true"}, assumed=at)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    clock, api = ManualClock(), FakeKube()
    cache = PodCache(clock)
    checkpoint = tmp_path / "kubelet_internal_checkpoint"
    entries = [
        {
            "PodUID": "uid-p",
            "ContainerName": name,
            "ResourceName": "aliyun.com/gpu-mem",
            "DeviceIDs": sorted(devices(name)),
        }
        for name in ("main", "side")
    ]
    checkpoint.write_bytes(orjson.dumps({"Data": {"PodDeviceEntries": entries}}))
    start_check = StartCheck(
        node=NODE,
        resource_config=ResourceConfig(),
        feed=feed_with(make_inventory(15)),
        cache=cache,
        api=api,
        lister=NoPods(),
        checkpoint=checkpoint,
        refusals=Refusals(api=api, clock=clock),
        late=LateStarts(cache=cache, clock=clock),
        hand_over=handing_over(),
    )
    return Node(start_check=start_check, api=api, cache=cache, clock=clock)


def test_a_pod_that_waits_is_bound_late_and_starts_at_the_next_try_but_one(node: Node) -> None:
    node.show(waiting())
    assert node.start() == "NotBound"
    node.clock.seconds += 1.0
    node.show(late_pod())
    assert node.start() == "Late"
    node.clock.seconds += TRY_S
    assert node.start() == ""
    assert node.start() == ""


def test_the_refusal_says_when_it_starts_and_is_no_event(node: Node) -> None:
    node.show(late_pod())
    assert node.start_check.check(resources.MEMORY, sorted(devices("main"))) == Refuse(Reason.LATE, MESSAGE)
    assert node.events == []


def test_a_refusal_takes_until_the_kubelet_has_seen_the_allocation_too(node: Node) -> None:
    node.show(late_pod())
    node.clock.seconds += 1.0
    assert node.start() == "Late"
    assert node.clock.waits == [2.0]
    assert node.start() == ""


def test_a_kubelet_that_began_long_ago_does_not_have_the_allocation_however_long_it_has_been_shown(node: Node) -> None:
    node.show(waiting())
    assert node.start() == "NotBound"
    node.show(late_pod())
    node.clock.seconds += 300.0  # it has been pulling the image all the time, with the pod as it was before
    assert node.start() == "Late"
    assert node.clock.waits == []
    assert node.start() == ""


def test_every_container_is_begun_again(node: Node) -> None:
    node.show(late_pod())
    node.clock.seconds += 10.0
    assert [node.start("main"), node.start("side")] == ["Late", "Late"]
    assert [node.start("main"), node.start("side")] == ["", ""]


def test_a_refusal_for_another_reason_does_not_count(node: Node) -> None:
    node.show(late_pod())
    node.start_check.feed = feed_with(make_inventory())
    assert node.start() == "GpuGone"
    node.start_check.feed = feed_with(make_inventory(15))
    assert node.start() == "Late"
    assert node.start() == ""


def test_after_a_restart_of_the_plugin_the_time_of_its_list_counts(node: Node) -> None:
    node.show(late_pod())
    assert [node.start(), node.start()] == ["Late", ""]
    node.restart()
    node.cache.replace([late_pod()])
    assert node.start() == "Late"
    assert node.clock.waits == [late.LAG_S, late.LAG_S]
    assert node.start() == ""


def test_an_allocation_that_was_changed_has_to_be_seen_again(node: Node) -> None:
    node.show(late_pod())
    assert [node.start(), node.start()] == ["Late", ""]
    changed = late_pod()
    allocation = orjson.loads(changed["metadata"]["annotations"]["gpushare.dev/allocation"])
    changed["metadata"]["annotations"]["gpushare.dev/allocation"] = orjson.dumps({**allocation, "new": 1}).decode()
    node.show(changed)
    assert [node.start(), node.start()] == ["Late", ""]


def test_a_pod_that_was_bound_in_time_is_not_held_up(node: Node) -> None:
    node.show(bound_pod(name="p"))
    assert node.start() == ""
    assert node.clock.waits == []


@pytest.mark.parametrize("mark", ["true", "false", ""])
def test_the_mark_counts_whatever_it_says(node: Node, mark: str) -> None:
    node.show(bound_pod(name="p", annotations={"gpushare.dev/bound-late": mark}))
    assert node.start() == "Late"


def test_a_pod_that_only_the_api_server_shows_is_not_started(node: Node) -> None:
    listed = Listed(
        resource="aliyun.com/gpu-mem",
        namespace="default",
        name="p",
        container=ContainerName("main"),
        ids=devices("main"),
    )

    class Names:
        def list(self, resource: Resource, timeout_s: float) -> Sequence[Listed]:
            return [listed]

    node.start_check.lister = Names()
    node.api.seed("/api/v1/namespaces/default/pods/p", late_pod())
    for _ in range(3):
        assert node.start() == "Late"
        node.clock.seconds += TRY_S
    node.show(late_pod())
    assert [node.start(), node.start()] == ["Late", ""]


def test_waiting_for_room_does_not_let_it_start_within_the_same_call(node: Node) -> None:
    older = bound_pod(make_grant(0, gib=12), name="older", assumed=0)
    node.show(older)
    node.show(late_pod())
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(node.start()))
    thread.start()
    node.show(older | {"status": {"phase": "Succeeded"}})
    thread.join()
    assert answers == ["Late"]
    assert node.events == []
    assert node.start() == ""


def test_waiting_for_the_watch_does_not_let_it_start_within_the_same_call(node: Node) -> None:
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(node.start()))
    thread.start()
    node.show(late_pod())
    thread.join()
    assert answers == ["Late"]
    assert node.start() == ""


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_REMEMBERED", 2)
    clock = ManualClock()
    cache = PodCache(clock)
    starts = LateStarts(cache=cache, clock=clock)
    for name in ("a", "b", "c"):
        cache.upsert(late_pod(name))
        starts.refuse(PodUid(f"uid-{name}"), (ContainerName("main"),))
    known = [starts.up_to_date(PodUid(f"uid-{name}"), (ContainerName("main"),)) for name in ("a", "b", "c")]
    assert known == [False, True, True]
