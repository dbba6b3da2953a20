"""The RuntimeClass is written only if it exists, and no admission waits long to find out."""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpushare.kube import api as kube
from gpushare.wire import requests
from testing.clock import ManualClock
from testing.manifests import tree
from testing.reviews import container, mutated, pod, review, rules
from tests.unit.webhook.conftest import denial, with_class
from webhook import mutation
from webhook.runtimeclass import Mode, RuntimeClass, RuntimeClassChoice, UnknownRuntimeClassError

CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
CONFIG_MAP = "/api/v1/namespaces/gpushare-system/configmaps/gpushare-hand-over"
POLICY = "/api/v1/namespaces/gpushare-system/configmaps/gpushare-runtime-class"
BY_CDI, THERE, MISSING = RuntimeClassChoice(None, only_cdi=True), RuntimeClassChoice("nvidia"), RuntimeClassChoice(None)
DOWN, NO, FORBIDDEN = kube.UnreachableError("down"), kube.NotFoundError("no"), kube.ForbiddenError("no")


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


def runtime_class(api: Api, clock: ManualClock, mode: Mode = Mode.IF_EXISTS) -> RuntimeClass:
    return RuntimeClass(api=api, clock=clock, name="nvidia", mode=mode)


def choice(mode: Mode = Mode.WHERE_NEEDED, api: Api | None = None, **answers: Any) -> RuntimeClassChoice:
    """Of a webhook that has just started."""
    return runtime_class(api or Api(**answers), ManualClock(0), mode).current()


def test_it_is_looked_up_with_a_short_deadline_at_most_every_ten_seconds() -> None:
    api, clock = Api(), ManualClock(0)
    found = runtime_class(api, clock)
    for at, answer, expected, calls in (
        *((0.0, None, THERE, 1), (9.9, NO, THERE, 1), (10.0, NO, MISSING, 2), (20.0, None, THERE, 3)),
        (30.0, DOWN, THERE, 4),  # without an answer the last one holds
        (30.1, DOWN, THERE, 4),  # not once for each pod while the server is down
    ):
        clock.at, api.answer = at, answer
        assert (found.current(), len(api.calls)) == (expected, calls)
    assert set(api.calls) == {(CLASS, 0.7)}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DOWN, "down"),
        (
            FORBIDDEN,
            "no; allow the webhook's ServiceAccount to get runtimeclasses of node.k8s.io, or set --runtime-class-mode"
            " to always or never",
        ),
    ],
)
def test_without_any_answer_nothing_is_assumed_and_it_is_asked_again_soon(
    caplog: pytest.LogCaptureFixture, error: kube.KubeError, told: str
) -> None:
    api, clock = Api(error), ManualClock(0)
    found = runtime_class(api, clock)
    message = f"it is not known yet whether RuntimeClass nvidia exists ({told}); try again"
    for at, calls in ((0.0, 1), (0.9, 1), (1.0, 2), (2.0, 3)):
        clock.at = at
        with pytest.raises(UnknownRuntimeClassError, match=f"^{re.escape(message)}$"):
            found.current()
        assert len(api.calls) == calls
    assert caplog.messages == ["not looked up"] * (1 if error is FORBIDDEN else 3)  # nothing changes until someone acts
    clock.at, api.answer = 3.0, None
    assert found.current() == THERE
    clock.at, api.answer = 20.0, error
    assert found.current() == THERE
    assert caplog.messages == ["not looked up"] * (2 if error is FORBIDDEN else 4)


def test_gpu_pods_alone_have_to_come_again_while_it_is_unknown() -> None:
    """The API server gives up after 3 seconds on the webhook for pods without GPUs, and creates them as they are."""
    api, clock = Api(DOWN), ManualClock(0)
    webhook = with_class(runtime_class(api, clock), clock)
    assert webhook.ask("/mutate", review(pod(container())))["allowed"]
    assert webhook.ask("/isolate", review(pod(container())))["allowed"]
    assert webhook.ask("/mutate", review(pod(container(gpu_mem=2), runtimeClassName="mine")))["allowed"]
    assert webhook.ask("/mutate", review(pod(container(gpu_mem="x"))))["status"]["code"] == 400
    assert api.calls == []
    message = "it is not known yet whether RuntimeClass nvidia exists (down); try again"
    asked = review(pod(container(gpu_mem=2)))
    assert webhook.ask("/mutate", asked) == denial(503, "ServiceUnavailable", message)
    clock.at, api.answer = 1.0, NO
    assert "runtimeClassName" not in webhook.admit("/mutate", asked)["spec"]


def test_a_refusal_of_another_class_and_a_fixed_choice_concern_no_look() -> None:
    for mode, expected in [(Mode.ALWAYS, THERE), (Mode.NEVER, MISSING)]:
        api = Api()
        assert choice(mode, api) == expected
        assert api.calls == []
    api = Api(word="mixed", refuse="always")
    found = RuntimeClass(api=api, clock=ManualClock(0), name="gpus", mode=Mode.WHERE_NEEDED)
    assert found.current() == RuntimeClassChoice("gpus")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("cdi", BY_CDI), *((word, THERE) for word in ("envvar", "mixed", "none", "", "CDI", "later", NO, FORBIDDEN))],
)
def test_it_is_left_out_where_every_node_hands_over_by_cdi(
    word: kube.KubeError | str, expected: RuntimeClassChoice
) -> None:
    api = Api(word=word)
    assert choice(api=api) == expected
    assert api.calls == [(CONFIG_MAP, 0.7), *([] if expected == BY_CDI else [(POLICY, 0.7), (CLASS, 0.7)])]
    assert choice(word=word, answer=NO) == (BY_CDI if word == "cdi" else MISSING)
    assert choice(Mode.IF_EXISTS, word="cdi") == THERE


@pytest.mark.parametrize(
    ("refuse", "expected"),
    [*((word, BY_CDI) for word in ("always", "alway", "")), *((word, THERE) for word in ("nothing", NO, FORBIDDEN))],
)
def test_it_is_left_out_where_an_administrator_refuses_it_to_all_pods(
    refuse: kube.KubeError | str, expected: RuntimeClassChoice
) -> None:
    """Also while a node joins that has not said how it hands over: no GPU pod could be created meanwhile."""
    assert choice(word="mixed", refuse=refuse) == expected
    assert choice(Mode.IF_EXISTS, word="mixed", refuse=refuse) == THERE


@pytest.mark.parametrize("server", ["1.20", "1.25", "1.30"])
def test_an_api_server_that_does_not_answer_costs_less_time_than_a_pods_creation_has(server: str) -> None:
    """What was said before holds then."""
    api, clock = Api(), ManualClock(0)
    found = runtime_class(api, clock, Mode.WHERE_NEEDED)
    found.current()
    api.calls.clear()
    clock.at = 10.0
    api.answer = api.word = api.refuse = DOWN
    assert found.current() == THERE
    waited_s = sum(timeout_s for _, timeout_s in api.calls)
    [config] = [each for each in tree.objects(f"servers/{server}") if each["kind"] == "MutatingWebhookConfiguration"]
    paths = {"/mutate", "/enforce"}
    limits = {each["timeoutSeconds"] for each in config["webhooks"] if each["clientConfig"]["service"]["path"] in paths}
    assert waited_s < min(limits) * 0.75


def test_while_no_one_has_said_whether_it_is_needed_gpu_pods_wait_and_then_the_last_word_holds() -> None:
    api, clock = Api(word=DOWN), ManualClock(0)
    found = runtime_class(api, clock, Mode.WHERE_NEEDED)
    message = "it is not known yet whether GPU pods need RuntimeClass nvidia (down); try again"
    with pytest.raises(UnknownRuntimeClassError, match=f"^{re.escape(message)}$"):
        found.current()
    for at, word, expected in (
        *((1.0, "cdi", BY_CDI), (10.9, "mixed", BY_CDI), (11.0, "mixed", THERE), (21.0, DOWN, THERE)),
        *((31.0, "cdi", BY_CDI), (41.0, FORBIDDEN, BY_CDI)),
    ):
        clock.at, api.word = at, word
        assert found.current() == expected


def test_a_word_that_cannot_be_read_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Api):
        def get(self, path: str, params: object = None, *, timeout_s: float = 5.0) -> Any:
            return {"data": 4}

    with pytest.raises(UnknownRuntimeClassError, match="gpushare-hand-over"):
        choice(api=Odd())
    assert caplog.messages == ["not looked up"]


def test_a_pod_without_a_runtime_class_is_marked_for_nodes_that_need_none() -> None:
    cdi = rules(runtime_class=None, only_cdi=True)
    made = mutated(pod(container("a", gpu_mem=2)), cdi)
    assert "runtimeClassName" not in made["spec"]
    assert made["metadata"]["annotations"] == {"gpushare.dev/hand-over": "cdi"}
    assert mutation.mutate(made, cdi) is None
    request = requests.of_pod(made, cdi.resource_config)
    assert request is not None
    assert request.shape.only_cdi
    # The nodes have changed before the webhook is called for the same pod again.
    again = mutated(made)
    assert (again["spec"]["runtimeClassName"], again["metadata"]["annotations"]) == ("nvidia", {})
    assert "annotations" not in mutated(pod(container("a", gpu_mem=2), runtimeClassName="mine"), cdi)["metadata"]
