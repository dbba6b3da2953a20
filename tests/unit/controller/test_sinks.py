"""Namespaces' policies, disruption budgets and marks of unhealthy GPUs are followed, as far as the controller may."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from controller import watches
from controller.index import Index
from controller.watches import BUDGETS_V1, BUDGETS_V1BETA1, CONFIG_MAPS, OptionalWatch
from gpushare import names
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.capacity import NodeCapacity
from gpushare.model.gpu import GpuHealth
from gpushare.model.request import Policy
from gpushare.units import ResourceConfig
from testing.builders import make_ref
from testing.clock import ManualClock, ending
from testing.controller import world as worlds
from testing.controller.world import World
from testing.fakes.kube import Call, FakeKube, Fault
from tests.unit.controller.conftest import lines

NODES = ["node-a", "node-b"]


def namespace(name: str, policy: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_POLICY: policy}}}


def pdb(name: str = "web", allowed: object = 1, **selector: object) -> dict[str, Any]:
    metadata, status = {"name": name, "namespace": "default"}, {"disruptionsAllowed": allowed}
    return {"metadata": metadata, "spec": {"selector": selector}, "status": status}


Watch = OptionalWatch[Any]


def policies(index: Index | None = None) -> Watch:
    index = index or Index(ResourceConfig())
    return watches.namespace_policies(api=FakeKube(), clock=ManualClock(), index=index)


def budgets(api: FakeKube | None = None, clock: ManualClock | None = None) -> Watch:
    return watches.disruption_budgets(api=api or FakeKube(), clock=clock or ManualClock())


def allowed(followed: Watch) -> dict[str, int]:
    return {budget.name: budget.allowed for budget in followed.values()}


def listed(watch: Watch, *objects: dict[str, Any]) -> None:
    watch.replace([found for each in objects if (found := watch.read(each))])


def tell(watch: Watch, what: Callable[[Any], None], obj: dict[str, Any]) -> None:
    found = watch.read(obj)
    assert found is not None
    what(found)


def test_policies_follow_the_collection() -> None:
    index = Index(ResourceConfig())
    watch = policies(index)
    listed(watch, namespace("a", "spread"), namespace("b", "dense"))
    assert index.namespace_policies == {"a": Policy.SPREAD, "b": Policy.DENSE}
    before = watch.by_key
    tell(watch, watch.upsert, namespace("a", "binpack"))
    tell(watch, watch.upsert, namespace("c", "fgd"))
    tell(watch, watch.remove, namespace("b", "dense"))
    tell(watch, watch.remove, namespace("unknown", "dense"))
    assert index.namespace_policies == {"a": Policy.BINPACK, "c": Policy.FGD}
    assert before == {"a": Policy.SPREAD, "b": Policy.DENSE}, "what readers have, who take no lock"


def test_what_means_nothing_has_no_effect_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    watch, followed = policies(), budgets()
    listed(watch, namespace("a", "spread"))
    tell(watch, watch.upsert, namespace("a", "fast"))
    listed(followed, pdb("a"), pdb("b", "many"))
    tell(followed, followed.upsert, pdb("a", "many"))
    tell(followed, followed.upsert, {"metadata": {}})
    assert (watch.by_key, followed.by_key) == ({}, {})
    fields = [record.gpushare_fields for record in caplog.records]  # type: ignore[attr-defined]  # set by `logs.event`
    no_number = "status.disruptionsAllowed: expected a whole number, 0 or more, found a string"
    assert fields == [
        {"namespace": "a", "error": "'fast' is no policy; write binpack, spread, dense or fgd"},
        {"budget": "default/b", "error": no_number},
        {"budget": "default/a", "error": no_number},
        {"budget": "None/None", "error": "metadata.namespace: expected a string, found nothing"},
    ]


def test_only_namespaces_with_the_label_are_asked_for() -> None:
    api, stop = FakeKube(), threading.Event()
    api.close()
    watches.namespace_policies(api=api, clock=ending(stop), index=Index(ResourceConfig())).run(stop)
    asked = {call.params["labelSelector"] for call in api.calls if call.params.get("limit") != "1"}
    assert asked == {names.LABEL_POLICY}


@pytest.mark.parametrize("obj", [{"metadata": 3}, {"metadata": {"labels": []}}, {"metadata": {"name": ["x"]}}])
def test_what_is_no_namespace_is_left_out(obj: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert policies().read(obj) is None
    assert caplog.messages == ["object left out"]


def test_pods_that_name_no_policy_have_that_of_their_namespace(world: World) -> None:
    world.bind(world.add_pod(3), "node-a")
    world.see()
    scores = {"team": 9, "apart": 0}
    world.state.index.namespace_policies = {"apart": Policy.SPREAD}
    for namespace, score in scores.items():
        pod = world.add_pod(3, namespace=namespace)
        answer = world.post("prioritize", {"Pod": pod, "NodeNames": NODES})
        assert {each["Host"]: each["Score"] for each in answer}.get("node-a", 0) == score
        world.bind(pod, "node-a")
        world.see()
    assert world.used() == {"GPU-0": 6, "GPU-1": 3}
    own = world.add_pod(4, namespace="apart", annotations={names.ANNOTATION_POLICY: "binpack"})
    world.bind(own)
    assert world.used() == {"GPU-0": 10, "GPU-1": 3}


COLLECTION = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def follow(api: FakeKube, waits: int = 1) -> tuple[Watch, ManualClock]:
    """Budgets until so many waits; they are settled then."""
    stop = threading.Event()
    clock = ending(stop, waits)
    watch = budgets(api, clock)
    api.close()
    assert not watch.settled()
    watch.run(stop)
    clock.at = 0.0  # not because of the time that has passed
    assert watch.settled()
    return watch, clock


def at(path: str) -> Callable[[Any], bool]:
    return lambda call: bool(call.path == path)


@pytest.mark.parametrize(("path", "protects"), [(BUDGETS_V1, True), (BUDGETS_V1BETA1, False)])
def test_an_old_server_has_an_older_version_in_which_an_empty_selector_means_no_one(path: str, protects: bool) -> None:
    api = FakeKube()
    if path == BUDGETS_V1BETA1:
        api.fail_next(at(BUDGETS_V1), MISSING)
    api.seed(path.replace("/pod", "/namespaces/default/pod"), pdb())
    followed, _ = follow(api)
    [budget] = followed.values()
    assert budget.counts(Bound(ref=make_ref(), node=NodeName("n"), labels={"app": "web"})) is protects


FORBIDDEN, MISSING = kube.ForbiddenError("no"), kube.NotFoundError("the server could not find the requested resource")
GRANT = "grant the controller list and watch of poddisruptionbudgets in the API group policy"


@pytest.mark.parametrize(
    ("faults", "fix"),
    [
        ({BUDGETS_V1: FORBIDDEN}, GRANT),
        ({BUDGETS_V1: MISSING, BUDGETS_V1BETA1: FORBIDDEN}, GRANT),
        ({BUDGETS_V1: MISSING, BUDGETS_V1BETA1: MISSING}, "none; this server has no such objects"),
    ],
)
def test_without_the_right_to_read_budgets_all_goes_on(
    caplog: pytest.LogCaptureFixture, faults: dict[str, Fault], fix: str
) -> None:
    api = FakeKube()
    api.seed(COLLECTION, pdb())
    for path, fault in faults.items():
        api.fail_next(at(path), fault)
    refused, clock = follow(api)
    assert (allowed(refused), clock.waits) == ({}, [watches.ASK_AGAIN_S])
    [line] = lines(caplog, "not watched")
    assert (line["path"], line["fix"]) == (BUDGETS_V1, fix)
    assert line["effect"] == "preemption takes no account of PodDisruptionBudgets"

    for path, fault in faults.items():
        api.fail_next(at(path), fault)
    granted, clock = follow(api, waits=2)
    assert (allowed(granted), clock.waits[0]) == ({"web": 1}, watches.ASK_AGAIN_S)


def test_a_server_that_is_upgraded_is_followed_in_its_new_version() -> None:
    api = FakeKube()
    api.seed(COLLECTION.replace("v1", "v1beta1"), pdb(allowed=1))
    api.seed(COLLECTION, pdb(allowed=2))
    api.fail_next(at(BUDGETS_V1), MISSING)
    api.fail_next(lambda call: call.verb == "watch" and call.path == BUDGETS_V1BETA1, MISSING)
    followed, _ = follow(api, waits=2)
    assert allowed(followed) == {"web": 2}
    assert [call.path for call in api.calls if call.verb == "watch"] == [BUDGETS_V1BETA1, BUDGETS_V1]


def test_a_right_that_is_taken_away_leaves_what_was_read_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeKube()
    api.seed(COLLECTION, pdb())
    api.fail_next(lambda call: call.verb == "watch", FORBIDDEN)
    asks = 0

    def second(call: Call) -> bool:
        nonlocal asks
        asks += call.params == {"limit": "1"}
        return asks == 2

    api.fail_next(second, FORBIDDEN)
    followed, clock = follow(api, waits=3)
    assert (allowed(followed), clock.waits[1]) == ({"web": 1}, watches.ASK_AGAIN_S)
    [line] = lines(caplog, "not watched")
    assert (line["effect"], api.count("watch")) == ("what was read before stays as it was", 2)


def test_a_collection_that_may_be_listed_but_not_watched_makes_no_storm() -> None:
    api, stop = FakeKube(), threading.Event()
    clock = ending(stop, waits=21)

    def watched(call: Call) -> bool:
        clock.at += watches.ASK_AGAIN_S * (len(clock.waits) == 20)
        return call.verb == "watch"

    api.fail_next(watched, FORBIDDEN, times=1000)
    budgets(api, clock).run(stop)
    assert clock.waits[19] >= 5
    assert api.count("watch") == 21
    assert clock.waits[20] < 1, "one that was watched for long is watched again at once"


def test_a_server_that_does_not_answer_is_not_waited_for_forever(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeKube()
    api.fail_next(at(BUDGETS_V1), kube.UnreachableError("no route to host"), times=100)
    stop = threading.Event()
    settled: list[bool] = []

    def look(at: float) -> None:
        settled.append(watch.settled())
        assert settled[-1] == (at - 1000 >= watches.PATIENCE_S)
        if len(settled) == 100:
            stop.set()

    watch = budgets(api, ManualClock(on_wait=look))
    watch.run(stop)
    assert not settled[0]
    assert settled[-1]
    assert lines(caplog, "watch failed")[0]["error"] == "no route to host"


def call_ill(world: World, value: object, node: str = "node-a") -> None:
    name = f"unhealthy-gpu-{node}"
    if any(found["metadata"]["name"] == name for found in world.api.objects(CONFIG_MAPS)):
        world.api.edit(f"{CONFIG_MAPS}/{name}", lambda found: found.update(data={"gpus": value}))
    else:
        world.api.seed(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"gpus": value}})
    world.see()


def cordon(world: World, node: str, gpus: str) -> None:
    mark = {names.ANNOTATION_CORDON: gpus}
    world.api.edit(f"{worlds.NODES}/{node}", lambda found: found["metadata"]["annotations"].update(mark))
    world.see()


def health(world: World, node: str = "node-a") -> list[GpuHealth]:
    return [gpu.health for gpu in world.ledger(node).inventory.gpus]


OK, ILL, CORDONED = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY, GpuHealth.CORDONED


def test_a_gpu_that_is_called_unhealthy_takes_no_new_pod_until_it_is_not(world: World) -> None:
    call_ill(world, "0")
    assert (health(world), len(NodeCapacity.of(world.ledger("node-a")).gpus)) == ([ILL, OK], 1)
    assert health(world, "node-b") == [OK, OK]
    pod = world.add_pod(3)
    assert world.bind(pod).error == ""
    assert world.gpus_of(pod) == ["GPU-1"]
    cordon(world, "node-a", "GPU-1, 0")
    assert health(world) == [ILL, CORDONED], "a cordon is told by its own word where a GPU is not ill"
    cordon(world, "node-a", "")
    freed = world.state.index.freed
    call_ill(world, "")
    assert (health(world), world.audit()) == ([OK, OK], [])
    assert world.state.index.freed > freed, "waiting pods try again"


def test_pods_on_it_keep_what_they_have(world: World) -> None:
    world.add_bound(3)
    call_ill(world, "0,1")
    assert world.used() == {"GPU-0": 3}
    assert world.bind(world.add_pod(3)).error.startswith("node-a has no healthy GPU")
    assert world.audit() == []


def test_marks_that_went_while_they_must_not_be_read_are_cleared(world: World) -> None:
    call_ill(world, "0")
    stop = threading.Event()

    def look(_at: float) -> None:
        if not world.api.objects(CONFIG_MAPS):
            stop.set()
        else:
            assert health(world) == [ILL, OK]
            world.api.vanish(f"{CONFIG_MAPS}/unhealthy-gpu-node-a")

    world.api.fail_next(lambda call: call.verb == "watch", kube.ForbiddenError("no"))
    world.api.close()
    watches.unhealthy_gpus(api=world.api, clock=ManualClock(on_wait=look), index=world.state.index).run(stop)
    assert health(world) == [OK, OK]


@pytest.mark.parametrize(
    ("make", "effect", "right"),
    [
        (
            watches.unhealthy_gpus,
            "ConfigMaps unhealthy-gpu-NODE keep no GPU from being used",
            "configmaps in namespace kube-system",
        ),
        (watches.namespace_policies, "the label gpushare.dev/gpu-policy of namespaces has no effect", "namespaces"),
    ],
)
def test_what_must_not_be_read_is_told_with_the_right(
    caplog: pytest.LogCaptureFixture, make: Callable[..., Watch], effect: str, right: str
) -> None:
    api, stop = FakeKube(), threading.Event()
    watch = make(api=api, clock=ending(stop), index=Index(ResourceConfig()))
    api.fail_next(lambda call: call.path == watch.path, FORBIDDEN)
    watch.run(stop)
    [line] = lines(caplog, "not watched")
    assert (line["effect"], line["fix"]) == (effect, f"grant the controller list and watch of {right}")


def test_the_age_of_what_is_known_is_that_of_its_watch(world: World) -> None:
    stop, ages = threading.Event(), list[float]()

    def look(_at: float) -> None:
        ages.append(watch.stale_for())
        stop.set()

    clock = ManualClock(on_wait=look)
    watch = watches.unhealthy_gpus(api=world.api, clock=clock, index=world.state.index)
    world.api.close()
    watch.run(stop)
    assert ages[0] == pytest.approx(clock.waits[0])


def test_a_node_that_comes_later_has_what_was_said_before() -> None:
    world = World()
    world.list_all()
    call_ill(world, "1", "node-c")
    assert world.snapshot().ledgers == {}
    for _ in range(2):
        world.add_node("node-c", 10, 10)
        world.see()
        assert health(world, "node-c") == [OK, ILL]
        world.api.vanish(f"{worlds.NODES}/node-c")
        world.see()


def test_a_complaint_is_logged_once_until_it_changes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for value in ("0,x", "0,x", "x,1"):
        call_ill(world, value)
        world.list_all()
    assert caplog.messages.count("unhealthy GPUs unreadable") == 1
    call_ill(world, "y")
    call_ill(world, "1")
    call_ill(world, "y")
    assert caplog.messages.count("unhealthy GPUs unreadable") == 3


def test_numbers_that_no_gpu_has_are_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    call_ill(world, "0,7")
    cordon(world, "node-b", "GPU-9,1")
    for _ in range(3):
        world.reconciler.tick()
    assert lines(caplog, "no such GPUs") == [{"node": "node-a", "gpus": "7"}, {"node": "node-b", "gpus": "GPU-9"}]
    assert health(world) == [ILL, OK]
    call_ill(world, "0,8")
    world.reconciler.tick()
    assert caplog.messages.count("no such GPUs") == 3
