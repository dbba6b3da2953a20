"""Which webhooks the API server asks about a request, by their rules, selectors and conditions.

A recorder that admits everything is in our webhook's place.
"""

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from localcluster.apiserver import WEBHOOKS
from testing.fakes import http_server
from tests.apiserver.policies import container, pod
from tests.apiserver.server import Json, Server, refusal

GPU, LIMIT, WHOLE = "gpu.gpushare.dev", "limit.gpushare.dev", "whole.gpushare.dev"
ISOLATION, BINDING, REQUEST = "isolation.gpushare.dev", "binding.gpushare.dev", "request.gpushare.dev"
SPACE, STRICT = "asked", "asked-strict"
CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1"
CONTROLLER: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.SERVICE_ACCOUNT_CONTROLLER}"
MANAGED: Final[Json] = {names.LABEL_MANAGED: "true"}
RESERVED: Final = [*sorted(names.RESERVED_ANNOTATIONS), *(f"{prefix}main" for prefix in names.RESERVED_PREFIXES)]
FIXED: Final = [*names.REQUEST_ANNOTATIONS, *names.WEBHOOK_ANNOTATIONS]
FIXED_LABELS: Final = [names.LABEL_GPU_COUNT, names.NANO_ASSUME]
OURS: Final = [*names.SHARED_RESOURCES, names.GPU_CORE, names.GPU_COUNT]
CONFIG: Final = {"GPUSHARE_WHOLE_GPUS": "true"}
"""One webhook more than without; the others are the same."""
UPDATES: Final = ("", "status")
"""By which annotations and labels change: the API server drops such changes of other subresources."""
FIRST: Final = container("first")


def asking(resource: str, field: str = "limits") -> Json:
    return container("second", resources={field: {"cpu": "1", resource: "3"}})


def many(count: int) -> Json:
    return {f"a{i}": "" for i in range(count)}


FORGED: Final = pod(annotations={f"{names.PREFIX_DEVICES}first": "all"})
BARE, OWNED, BOUND, MOST, MORE = "bare", "owned", "bound", "most", "more"
EXISTING: Final = [
    pod(name=BARE),
    pod(FIRST, asking(names.GPU_MEM), name=OWNED, labels=MANAGED),
    pod(
        FIRST,
        asking(names.GPU_MEM),
        name=BOUND,
        annotations=dict.fromkeys([*RESERVED, *FIXED], "1"),
        labels={**MANAGED, **dict.fromkeys(FIXED_LABELS, "1")},
    ),
    pod(name=MOST, annotations=many(1000)),
    pod(name=MORE, annotations=many(1001)),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """Names of the webhooks that are asked, sorted."""

    server: Server
    recorded: list[str]

    def by(self, call: Callable[[], object]) -> list[str]:
        self.recorded.clear()
        call()
        return sorted(self.recorded)

    def of_new(self, value: Json, namespace: str = SPACE) -> list[str]:
        return self.by(partial(self.server.admitted, namespace, value))

    def of_change(self, name: str, metadata: Json, sub: str = "", user: RestClient | None = None) -> list[str]:
        return self._of_patch(name, {"metadata": metadata}, sub, user or self.server.api)

    def of_mark(self, name: str, key: str, value: str | None, sub: str = "") -> list[str]:
        return self.of_change(name, {"annotations": {key: value}}, sub)

    def of_ephemeral(self, name: str) -> list[str]:
        body = {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}
        return self._of_patch(name, body, "ephemeralcontainers", self.server.api)

    def _of_patch(self, name: str, body: Json, sub: str, user: RestClient) -> list[str]:
        path, kind = kube.pod_path(SPACE, name, sub), kube.PatchKind.STRATEGIC
        return self.by(lambda: user.patch(path, body, kind=kind, params={"dryRun": "All"}, timeout_s=30))

    def of_binding(
        self, metadata: Json, path: str = f"pods/{BARE}/binding", user: RestClient | None = None
    ) -> list[str]:
        body = {"metadata": {"name": BARE, **metadata}, "target": {"kind": "Node", "name": "n"}}
        at = f"/api/v1/namespaces/{SPACE}/{path}"
        return self.by(lambda: (user or self.server.api).create(at, body, params={"dryRun": "All"}))


@pytest.fixture(scope="module")
def asked(policies: Server) -> Iterator[Asked]:
    running = policies.running
    recorded: list[str] = []

    class Recorder(http_server.Handler):
        def do_POST(self) -> None:
            recorded.append(urlsplit(self.path).path[1:])
            answer = {"uid": json.loads(self.body())["request"]["uid"], "allowed": True}
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
            self.send(200, json.dumps(review).encode())

    pair = running.control.authority.issue("recorder", "recorder", subjects=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    configurations = [each for each in running.rendered(CONFIG) if each["kind"] in WEBHOOKS]
    made = Asked(policies, recorded)
    policies.create_namespace(SPACE)
    policies.create_namespace(STRICT, {names.ANNOTATION_LIMIT: names.ENFORCED})
    with http_server.serving(Recorder, context=context) as url:
        for hook in (hook for each in configurations for hook in each["webhooks"]):
            bundle = base64.b64encode(running.control.authority.certificate.read_bytes()).decode()
            hook["clientConfig"] = {"url": f"{url}/{hook['name']}", "caBundle": bundle}
        running.create(configurations)
        policies.eventually("the webhooks are asked", lambda: made.of_new(FORGED) == [BINDING, ISOLATION])
        for each in EXISTING:
            policies.create_pod(SPACE, each)
        yield made
        for each in configurations:
            policies.api.delete(f"{CONFIGURATIONS}/{each['kind'].lower()}s/{each['metadata']['name']}")
        policies.eventually("no webhook is asked", lambda: made.of_new(FORGED) == [])
    for each in EXISTING:
        policies.delete_pod(SPACE, each["metadata"]["name"])


@pytest.fixture(scope="module")
def controller(policies: Server) -> RestClient:
    return policies.user(CONTROLLER)


@pytest.mark.parametrize(("resource", "webhooks"), [*((each, [GPU]) for each in OURS), (names.GPU, [ISOLATION, WHOLE])])
def test_a_pod_that_names_a_managed_resource_needs_the_webhook(
    asked: Asked, resource: str, webhooks: list[str]
) -> None:
    limit, request = asking(resource), asking(resource, "requests")
    assert asked.of_new(pod(FIRST, limit)) == webhooks
    assert asked.of_new(pod(init=(FIRST, limit))) == webhooks
    # Without a limit the API server refuses such a request, once the webhook has had its say.
    for value in (pod(FIRST, request), pod(init=(FIRST, request))):
        assert asked.by(partial(refusal, partial(asked.server.admitted, SPACE, value))) == webhooks


@pytest.mark.parametrize(
    "other",
    [
        pod(),
        pod(container("c", resources={})),
        pod(asking("memory")),
        pod(asking("memory", "requests")),
        pod(asking("nvidia.com/mig-1g.5gb")),
        pod(init=(asking("nvidia.com/gpu.shared"),)),
        pod(init=(FIRST, asking("aliyun.com/gpu-mem2"))),
        pod(labels={names.LABEL_GPU_COUNT: "2"}, annotations={names.ANNOTATION_GPUS: "2", RESERVED[0]: "x"}),
    ],
)
def test_every_other_pod_is_only_isolated(asked: Asked, other: Json) -> None:
    assert asked.of_new(other) == [ISOLATION]


def test_a_labelled_namespace_demands_a_limit_too(asked: Asked) -> None:
    assert asked.of_new(pod(asking(names.GPU_MEM)), STRICT) == [GPU, LIMIT]
    assert asked.of_new(pod(), STRICT) == [ISOLATION]


def test_ephemeral_containers_are_isolated_too(asked: Asked) -> None:
    assert [asked.of_ephemeral(name) for name in (BARE, OWNED)] == [[ISOLATION], [GPU]]


@pytest.mark.parametrize("key", RESERVED)
def test_no_reserved_annotation_changes_unseen(asked: Asked, controller: RestClient, key: str) -> None:
    changes = [(BARE, "1"), (OWNED, "1"), (BOUND, "2"), (BOUND, None)]
    for name, value in changes:
        for sub in UPDATES:
            assert asked.of_mark(name, key, value, sub) == [BINDING]
        assert asked.of_change(name, {"annotations": {key: value}}, user=controller) == []
    assert asked.of_new(pod(annotations={key: "1"}, labels=MANAGED)) == [BINDING, ISOLATION]


@pytest.mark.parametrize("path", [f"pods/{BARE}/binding", "bindings"])
def test_no_binding_brings_what_it_should_not_unseen(asked: Asked, path: str) -> None:
    def webhooks(field: str, key: str) -> list[str]:
        return asked.of_binding({field: {"x": "y", key: "1"}}, path)

    assert [key for key in RESERVED if webhooks("annotations", key) != [BINDING]] == []
    assert [key for key in FIXED if webhooks("annotations", key) != [REQUEST]] == []
    assert [key for key in (*FIXED_LABELS, *MANAGED) if webhooks("labels", key) != [REQUEST]] == []
    assert asked.of_binding({"annotations": many(1001)}, path) == [BINDING]


def test_bindings_of_the_controller_and_of_other_schedulers_depend_on_no_webhook(
    asked: Asked, controller: RestClient
) -> None:
    assert asked.of_binding({}) == asked.of_binding({"annotations": {"x": "y"}, "labels": {"a": "b"}}) == []
    marks = dict.fromkeys([*RESERVED, *FIXED], "1")
    assert asked.of_binding({"annotations": marks, "labels": MANAGED}, user=controller) == []


@pytest.mark.parametrize("name", [BARE, OWNED, BOUND, MOST])
def test_updates_that_leave_bindings_and_requests_alone_depend_on_no_webhook(asked: Asked, name: str) -> None:
    for sub in UPDATES:
        assert asked.of_change(name, {}, sub) == []
        assert asked.of_change(name, {"annotations": {"a1": "x"}, "labels": {"x": "y"}}, sub) == []


def test_no_annotations_at_all_are_a_change_too(asked: Asked) -> None:
    webhooks = [asked.of_change(name, {"annotations": None}) for name in (BOUND, MOST, MORE)]
    assert webhooks == [[BINDING, REQUEST], [], [BINDING]]


def test_so_many_annotations_that_conditions_would_cost_too_much_are_left_to_the_webhook(asked: Asked) -> None:
    """An API server gives up a condition that costs more than 1,000,000 and refuses the change: no kubelet could report
    the status of such a pod, and kube-scheduler could not preempt it."""
    for sub in UPDATES:
        assert asked.of_change(MORE, {"annotations": {"x": "y"}}, sub) == [BINDING]
        assert asked.of_change(BARE, {"annotations": many(1001)}, sub) == [BINDING]
    assert asked.of_ephemeral(MORE) == [BINDING, ISOLATION]
    assert asked.of_new(pod(annotations=many(1001))) == [ISOLATION]


@pytest.mark.parametrize("key", FIXED)
def test_an_annotation_of_a_request_does_not_change_unseen(asked: Asked, key: str) -> None:
    for name, value in ((OWNED, "2"), (BOUND, "2"), (BOUND, None)):
        assert asked.of_mark(name, key, value) == [REQUEST]
    assert asked.of_mark(BARE, key, "2") == []


@pytest.mark.parametrize("key", FIXED_LABELS)
def test_a_label_of_a_request_does_not_change_unseen(asked: Asked, key: str) -> None:
    for name, value in ((OWNED, "2"), (BOUND, "2"), (BOUND, None)):
        assert asked.of_change(name, {"labels": {key: value}}) == [REQUEST]
    assert asked.of_change(OWNED, {"labels": {names.LABEL_MANAGED: None}}) == [REQUEST]
    assert asked.of_change(BARE, {"labels": {key: "2"}}) == []


def test_what_the_webhook_itself_writes_on_a_new_pod_calls_it_no_second_time(asked: Asked) -> None:
    written = dict.fromkeys(names.WEBHOOK_ANNOTATIONS, "c")
    labels = {**MANAGED, names.NANO_ASSUME: "true"}
    assert asked.of_new(pod(asking(names.GPU_PERCENT), annotations=written, labels=labels)) == [GPU]
