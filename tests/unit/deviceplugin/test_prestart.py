"""What is gathered before a decision, and what is done when some of it is missing."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from deviceplugin import resources
from deviceplugin.decision import Accept, Decision, Reason, Refuse
from deviceplugin.identify import Listed, ListerError
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.late import LateStarts
from deviceplugin.pods import PodCache
from deviceplugin.prestart import StartCheck
from deviceplugin.refusals import Refusals
from deviceplugin.resources import Resource
from gpushare.identity import ContainerName
from gpushare.kube import api as kube
from gpushare.resource_config import ResourceConfig
from gpushare.runtime.clock import SystemClock
from testing.builders import Json, make_grant, make_inventory
from testing.deviceplugin.build import NODE, bound_pod, fields_of, handing_over
from testing.deviceplugin.running import feed_with
from testing.fakes.kube import FakeKube

IDS = ["g00a", "g00b", "g00c"]


@dataclass
class TableLister:
    """See Lister."""

    table: list[Listed] = field(default_factory=list)
    error: str = ""

    def list(self, resource: Resource, timeout_s: float) -> Sequence[Listed]:
        if self.error:
            raise ListerError(self.error)
        return [one for one in self.table if one.resource == resource.name]


@dataclass(kw_only=True)
class Node:
    """A gate and all it looks at."""

    start_check: StartCheck
    api: FakeKube
    cache: PodCache
    lister: TableLister

    def lists(self, name: str, container: str = "main") -> None:
        self.lister.table.append(
            Listed(
                resource="aliyun.com/gpu-mem",
                namespace="default",
                name=name,
                container=ContainerName(container),
                ids=frozenset(IDS),
            )
        )

    def records(self, uid: str, *containers: str) -> None:
        entries = [
            {"PodUID": uid, "ContainerName": name, "ResourceName": "aliyun.com/gpu-mem", "DeviceIDs": IDS}
            for name in containers or ("main",)
        ]
        self.start_check.checkpoint.write_bytes(orjson.dumps({"Data": {"PodDeviceEntries": entries}}))

    def check(self) -> Decision:
        return self.start_check.check(resources.MEMORY, IDS)

    def refusal(self) -> Refuse:
        decision = self.check()
        assert isinstance(decision, Refuse)
        return decision


@pytest.fixture
def node(tmp_path: Path) -> Node:
    clock = SystemClock()
    api, cache, lister = FakeKube(), PodCache(clock), TableLister()
    start_check = StartCheck(
        node=NODE,
        resource_config=ResourceConfig(),
        feed=feed_with(make_inventory(15)),
        cache=cache,
        api=api,
        lister=lister,
        checkpoint=tmp_path / "kubelet_internal_checkpoint",
        refusals=Refusals(api=api, clock=clock),
        late=LateStarts(cache=cache, clock=clock),
        hand_over=handing_over(),
    )
    return Node(start_check=start_check, api=api, cache=cache, lister=lister)


def test_a_known_pod_needs_no_request(node: Node) -> None:
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.records("uid-p")
    assert isinstance(node.check(), Accept)
    assert node.api.calls == []


def test_without_a_checkpoint_the_api_server_tells_the_pod_of_that_name(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.api.seed("/api/v1/namespaces/default/pods", bound_pod(name="p"))
    assert isinstance(node.check(), Accept)
    node.start_check.checkpoint.write_text("{")
    assert isinstance(node.check(), Accept)
    assert len(fields_of(caplog, "checkpoint unreadable")) == 2
    assert node.api.count("get") == 2


def test_without_a_checkpoint_a_predecessor_is_not_taken_for_the_pod(node: Node) -> None:
    old = bound_pod(name="web-0")
    node.cache.upsert(old | {"metadata": old["metadata"] | {"uid": "uid-old"}})
    node.lists("web-0")
    node.api.seed("/api/v1/namespaces/default/pods", bound_pod(make_grant("GPU-9"), name="web-0"))
    assert node.refusal().reason is Reason.GPU_GONE


def test_a_pod_whose_name_only_the_watch_can_tell_is_waited_for(node: Node) -> None:
    node.records("uid-p")
    answers: list[Decision] = []
    thread = threading.Thread(target=lambda: answers.append(node.check()))
    thread.start()
    node.cache.upsert(bound_pod(name="p"))
    thread.join()
    assert isinstance(answers[0], Accept)
    assert node.api.calls == []


def test_a_new_pod_with_an_old_name_is_not_taken_for_it(node: Node) -> None:
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.records("uid-of-the-new-one")
    node.api.seed("/api/v1/namespaces/default/pods/p", bound_pod(name="p"))
    assert node.refusal().reason is Reason.UNKNOWN_POD
    assert node.api.count("get") == 1


def test_pod_resources_out_of_reach(node: Node) -> None:
    node.lister.error = "the kubelet's PodResources API does not answer"
    assert node.refusal() == Refuse(Reason.KUBELET_SILENT, "the kubelet's PodResources API does not answer")


def test_devices_of_no_one(node: Node) -> None:
    assert node.refusal() == Refuse(
        Reason.UNIDENTIFIED,
        "neither PodResources nor kubelet_internal_checkpoint knows a container with exactly the devices g00a, g00b,"
        " g00c; the"
        " kubelet will try again",
    )


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda node: node.lists("p"), "the API server knows no pod default/p on node node-a; "),
        (
            lambda node: (node.lists("p"), node.records("uid-1")),
            "the API server knows no pod default/p with uid uid-1 on node node-a; ",
        ),
        (lambda node: node.records("uid-1"), "the API server knows no pod with uid uid-1 on node node-a; "),
    ],
)
def test_a_pod_that_the_api_server_does_not_know(node: Node, prepare: Callable[[Node], object], message: str) -> None:
    prepare(node)
    refusal = node.refusal()
    assert refusal.reason is Reason.UNKNOWN_POD
    assert refusal.message.startswith(message)
    assert node.api.count("create") == 0


def test_an_api_server_out_of_reach(node: Node) -> None:
    node.lists("p")
    node.api.fail_next(lambda call: call.verb == "get", kube.UnreachableError("connection refused"))
    assert node.refusal() == Refuse(
        Reason.API_SILENT, "pod default/p cannot be read (connection refused); the kubelet will try again"
    )


def test_gpus_that_are_not_known_yet(node: Node) -> None:
    node.start_check.feed = InventoryFeed()
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.records("uid-p")
    assert node.refusal().message == "the GPUs of node node-a are not known yet; the kubelet will try again"


def test_every_decision_is_one_log_line(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node.cache.upsert(bound_pod(name="p"))
    node.lists("p")
    node.records("uid-p")
    node.check()
    node.cache.upsert(bound_pod(make_grant("GPU-9"), name="p"))
    node.check()
    assert fields_of(caplog, "container accepted") == [
        {"pod": "default/p", "containers": ("main",), "resource": "aliyun.com/gpu-mem", "gpus": ["GPU-0"]}
    ]
    (refused,) = fields_of(caplog, "container refused")
    assert (refused["pod"], refused["reason"]) == ("default/p", "GpuGone")


def test_what_is_told_and_remembered_is_short_however_much_an_author_has_written(node: Node) -> None:
    node.lists("p")
    node.records("uid-p")
    node.cache.upsert(bound_pod(name="p", node="x" * 100_000))
    assert len(node.refusal().message) == 2048
    node.cache.upsert(bound_pod(name="p", annotations={"devices.gpushare.dev/main": "x" * 100_000}))
    message = node.refusal().message
    assert len(message) < 500
    assert message.endswith("it was changed after the pod was bound; delete the pod and create it again")


def full(name: str, at: int) -> Json:
    return bound_pod(make_grant(0, gib=13), name=name, assumed=at)


def test_a_pod_that_takes_the_place_of_one_that_just_ended_is_not_refused(node: Node) -> None:
    ended, mine = full("ended", 1), bound_pod(make_grant(0, gib=3), name="mine", assumed=2)
    node.cache.replace([ended, mine])
    node.lists("mine")
    node.records("uid-mine")
    answers: list[Decision] = []
    thread = threading.Thread(target=lambda: answers.append(node.check()))
    thread.start()
    node.cache.upsert(ended | {"status": {"phase": "Succeeded"}})
    thread.join()
    assert isinstance(answers[0], Accept)


def test_a_gpu_that_stays_full_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.prestart._CHANGE_S", 0.05)
    node.cache.replace([full("older", 1), bound_pod(make_grant(0, gib=3), name="mine", assumed=2)])
    node.lists("mine")
    node.records("uid-mine")
    assert node.refusal().reason is Reason.OVER_COMMITTED
    assert node.api.count("create", "events") == 1


def test_a_pod_that_cannot_be_read_is_refused(node: Node) -> None:
    node.lists("p")
    node.api.seed("/api/v1/namespaces/default/pods", bound_pod(name="p") | {"spec": 3})
    assert node.refusal().reason is Reason.API_SILENT
