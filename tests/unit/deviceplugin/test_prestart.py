"""What is gathered before a decision, what is told of it, and pods that were bound late."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from deviceplugin import prestart, resources
from deviceplugin.decide import Accept, Decision, Reason, Refuse
from deviceplugin.identify import ListedContainer
from deviceplugin.inventory import InventoryFeed
from deviceplugin.node import Refusals
from deviceplugin.pods import PodCache
from deviceplugin.prestart import LateStarts, StartCheck
from gpushare.identity import ContainerName, PodUid
from gpushare.kube import api as kube
from gpushare.units import ResourceConfig
from testing.builders import Json, make_grant, make_inventory, make_ref
from testing.clock import ManualClock
from testing.deviceplugin.build import NODE, bound_pod, fields_of, handing_over, ids_of
from testing.deviceplugin.running import feed_with
from testing.fakes.kube import FakeKube

DEVICES = {"main": ids_of(3), "side": ids_of(3, first=10)}
POD = "/api/v1/namespaces/default/pods/p"


class Node:
    """A gate, and what it looks at."""

    def __init__(self, directory: Path) -> None:
        self.api, self.clock, self.listed = FakeKube(), ManualClock(), list[ListedContainer]()
        self.cache = PodCache(self.clock)
        self.start_check = StartCheck(
            node=NODE,
            resource_config=ResourceConfig(),
            feed=feed_with(make_inventory(15)),
            cache=self.cache,
            api=self.api,
            lister=lambda resource, _timeout_s: [one for one in self.listed if one.resource == resource.name],
            checkpoint=directory / "kubelet_internal_checkpoint",
            refusals=Refusals(api=self.api, clock=self.clock),
            late=LateStarts(cache=self.cache, clock=self.clock),
            hand_over=handing_over(),
        )

    def lists(self, name: str) -> None:
        main, ids = ContainerName("main"), DEVICES["main"]
        found = ListedContainer(resource="aliyun.com/gpu-mem", namespace="default", name=name, container=main, ids=ids)
        self.listed.append(found)

    def records(self, uid: str) -> None:
        entries = [
            {"PodUID": uid, "ContainerName": name, "ResourceName": "aliyun.com/gpu-mem", "DeviceIDs": sorted(ids)}
            for name, ids in DEVICES.items()
        ]
        self.start_check.checkpoint.write_bytes(orjson.dumps({"Data": {"PodDeviceEntries": entries}}))

    def knows(self, name: str = "p") -> None:
        """The kubelet tells of this pod in both ways."""
        self.lists(name)
        self.records(f"uid-{name}")

    def check(self, container: str = "main") -> Decision:
        return self.start_check.check(resources.MEMORY, sorted(DEVICES[container]))

    def refusal(self) -> Refuse:
        decision = self.check()
        assert isinstance(decision, Refuse)
        return decision

    def start(self, container: str = "main") -> str:
        """Reason of the refusal, or nothing."""
        decision = self.check(container)
        return "" if isinstance(decision, Accept) else decision.reason.value

    @contextmanager
    def starting(self, reason: str = "") -> Iterator[None]:
        """While the gate decides, which it does for this reason."""
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(self.start()))
        thread.start()
        yield
        thread.join()
        assert answers == [reason]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_without_a_checkpoint_the_api_server_tells_the_pod_of_that_name(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.api.seed(POD, bound_pod(name="p"))
    assert node.start() == ""
    node.start_check.checkpoint.write_text("{")
    assert node.start() == ""
    assert len(fields_of(caplog, "checkpoint unreadable")) == 2
    assert node.api.count("get") == 2


def test_without_a_checkpoint_a_predecessor_is_not_taken_for_the_pod(node: Node) -> None:
    old = bound_pod(name="p")
    node.cache.upsert(old | {"metadata": old["metadata"] | {"uid": "uid-old"}})
    node.lists("p")
    node.api.seed(POD, bound_pod(make_grant("GPU-9"), name="p"))
    assert node.start() == "GpuGone"


def test_a_new_pod_with_an_old_name_is_not_taken_for_it(node: Node) -> None:
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.records("uid-of-the-new-one")
    node.api.seed(POD, bound_pod(name="p"))
    assert node.start() == "UnknownPod"
    assert node.api.count("get") == 1


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda node: node.lists("p"), "the API server knows no pod default/p on node node-a; "),
        (lambda node: node.knows("p"), "the API server knows no pod default/p with uid uid-p on node node-a; "),
        (lambda node: node.records("uid-1"), "the API server knows no pod with uid uid-1 on node node-a; "),
    ],
)
def test_a_pod_that_the_api_server_does_not_know(node: Node, prepare: Callable[[Node], object], message: str) -> None:
    prepare(node)
    refusal = node.refusal()
    assert refusal.reason is Reason.UNKNOWN_POD
    assert refusal.message.startswith(message)
    assert node.api.count("create") == 0


def test_an_api_server_out_of_reach_or_a_pod_that_cannot_be_read(node: Node) -> None:
    node.lists("p")
    node.api.fail_next(lambda call: call.verb == "get", kube.UnreachableError("connection refused"))
    assert node.refusal() == Refuse(
        Reason.API_SILENT, "pod default/p cannot be read (connection refused); the kubelet will try again"
    )
    node.api.seed(POD, bound_pod(name="p") | {"spec": 3})
    assert node.start() == "ApiSilent"


def test_gpus_that_are_not_known_yet(node: Node) -> None:
    node.start_check.feed = InventoryFeed()
    node.cache.upsert(bound_pod(name="p"))
    node.knows()
    assert node.refusal().message == "the GPUs of node node-a are not known yet; the kubelet will try again"


def test_every_decision_is_one_log_line(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node.cache.upsert(bound_pod(name="p"))
    node.knows()
    node.check()
    node.cache.upsert(bound_pod(make_grant("GPU-9"), name="p"))
    node.check()
    assert fields_of(caplog, "container accepted") == [
        {"pod": "default/p", "containers": ("main",), "resource": "aliyun.com/gpu-mem", "gpus": ["GPU-0"]}
    ]
    (refused,) = fields_of(caplog, "container refused")
    assert (refused["pod"], refused["reason"]) == ("default/p", "GpuGone")


def test_what_is_told_and_remembered_is_short_however_much_an_author_has_written(node: Node) -> None:
    node.knows()
    node.cache.upsert(bound_pod(name="p", annotations={"devices.gpushare.dev/main": "x" * 100_000}))
    message = node.refusal().message
    assert len(message) < 500
    assert message.endswith("it was changed after the pod was bound; delete the pod and create it again")


def full(name: str, at: int = 0) -> Json:
    return bound_pod(make_grant(0, gib=13), name=name, assumed=at)


ENDED = {"status": {"phase": "Succeeded"}}


def test_a_pod_that_takes_the_place_of_one_that_just_ended_is_not_refused(node: Node) -> None:
    node.cache.replace([full("ended"), bound_pod(name="p")])
    node.knows()
    with node.starting():
        node.cache.upsert(full("ended") | ENDED)


def test_a_gpu_that_stays_full_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.prestart._CHANGE_S", 0.05)
    node.cache.replace([full("older"), bound_pod(name="p")])
    node.knows()
    assert node.start() == "OverCommitted"
    assert node.api.count("create", "events") == 1


# Pods that were given their GPUs after the kubelet had seen them.

TRY_S = 12.0  # a kubelet tries again after 10 to 15 s


def waiting() -> Json:
    return bound_pod(name="p", annotations={"gpushare.dev/allocation": None, "devices.gpushare.dev/main": None})


def late_pod(name: str = "p") -> Json:
    grants = [make_grant(0, container=container) for container in DEVICES]
    return bound_pod(*grants, name=name, annotations={"gpushare.dev/bound-late": "true"})


@pytest.fixture
def admitted(node: Node) -> Node:
    node.records("uid-p")  # the kubelet has noted whose devices they are
    return node


def test_a_refusal_takes_until_the_kubelet_has_seen_the_allocation_too(admitted: Node) -> None:
    admitted.cache.upsert(late_pod())
    admitted.clock.at += 1.0
    assert admitted.start() == "Late"
    assert (admitted.clock.waits, admitted.api.calls) == ([2.0], [])
    assert admitted.start() == ""


def test_a_kubelet_that_began_long_ago_does_not_have_the_allocation_however_long_it_has_been_shown(
    admitted: Node,
) -> None:
    admitted.cache.upsert(waiting())
    assert admitted.start() == "NotBound"
    admitted.cache.upsert(late_pod())
    admitted.clock.at += 300.0  # it has been pulling the image all the time, with the pod as it was before
    assert admitted.start() == "Late"
    assert admitted.clock.waits == []
    assert admitted.start() == ""


def test_every_container_is_begun_again_and_a_refusal_for_another_reason_does_not_count(admitted: Node) -> None:
    admitted.cache.upsert(late_pod())
    admitted.start_check.feed = feed_with(make_inventory())
    assert admitted.start() == "GpuGone"
    admitted.start_check.feed = feed_with(make_inventory(15))
    admitted.clock.at += 10.0
    starts = [(admitted.start("main"), admitted.start("side")) for _ in range(2)]
    assert starts == [("Late", "Late"), ("", "")]


def test_an_allocation_that_was_changed_or_is_new_to_a_restarted_plugin_has_to_be_seen_again(admitted: Node) -> None:
    admitted.cache.upsert(late_pod())
    assert [admitted.start(), admitted.start()] == ["Late", ""]
    changed = late_pod()
    allocation = orjson.loads(changed["metadata"]["annotations"]["gpushare.dev/allocation"])
    changed["metadata"]["annotations"]["gpushare.dev/allocation"] = orjson.dumps({**allocation, "new": 1}).decode()
    admitted.cache.upsert(changed)
    assert [admitted.start(), admitted.start()] == ["Late", ""]
    admitted.start_check.cache = restarted = PodCache(admitted.clock)
    admitted.start_check.late = LateStarts(cache=restarted, clock=admitted.clock)
    restarted.replace([late_pod()])
    assert [admitted.start(), admitted.start()] == ["Late", ""]
    assert admitted.clock.waits == [prestart.LAG_S] * 3


def test_the_mark_counts_whatever_it_says_and_a_pod_that_was_bound_in_time_is_not_held_up(admitted: Node) -> None:
    admitted.cache.upsert(bound_pod(name="p"))
    assert admitted.start() == ""
    assert (admitted.clock.waits, admitted.api.calls) == ([], [])
    for mark in ("true", "false", ""):
        admitted.cache.upsert(bound_pod(name="p", annotations={"gpushare.dev/bound-late": mark}))
        admitted.start_check.late = LateStarts(cache=admitted.cache, clock=admitted.clock)
        assert admitted.start() == "Late", mark


def test_a_pod_that_only_the_api_server_shows_is_not_started(admitted: Node) -> None:
    admitted.lists("p")
    admitted.api.seed(POD, late_pod())
    for _ in range(3):
        assert admitted.start() == "Late"
        admitted.clock.at += TRY_S
    admitted.cache.upsert(late_pod())
    assert [admitted.start(), admitted.start()] == ["Late", ""]


def test_waiting_for_room_or_the_watch_does_not_let_it_start_within_the_same_call(admitted: Node) -> None:
    with admitted.starting("Late"):
        admitted.cache.upsert(late_pod())
    assert admitted.start() == ""
    admitted.start_check.late = LateStarts(cache=admitted.cache, clock=admitted.clock)
    admitted.cache.replace([full("older"), late_pod()])
    with admitted.starting("Late"):
        admitted.cache.upsert(full("older") | ENDED)
    assert admitted.api.count("create") == 0
    assert admitted.start() == ""


def test_what_is_remembered_has_an_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "_REMEMBERED", 2)
    starts, main = node.start_check.late, (ContainerName("main"),)
    uids = [PodUid(f"uid-{name}") for name in "abc"]
    for uid in uids:
        node.cache.upsert(late_pod(uid.removeprefix("uid-")))
        starts.refuse(uid, main)
    assert [starts.up_to_date(uid, main) for uid in uids] == [False, True, True]


def tell(node: Node, pod: str = "pod", container: str = "main", gpu: str = "GPU-1") -> int:
    """How many Events are there then."""
    message = f"GPU {gpu} is gone"
    node.start_check.refusals.post(make_ref(pod), (container, message), "GpuRefused", message)
    return len(node.api.objects("/api/v1/namespaces/default/events"))


@pytest.mark.parametrize("at", [0.0, 1000.0])  # also right after the machine has started
def test_another_pod_container_or_message_is_news_and_after_half_an_hour_it_is_told_again(
    node: Node, at: float
) -> None:
    node.clock.at = at
    for seconds, posted in ((0, 1), (1799, 1), (2, 2)):
        node.clock.at += seconds
        assert tell(node) == posted
    for posted, news in enumerate(({"pod": "other"}, {"container": "side"}, {"gpu": "GPU-2"}), start=3):
        node.clock.at += 1
        assert tell(node, **news) == posted


def test_a_failure_is_logged_and_tried_at_the_next_refusal(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.api.fail_next(lambda call: call.verb == "create", kube.UnreachableError("connection refused"))
    assert tell(node) == 0
    assert fields_of(caplog, "event not posted") == [{"pod": "default/pod", "error": "connection refused"}]
    assert tell(node) == 1


def test_only_the_latest_refusals_are_remembered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.node._REMEMBERED", 2)
    assert [tell(node, pod) for pod in ("a", "b", "c", "c")] == [1, 2, 3, 3]
    node.clock.at += 1
    assert [tell(node, pod) for pod in ("c", "a")] == [3, 4]
