"""Laws of admission, and of the patch that it answers with."""

import base64
import contextlib
import copy
from typing import Any

import jsonpatch
import orjson
import pytest
from hypothesis import given, strategies as st

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.units import ResourceConfig
from gpushare.wire import pods as pods_wire
from testing.reviews import Json, review, rules
from webhook import edits, mutation, review as reviews, validation
from webhook.edits import Rules

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
AMOUNT = st.sampled_from(["1", "3", 4, "12", "2k", "8"])
VARIABLES = st.sampled_from(
    [
        VISIBLE, "NVIDIA_DRIVER_CAPABILITIES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "GPUSHARE_MEMORY_MIB", "ALIYUN_COM_GPU_MEM_IDX", "A", "B",
    ]
)  # fmt: skip
SOURCE: st.SearchStrategy[Json] = st.one_of(
    st.builds(lambda v: {"value": v}, st.sampled_from(["all", "void", "none", "", "0", "$(A)"])),
    st.just({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    st.just({}),
)
ENTRY: st.SearchStrategy[Json] = st.builds(lambda name, source: {"name": name, **source}, VARIABLES, SOURCE)
RESOURCES: st.SearchStrategy[Json] = st.one_of(
    st.just({}),
    st.just({"limits": {"cpu": "1"}}),
    st.builds(lambda n: {"limits": {"nvidia.com/gpu": n}}, st.sampled_from(["0", "1"])),
    st.builds(lambda n: {"limits": {names.GPU_MEM: n, "cpu": "1"}}, AMOUNT),
    st.builds(lambda n: {"limits": {names.GPU_MEM: n}, "requests": {names.GPU_MEM: n}}, AMOUNT),
    st.builds(lambda n: {"limits": {names.GPU_PERCENT: n}}, st.sampled_from(["1", 20, "100", "101"])),
    st.builds(lambda n: {"limits": {names.GPU_MEM: "4", names.GPU_CORE: n}}, st.sampled_from(["5", 100])),
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([
            "devices.gpushare.dev/c0", "gpushare.dev/allocation", "ALIYUN_COM_GPU_MEM_IDX", "nano-gpu/container-c0",
            names.ANNOTATION_OVERRIDDEN, names.ANNOTATION_HAND_OVER, "note",
        ]
    ),
    st.sampled_from(["x", "c0", "i0,c1"]),
)  # fmt: skip


@st.composite
def pods(draw: st.DrawFn) -> Json:
    def listed(prefix: str, least: int) -> list[Json]:
        count = draw(st.integers(least, 3))
        optional = st.one_of(st.none(), st.lists(ENTRY, max_size=4))
        return [
            {
                "name": f"{prefix}{i}",
                "resources": draw(RESOURCES),
                **({} if (env := draw(optional)) is None else {"env": env}),
            }
            for i in range(count)
        ]

    annotations = dict(draw(ANNOTATIONS))
    labels: Json = {}
    match draw(st.sampled_from(["plain", "per-gpu", "total"])):
        case "per-gpu":
            annotations["gpushare.dev/gpus"] = draw(st.sampled_from(["0", "1", "2", "4"]))
        case "total":
            labels["aliyun.com/gpu-count"] = draw(st.sampled_from(["1", "2"]))
    metadata: Json = {"name": "p"}
    if annotations:
        metadata["annotations"] = annotations
    has_labels = draw(st.booleans())
    if labels or has_labels:
        metadata["labels"] = labels
    spec: Json = {"containers": listed("c", 1)}
    if init := listed("i", 0):
        spec["initContainers"] = init
    choices: list[Json] = [{}, {"schedulerName": "default-scheduler"}, {"runtimeClassName": "kata"}]
    spec |= draw(st.sampled_from(choices))
    return {"metadata": metadata, "spec": spec}


RULES = st.sampled_from(
    [
        rules(),
        rules(scheduler="", runtime_class=None),
        rules(foreign_resources=()),
        rules(resource_config=ResourceConfig(whole_gpus=True)),
        rules(runtime_class=None, only_cdi=True),
        rules(demands_limit=True),
    ]
)


def stored(pod: Json, rules: Rules) -> Any:
    """The pod as the API server stores it: the patch of the answer applied. None if it is refused."""
    body = reviews.parse(orjson.dumps(review(pod)))
    try:
        decision = mutation.decide(body, rules)
    except InvalidRequestError:
        return None
    if decision is None:
        return pod
    answer = reviews.patched(body, decision.pod, decision.warnings)["response"]
    patch = jsonpatch.JsonPatch.from_string(base64.b64decode(answer["patch"]).decode())
    result = patch.apply(orjson.loads(orjson.dumps(pod)))  # parts that a strategy shares are apart in JSON
    assert result == decision.pod
    return result


@given(pods(), RULES)
def test_whatever_an_author_writes_his_pod_is_right_wherever_it_lands(pod: Json, rules: Rules) -> None:
    result = stored(pod, rules)
    if result is None:
        return
    assert mutation.mutate(result, rules) is None
    assert not any(map(names.is_reserved, annotations_of(result)))
    for before, after in zip(every_container(pod), every_container(result), strict=True):
        sees_no_gpu_that_it_was_not_granted(after, rules)
        kept = [[entry for entry in each.get("env") or () if entry["name"] in {"A", "B"}] for each in (before, after)]
        assert kept[0] == kept[1], "variables of the author keep their order"
    marked = annotations_of(result).get(names.ANNOTATION_OVERRIDDEN)
    if pods_wire.needs_gpu(result, rules.resource_config):
        reaches_nodes_that_can_hand_over(pod, result, rules)
        names_the_containers_whose_author_chose_devices(pod, result, marked or "", rules)
    else:  # an amount of 0 was a request, and is none any more
        assert marked is None


def every_container(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def annotations_of(pod: Json) -> Json:
    found: Json = pod["metadata"].get("annotations") or {}
    return found


def sees_no_gpu_that_it_was_not_granted(container: Json, rules: Rules) -> None:
    entries = [entry for entry in container.get("env") or () if entry["name"] == VISIBLE]
    limits = container["resources"].get("limits", {})
    if ours := [resource for resource in rules.resource_config.resources if resource in limits]:
        path = f"metadata.annotations['devices.gpushare.dev/{container['name']}']"
        assert [entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in entries] == [path]
        assert pods_wire.takes_its_grant(container, container["name"])
        assert limits[ours[0]] == container["resources"]["requests"][ours[0]]
    elif limits.get("nvidia.com/gpu") != "1" or not rules.foreign_resources:
        assert entries == [{"name": VISIBLE, "value": "void"}]
    else:
        assert entries == []


def reaches_nodes_that_can_hand_over(pod: Json, result: Json, rules: Rules) -> None:
    """By the RuntimeClass, or by a mark that keeps it away from nodes that need one."""
    notes, runtime, choice = annotations_of(result), result["spec"].get("runtimeClassName"), rules.runtime_class()
    assert runtime == (pod["spec"].get("runtimeClassName") or choice.name)
    assert (notes.get(names.ANNOTATION_HAND_OVER) == "cdi") == (choice.only_cdi and runtime is None)
    if rules.demands_limit:
        assert notes[names.ANNOTATION_LIMIT] == names.ENFORCED


def names_the_containers_whose_author_chose_devices(pod: Json, result: Json, marked: str, rules: Rules) -> None:
    """And no one else's, whatever the author wrote into it."""
    chosen, unsure = [], set()
    for before, after in zip(every_container(pod), every_container(result), strict=True):
        last = edits.env_of_devices(before)[-1:]
        if last and (last != [{"name": VISIBLE, "value": "void"}] or pods_wire.asks(before, rules.resource_config)):
            chosen.append(before["name"])
        # A container that its author wrote as the webhook leaves it is a matter of the mark's own tests.
        if edits.env_of_devices(before) == edits.env_of_devices(after):
            unsure.add(before["name"])
    assert [name for name in marked.split(",") if name and name not in unsure] == chosen


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(allow_nan=False), st.text(max_size=5))
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
KEYS = [
    "metadata", "spec", "containers", "initContainers", "ephemeralContainers", "name", "env", "value", "valueFrom",
    "resources", "limits", "requests", "labels", "annotations", "securityContext", "privileged", "nodeName",
    "schedulerName", "runtimeClassName", "restartPolicy", names.GPU_MEM, names.GPU_COUNT, names.ANNOTATION_GPUS,
    names.ANNOTATION_POLICY, names.ANNOTATION_TOTALS, "nvidia.com/gpu", "devices.gpushare.dev/a", VISIBLE,
    names.GPU_PERCENT, names.GPU_CORE, names.ANNOTATION_OVERRIDDEN, names.ANNOTATION_MODEL, names.ANNOTATION_UUID,
    names.ANNOTATION_MIN_MEMORY, names.ANNOTATION_SAME_GPU, names.ANNOTATION_OTHER_GPU,
    names.ANNOTATION_LIMIT, names.ANNOTATION_MIG,
]  # fmt: skip
POD_LIKE: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.sampled_from([VISIBLE, "3", "all"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=25,
)


@st.composite
def damaged_pods(draw: st.DrawFn) -> Any:
    """A good pod in which one thing, anywhere, was replaced by anything."""
    pod = orjson.loads(orjson.dumps(draw(pods())))
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            places.append((node, key))
            visit(node[key])

    visit(pod)
    node, key = draw(st.sampled_from(places))
    node[key] = draw(JSON)
    return pod


@given(
    st.one_of(JSON, POD_LIKE, damaged_pods()),
    st.one_of(st.none(), POD_LIKE, damaged_pods()),
    st.sampled_from(
        [
            ("CREATE", "pods", "Pod"),
            ("UPDATE", "pods", "Pod"),
            ("UPDATE", "pods/ephemeralcontainers", "Pod"),
            ("CREATE", "pods/binding", "Binding"),
        ]
    ),
    st.sampled_from([ResourceConfig(), ResourceConfig(whole_gpus=True)]),
)
def test_whatever_an_object_looks_like_there_is_an_answer(
    obj: Any, old: Any, request: tuple[str, str, str], resource_config: ResourceConfig
) -> None:
    operation, resource, kind = request
    raw = orjson.dumps(review(obj, old=old, operation=operation, resource=resource, kind=kind))
    body = reviews.parse(raw)
    try:
        if decision := mutation.decide(body, rules(resource_config=resource_config)):
            assert reviews.patched(body, decision.pod, decision.warnings)["response"]["allowed"]
    except InvalidRequestError as error:
        errors = error.errors
    else:
        errors = ()
    assert all(each.path and each.problem for each in errors)
    with contextlib.suppress(InvalidRequestError):
        validation.validate(body, "controller", resource_config)


@given(st.one_of(JSON, st.dictionaries(st.sampled_from(["kind", "apiVersion", "request"]), JSON)))
def test_whatever_a_body_looks_like_it_is_a_review_or_malformed(value: Any) -> None:
    with contextlib.suppress(WireError):
        assert reviews.parse(orjson.dumps(value)).uid


LEAVES = st.none() | st.text(max_size=2) | st.integers(2, 4)
NAMES = st.sampled_from(["a", "b", "~", "/", "~1", ""])
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=3)
CONTAINERS = st.lists(FIELDS, max_size=2)
PODS = st.builds(
    lambda more, spec, lists, metadata: {
        **more,
        "spec": {**spec, **lists},
        **({"metadata": metadata} if metadata else {}),
    },
    FIELDS,
    FIELDS,
    st.fixed_dictionaries({}, optional={"initContainers": CONTAINERS, "containers": CONTAINERS}),
    st.none() | FIELDS,
)


@given(PODS, PODS)
def test_a_patch_makes_the_one_out_of_the_other(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    operations = reviews.verified(before, after)
    assert before == kept
    assert jsonpatch.apply_patch(before, operations) == after
    assert (operations == []) == (before == after)


ENV = [{"name": f"v{i}"} for i in range(20_000)]


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 2}, {"a": 2}, []),
        ({}, {"x.y/z": "1"}, [("add", "/x.y~1z")]),
        ({"a~b": 2}, {}, [("remove", "/a~0b")]),
        (
            {"metadata": {"a": 1, "b": 1}},
            {"metadata": {"a": 2}},
            [("remove", "/metadata/b"), ("replace", "/metadata/a")],
        ),
        ({"metadata": None}, {"metadata": {"a": 2}}, [("replace", "/metadata")]),
        ({"metadata": {}}, {"metadata": {"a": 2}}, [("add", "/metadata/a")]),
        # A field of a container is replaced whole, however long, and so is a list that grew.
        (
            {"spec": {"containers": [{"name": "a", "env": ENV}], "initContainers": []}},
            {"spec": {"containers": [{"name": "a", "env": [*ENV[1:], ENV[0]]}], "initContainers": [{}]}},
            [("replace", "/spec/containers/0/env"), ("replace", "/spec/initContainers")],
        ),
    ],
)
def test_a_patch_names_only_what_differs(before: Any, after: Any, operations: list[tuple[str, str]]) -> None:
    found = reviews.verified({"spec": {}} | before, {"spec": {}} | after)
    assert [(each["op"], each["path"]) for each in found] == operations


def test_a_patch_that_would_give_another_object_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "changes", lambda *_: [{"op": "add", "path": "/a", "value": 1}])
    with pytest.raises(RuntimeError, match="the JSON patch does not give the intended object"):
        reviews.verified({"spec": {}}, {"spec": {}, "b": 1})
