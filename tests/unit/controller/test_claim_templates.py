"""Templates of the claims of pods that asked by gpu-mem: made once, kept while they are used, and removed."""

import pytest

from controller.reconcile import claim_templates as making
from controller.reconcile.claim_templates import CALLS, LIST_S, RETRY_S, UNUSED_S, ClaimTemplates
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.units import ResourceConfig
from gpushare.wire import claim_templates
from gpushare.wire.claim_templates import Template
from testing.builders import make_container
from testing.controller.bypassing import said
from testing.controller.world import World, path_of
from testing.fakes.kube import Call

TEMPLATES = claim_templates.PATH.format("team")
SHARES = {names.LABEL_SHARE_BY: names.CLAIMS}


class Making:
    """The component, fed by hand, with pods of the namespace `team`."""

    def __init__(self, labels: dict[str, str] = SHARES) -> None:
        self.world = World()
        self.world.api.seed("/api/v1/namespaces", {"metadata": {"name": "team", "labels": labels}})
        self.templates = ClaimTemplates(writer=self.world.writer)

    def tick(self, seconds: float = 0) -> None:
        self.world.clock.at += seconds
        watch = self.templates.watch
        pods = self.world.api.list_page("/api/v1/pods", watch.params, keep=watch.read).items
        watch.replace([pod for pod in pods if pod is not None])
        self.templates.tick(self.world.state.index.snapshot())

    def add(self, gib: int = 3, text: str = "", namespace: str = "team") -> tuple[JsonObject, Template]:
        spec = {"containers": [make_container("main", gib)]}
        found = claim_templates.translate({"metadata": {}, "spec": spec}, ResourceConfig())
        assert found is not None
        template = found.template
        marks = {"labels": {names.CLAIM_TEMPLATE: template.name}}
        pod = {
            "metadata": {
                "name": f"pod-{next(self.world.names)}",
                **marks,
                "annotations": {names.CLAIM_TEMPLATE: text or template.text},
            },
            "spec": found.spec,
        }
        return self.world.api.seed(f"/api/v1/namespaces/{namespace}/pods", pod), template

    def there(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.world.api.objects(TEMPLATES)}

    def fail(self, verb: str, error: kube.KubeError, times: int = 1) -> None:
        def at(call: Call) -> bool:
            return call.verb == verb and "resourceclaimtemplates" in call.path

        self.world.api.fail_next(at, error, times=times)


def test_equal_pods_have_one_template_which_goes_when_no_pod_names_it() -> None:
    made = Making()
    first, template = made.add()
    second, _ = made.add()
    _, other = made.add(5)
    made.tick()
    made.tick(LIST_S)
    assert made.there() == {template.name, other.name}
    assert made.world.api.count("create", "resourceclaimtemplates") == 2
    found = made.world.api.read(f"{TEMPLATES}/{template.name}")
    assert found["spec"] == template.object()["spec"]
    made.world.edit_pod(first, lambda pod: pod["spec"].update(nodeName="a"))  # which it holds as long as it runs
    made.world.finish(second)
    made.tick(2 * UNUSED_S)
    assert template.name in made.there()
    made.world.finish(first)
    made.tick(UNUSED_S - 1)
    assert template.name in made.there()
    made.tick(1)
    assert made.there() == {other.name}
    made.add()
    made.tick()
    assert made.there() == {template.name, other.name}
    assert said(made.world) == []


def test_a_template_that_someone_else_made_is_taken_if_it_says_the_same_and_left() -> None:
    made = Making()
    _, same = made.add()
    _, taken = made.add(5)
    spec = same.object()["spec"]
    for template in (same, taken):
        made.world.api.seed(TEMPLATES, {"metadata": {"name": template.name}, "spec": spec})
    made.tick()
    made.tick()
    assert made.world.api.count("create", "resourceclaimtemplates") == 2
    [(reason, message)] = said(made.world)
    assert reason == making.REASON
    assert f"ResourceClaimTemplate {taken.name} says something else" in message
    made.world.api.vanish(f"{TEMPLATES}/{taken.name}")
    made.tick(RETRY_S)
    assert made.world.api.read(f"{TEMPLATES}/{taken.name}")["spec"] == taken.object()["spec"]
    made.tick(2 * UNUSED_S)
    assert made.there() == {same.name, taken.name}


def test_what_has_taken_the_place_of_one_that_goes_is_left() -> None:
    made = Making()
    pod, template = made.add()
    made.tick()
    made.world.api.vanish(path_of(pod))
    made.tick(UNUSED_S - 1)
    made.world.api.vanish(f"{TEMPLATES}/{template.name}")
    made.world.api.seed(TEMPLATES, {"metadata": {"name": template.name}})
    made.tick(1)
    assert made.there() == {template.name}
    made.tick()
    assert made.world.api.count("delete") == 1


def test_an_author_learns_of_a_quota_and_it_is_tried_again_ever_later() -> None:
    made = Making()
    made.add()
    made.fail("create", kube.ForbiddenError("exceeded quota: small"), times=3)
    for seconds, events in ((0, 1), (RETRY_S - 1, 1), (1, 2), (2 * RETRY_S - 1, 2), (1, 3), (4 * RETRY_S, 3)):
        made.tick(seconds)
        assert len(said(made.world)) == events
    assert "cannot be made: exceeded quota: small; ask an administrator" in said(made.world)[0][1]
    assert len(made.there()) == 1


@pytest.mark.parametrize("labels", [{}, {names.LABEL_SHARE_BY: "gpu-mem"}])
def test_in_other_namespaces_none_is_made(labels: dict[str, str]) -> None:
    made = Making(labels)
    made.add()
    made.tick()
    assert made.there() == set()
    assert f"no label {names.LABEL_SHARE_BY}=claims" in said(made.world)[0][1]


def test_none_is_made_for_a_forged_promise_or_a_pod_that_no_longer_waits() -> None:
    made = Making()
    made.add(text='{"devices":{"requests":[]}}')
    unlabelled, _ = made.add(4)
    made.world.edit_pod(unlabelled, lambda found: found["metadata"].pop("labels"))
    pod, _ = made.add(5)
    made.world.edit_pod(pod, lambda found: found["spec"].update(nodeName="a"))
    made.tick()
    assert (made.there(), said(made.world)) == (set(), [])


def test_what_a_tick_does_is_bounded_and_those_that_failed_come_last() -> None:
    made = Making()
    templates = [made.add(gib)[1] for gib in range(1, 2 * CALLS + 1)]
    made.fail("create", kube.BadRequestError("no"), times=CALLS)
    made.tick()
    assert made.there() == set()
    made.tick(RETRY_S)
    assert made.there() == {template.name for template in templates[CALLS:]}
    made.tick()
    assert len(made.there()) == 2 * CALLS
    for pod in made.world.api.objects("/api/v1/namespaces/team/pods"):
        made.world.api.vanish(path_of(pod))
    made.tick(UNUSED_S)
    assert len(made.there()) == CALLS


def test_neither_many_in_another_namespace_nor_one_that_the_server_fails_for_keep_others_waiting() -> None:
    made = Making()
    made.world.api.seed("/api/v1/namespaces", {"metadata": {"name": "other"}})
    for gib in range(1, 4 * CALLS):
        made.add(gib, namespace="other")
    broken, good = made.add(1)[1], made.add(2)[1]
    made.world.api.fail_next(
        lambda call: call.verb == "create" and (call.body or {})["metadata"]["name"] == broken.name,
        kube.ServerFaultError("failed calling webhook"),
        times=100,
    )
    for _ in range(4):
        made.tick(1)
    assert made.there() == {good.name}


def test_while_the_server_fails_or_another_leads_nothing_is_tried() -> None:
    made = Making()
    made.fail("list", kube.UnreachableError("away"))
    made.add()
    made.tick()
    calls = len(made.world.api.calls)
    made.tick()
    assert [call.path for call in made.world.api.calls[calls:]] == ["/api/v1/pods"]
    made.world.leads = False
    made.tick(LIST_S)
    assert made.there() == set()
    made.world.leads = True
    made.tick(LIST_S)
    assert len(made.there()) == 1
    [name] = made.there()
    made.world.api.vanish(f"{TEMPLATES}/{name}")  # by hand: found out at the next list
    made.tick(LIST_S)
    assert made.there() == {name}
