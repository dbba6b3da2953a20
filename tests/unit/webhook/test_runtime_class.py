"""The RuntimeClass is written only if it exists, and no admission waits long to find out."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.kube import api as kube
from gpushare.wire import requests
from testing.manifests import tree
from testing.reviews import RULES, Json, container, pod, review
from tests.unit.webhook.conftest import Webhook
from webhook import mutation
from webhook.app import Services, create_app
from webhook.metrics import Metrics
from webhook.mutation import Mutated, Untouched
from webhook.runtimeclass import Choice, Mode, RuntimeClass, UnknownRuntimeClassError
from webhook.settings import Settings


@dataclass
class Clock:
    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.seconds += seconds
        return stop.is_set()


CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
CONFIG_MAP = "/api/v1/namespaces/gpushare-system/configmaps/gpushare-hand-over"
POLICY = "/api/v1/namespaces/gpushare-system/configmaps/gpushare-runtime-class"


@dataclass
class Api:
    """`answer` is an error or None for success; the controller's word on the nodes is an error, or that word, and so is
    the administrator's on the RuntimeClass."""

    answer: kube.KubeError | None = None
    word: kube.KubeError | str = ""
    refuse: kube.KubeError | str = "without-gpus"
    calls: list[tuple[str, float]] = field(default_factory=list)

    def get(self, path: str, params: object = None, *, timeout_s: float = 5.0) -> Any:
        self.calls.append((path, timeout_s))
        answer = {CONFIG_MAP: self.word, POLICY: self.refuse}.get(path, self.answer)
        if isinstance(answer, kube.KubeError):
            raise answer
        if path == POLICY:
            return {"data": {"names": "nvidia-cdi, nvidia", "refuse": answer}}
        return {"data": {"hand-over": answer}} if answer else {}

    def __getattr__(self, verb: str) -> Any:
        raise AssertionError(f"{verb} is not needed")


def runtime_class(api: Api, clock: Clock, mode: Mode = Mode.IF_EXISTS) -> RuntimeClass:
    return RuntimeClass(api=api, clock=clock, name="nvidia", mode=mode)


def test_it_is_looked_up_with_a_short_deadline_at_most_every_ten_seconds() -> None:
    api, clock = Api(), Clock()
    found = runtime_class(api, clock)
    assert [found.current().name, found.current().name] == ["nvidia", "nvidia"]
    assert api.calls == [(CLASS, 0.7)]
    clock.seconds = 9.9
    assert (found.current().name, len(api.calls)) == ("nvidia", 1)
    clock.seconds, api.answer = 10.0, kube.NotFoundError("no")
    assert (found.current().name, len(api.calls)) == (None, 2)


def test_without_an_answer_the_last_one_holds() -> None:
    api, clock = Api(), Clock()
    found = runtime_class(api, clock)
    assert found.current().name == "nvidia"
    clock.seconds, api.answer = 10.0, kube.UnreachableError("down")
    assert [found.current().name, found.current().name] == ["nvidia", "nvidia"]
    assert len(api.calls) == 2  # not once for each pod while the server is down


def test_one_that_is_created_later_is_found_within_ten_seconds() -> None:
    api, clock = Api(kube.NotFoundError("no")), Clock()
    found = runtime_class(api, clock)
    assert found.current().name is None
    clock.seconds, api.answer = 10.0, None
    assert found.current().name == "nvidia"


def test_without_any_answer_nothing_is_assumed_and_it_is_asked_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = Api(kube.UnreachableError("down")), Clock()
    found = runtime_class(api, clock)
    for _ in range(2):
        with pytest.raises(
            UnknownRuntimeClassError,
            match=r"^it is not known yet whether RuntimeClass nvidia exists \(down\); try again$",
        ):
            found.current()
    assert len(api.calls) == 1
    assert caplog.messages == ["not looked up"]
    clock.seconds, api.answer = 1.0, None
    assert found.current().name == "nvidia"


FORBIDDEN = (
    "no; allow the webhook's ServiceAccount to get runtimeclasses of node.k8s.io,"
    " or set --runtime-class-mode to always or never"
)


def test_a_look_that_is_forbidden_is_no_answer_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = Api(kube.ForbiddenError("no")), Clock()
    found = runtime_class(api, clock)
    for second in range(5):
        clock.seconds = float(second)
        with pytest.raises(UnknownRuntimeClassError, match=re.escape(f"({FORBIDDEN})")):
            found.current()
    assert caplog.messages == ["not looked up"]
    clock.seconds, api.answer = 10.0, None
    assert found.current().name == "nvidia"
    clock.seconds, api.answer = 20.0, kube.ForbiddenError("no")
    assert found.current().name == "nvidia"


@pytest.fixture
def down() -> Api:
    return Api(kube.UnreachableError("down"))


@pytest.fixture
def ignorant(down: Api) -> Iterator[Webhook]:
    """A webhook that has not reached the API server since its start."""
    clock = Clock()
    services = Services(
        clock=clock,
        metrics=Metrics(lambda: None, lambda: None),
        runtime_class=runtime_class(down, clock),
        not_ready=lambda: "",
    )
    with create_app(Settings(), services).test_client() as http:
        yield Webhook(http, services.metrics)


def test_gpu_pods_have_to_come_again_while_it_is_unknown(ignorant: Webhook) -> None:
    response = ignorant.ask("/mutate", review(pod(container(gpu_mem=2))))
    assert response["allowed"] is False
    assert response["status"] == {
        "code": 503,
        "reason": "ServiceUnavailable",
        "message": "it is not known yet whether RuntimeClass nvidia exists (down); try again",
    }


def test_pods_that_it_does_not_concern_are_decided_without_a_look(ignorant: Webhook, down: Api) -> None:
    """The API server gives up after 3 seconds on the webhook for pods without GPUs, and creates them as they are."""
    assert ignorant.ask("/mutate", review(pod(container())))["allowed"]
    assert ignorant.ask("/isolate", review(pod(container())))["allowed"]
    assert ignorant.ask("/mutate", review(pod(container(gpu_mem=2), runtimeClassName="mine")))["allowed"]
    assert ignorant.ask("/mutate", review(pod(container(gpu_mem="x"))))["status"]["code"] == 400
    assert down.calls == []


@pytest.mark.parametrize(("mode", "expected"), [(Mode.ALWAYS, "nvidia"), (Mode.NEVER, None)])
def test_a_fixed_choice_needs_no_look(mode: Mode, expected: str | None) -> None:
    api = Api()
    assert runtime_class(api, Clock(), mode).current() == Choice(expected)
    assert api.calls == []


BY_CDI = Choice(None, only_cdi=True)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cdi", BY_CDI),
        *((word, Choice("nvidia")) for word in ("envvar", "volume-mounts", "mixed", "none", "", "CDI", "later")),
        (kube.NotFoundError("no"), Choice("nvidia")),
        (kube.ForbiddenError("no"), Choice("nvidia")),
    ],
)
def test_it_is_left_out_where_every_node_hands_over_by_cdi(word: kube.KubeError | str, expected: Choice) -> None:
    api = Api(word=word)
    assert runtime_class(api, Clock(), Mode.WHERE_NEEDED).current() == expected
    assert api.calls == [(CONFIG_MAP, 0.7), *([] if expected == BY_CDI else [(POLICY, 0.7), (CLASS, 0.7)])]
    api.answer = kube.NotFoundError("no")
    assert runtime_class(api, Clock(), Mode.WHERE_NEEDED).current() == (BY_CDI if word == "cdi" else Choice(None))
    assert runtime_class(Api(word="cdi"), Clock(), Mode.IF_EXISTS).current() == Choice("nvidia")


@pytest.mark.parametrize(
    ("refuse", "expected"),
    [
        ("always", BY_CDI),
        ("alway", BY_CDI),
        ("", BY_CDI),
        ("without-gpus", Choice("nvidia")),
        ("nothing", Choice("nvidia")),
        (kube.NotFoundError("no"), Choice("nvidia")),
        (kube.ForbiddenError("no"), Choice("nvidia")),
    ],
)
def test_it_is_left_out_where_an_administrator_refuses_it_to_all_pods(
    refuse: kube.KubeError | str, expected: Choice
) -> None:
    """Also while a node joins that has not said how it hands over: no GPU pod could be created meanwhile."""
    api = Api(word="mixed", refuse=refuse)
    assert runtime_class(api, Clock(), Mode.WHERE_NEEDED).current() == expected
    assert runtime_class(api, Clock(), Mode.IF_EXISTS).current() == Choice("nvidia")


@pytest.mark.parametrize("server", ["1.20", "1.25", "1.30"])
def test_an_api_server_that_does_not_answer_costs_less_time_than_a_pods_creation_has(server: str) -> None:
    """What was said before holds then."""
    api, clock = Api(), Clock()
    found = runtime_class(api, clock, Mode.WHERE_NEEDED)
    found.current()
    api.calls.clear()
    clock.seconds = 10.0
    api.answer = api.word = api.refuse = kube.UnreachableError("timed out")
    assert found.current() == Choice("nvidia")
    waited_s = sum(timeout_s for _, timeout_s in api.calls)
    [config] = [
        each
        for each in tree.documents(tree.MANIFESTS / f"servers/{server}/webhooks.yaml")
        if each["kind"] == "MutatingWebhookConfiguration"
    ]
    paths = {"/mutate", "/enforce"}
    limits = {each["timeoutSeconds"] for each in config["webhooks"] if each["clientConfig"]["service"]["path"] in paths}
    assert waited_s < min(limits) * 0.75


def test_a_refusal_of_another_class_is_none_of_this_one() -> None:
    api = Api(word="mixed", refuse="always")
    found = RuntimeClass(api=api, clock=Clock(), name="gpus", mode=Mode.WHERE_NEEDED)
    assert found.current() == Choice("gpus")


def test_a_node_that_needs_it_is_noticed_within_ten_seconds_and_the_last_word_holds() -> None:
    api, clock = Api(word="cdi"), Clock()
    found = runtime_class(api, clock, Mode.WHERE_NEEDED)
    assert found.current() == BY_CDI
    api.word, clock.seconds = "mixed", 9.9
    assert found.current() == BY_CDI
    clock.seconds = 10.0
    assert found.current() == Choice("nvidia")
    api.word, clock.seconds = kube.UnreachableError("down"), 20.0
    assert found.current() == Choice("nvidia")
    api.word, clock.seconds = "cdi", 30.0
    assert found.current() == BY_CDI
    api.word, clock.seconds = kube.ForbiddenError("no"), 40.0
    assert found.current() == BY_CDI


def test_while_no_one_has_said_whether_it_is_needed_gpu_pods_wait() -> None:
    api, clock = Api(word=kube.UnreachableError("down")), Clock()
    found = runtime_class(api, clock, Mode.WHERE_NEEDED)
    with pytest.raises(
        UnknownRuntimeClassError,
        match=r"^it is not known yet whether GPU pods need RuntimeClass nvidia \(down\); try again$",
    ):
        found.current()
    api.word, clock.seconds = "cdi", 1.0
    assert found.current() == BY_CDI


def test_a_word_that_cannot_be_read_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Api):
        def get(self, path: str, params: object = None, *, timeout_s: float = 5.0) -> Any:
            return {"data": 4}

    with pytest.raises(UnknownRuntimeClassError, match="gpushare-hand-over"):
        runtime_class(Odd(), Clock(), Mode.WHERE_NEEDED).current()
    assert caplog.messages == ["not looked up"]


def test_a_pod_without_a_runtime_class_is_marked_for_nodes_that_need_none() -> None:
    rules = replace(RULES, runtime_class=None, only_cdi=True)
    marked = {"gpushare.dev/hand-over": "cdi"}
    wanted = pod(container("a", gpu_mem=2))
    decision = mutation.mutate(wanted, rules)
    assert isinstance(decision, Mutated)
    assert "runtimeClassName" not in decision.pod["spec"]
    assert decision.pod["metadata"]["annotations"] == marked
    assert mutation.mutate(decision.pod, rules) == Untouched()
    request = requests.of_pod(decision.pod, rules.resource_config)
    assert request is not None
    assert request.shape.only_cdi

    # The nodes have changed before the webhook is called for the same pod again.
    again = mutation.mutate(decision.pod, RULES)
    assert isinstance(again, Mutated)
    assert again.pod["spec"]["runtimeClassName"] == "nvidia"
    assert again.pod["metadata"]["annotations"] == {}


@pytest.mark.parametrize("spec", [{"runtimeClassName": "nvidia"}, {"runtimeClassName": "mine"}])
def test_a_pod_with_a_runtime_class_of_its_authors_is_not_marked(spec: Json) -> None:
    rules = replace(RULES, runtime_class=None, only_cdi=True)
    decision = mutation.mutate(pod(container("a", gpu_mem=2), **spec), rules)
    assert isinstance(decision, Mutated)
    assert "annotations" not in decision.pod["metadata"]


@pytest.mark.parametrize("wanted", [container("a"), container("a", gpu_mem=2)])
def test_the_mark_is_the_webhooks(wanted: Json) -> None:
    decision = mutation.mutate(pod(wanted, annotations={"gpushare.dev/hand-over": "cdi"}), RULES)
    assert isinstance(decision, Mutated)
    assert decision.pod["metadata"]["annotations"] == {}
    assert decision.warnings == (
        "annotation removed, because only gpushare-webhook may write it: gpushare.dev/hand-over",
    )
