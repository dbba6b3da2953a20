"""What a new pod is refused for. How requests are read, and what their authors are told, is in tests/unit/gpushare."""

from dataclasses import replace

import pytest

from gpushare import names, units
from testing import reviews
from testing.reviews import (
    CHOOSING,
    RULES,
    TOO_MUCH,
    VOID,
    WHOLE,
    Json,
    asking,
    container,
    debugged,
    mutated,
    pod,
    refusals,
    review,
)
from tests.unit.webhook.conftest import Webhook, denial
from webhook import mutation
from webhook.edits import Rules

TOTALS, FRAMEWORKS, GPUS = (f"gpushare.dev/{key}" for key in ("limits-are-totals", "framework-variables", "gpus"))
SOME = "write none, or some of jax, paddle, cupy, pytorch, each once, with commas between them"
CHOICE = "it would choose devices past the scheduler; remove it, and ask for GPUs by resources.limits"


def foreign(amount: object, resource: str = names.GPU, field: str = "limits", **fields: object) -> Json:
    return container("x", resources={field: {resource: amount}}, **fields)


@pytest.mark.parametrize("path", ["/mutate", "/isolate", "/enforce"])
def test_the_author_reads_what_is_wrong_where_and_what_to_do(webhook: Webhook, path: str) -> None:
    message = (
        "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 0 asks for nothing; remove the entry or"
        f" write at least 1 | metadata.annotations[{TOTALS}]: 'no' is no value of it; remove it, or write \"true\" if"
        " the limits are totals over all GPUs already"
    )
    asked = review(pod(asking(mem=0), annotations={TOTALS: "no"}))
    assert webhook.ask(path, asked) == denial(400, "BadRequest", message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no framework that gpushare knows"),
        ("none,jax", "'none' is no framework that gpushare knows"),
        ("jax, jax", "'jax, jax' names a framework twice"),
    ],
)
def test_an_annotation_that_means_nothing_is_refused(text: str, message: str) -> None:
    value = pod(asking(mem=3), annotations={FRAMEWORKS: text})
    assert refusals(value) == [f"metadata.annotations[{FRAMEWORKS}]: {message}; {SOME}"]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    marks = {"gpushare.dev/gpu-policy": "fast", GPUS: "two", TOTALS: "z", FRAMEWORKS: ""}
    asked = pod(asking("a", percent=101), asking("b", core=1), foreign("10E", "nvidia.com/x"), annotations=marks)
    assert [text.split(": ")[0] for text in refusals(asked)] == [
        f"metadata.annotations[{GPUS}]",
        "spec.containers[0].resources.limits[nano-gpu/gpu-percent]",
        "spec.containers[1].resources.limits",
        "metadata.annotations[gpushare.dev/gpu-policy]",
        "spec.containers[2].resources.limits[nvidia.com/x]",
        f"metadata.annotations[{TOTALS}]",
        f"metadata.annotations[{FRAMEWORKS}]",
    ]


def test_resources_that_are_meant_for_us_refuse_a_pod_and_marks_without_a_request_none() -> None:
    for value in [pod(asking(gpu=1, core=30)), pod(asking(requests={"count": 1})), pod(asking(requests={"mem": 1}))]:
        assert refusals(value, RULES)
    for marks in [{"aliyun.com/gpu-count": "two"}, {GPUS: "-1"}, {TOTALS: "no"}, {FRAMEWORKS: "x"}]:
        assert mutation.mutate(pod(container(env=[VOID]), labels=marks, annotations=marks), RULES) is None


def test_what_a_node_may_have_is_left_to_the_plugin_that_hands_it_out_and_other_resources_alone() -> None:
    for big in ["81", "1000000000"]:
        mutated(pod(container(gpu_mem=big)))
    for amount in ["1", 8, "1k", "1000000000", "1G", "500m", "-1", "all"]:
        mutation.mutate(pod(foreign(amount)), RULES)
    for resource in ["example.com/x", "memory"]:
        mutated(pod(foreign("10E", resource)))
    rules = replace(RULES, foreign_resources=("vendor.example/*",))
    assert "10E is more" in refusals(pod(foreign("10E", "vendor.example/gpu")), rules)[0]
    # Over all containers that admission lets through, init containers and sidecars included, on 64 GPUs each.
    assert 2 * 512 * 64 * units.MAX_UNITS < 2**63


@pytest.mark.parametrize("amount", TOO_MUCH)
def test_an_amount_that_no_node_has_is_refused_with_its_field(amount: object) -> None:
    """A sum of such amounts leaves 64 bits in kube-scheduler, and then fits every node."""
    for resource in [names.GPU, "nvidia.com/mig-1g.5gb", "nvidia.com/x", "aliyun.com/other"]:
        assert refusals(pod(container("a"), foreign(amount, resource), foreign(amount)), RULES) == [
            f"spec.containers[1].resources.limits[{resource}]: {amount!s:.40} is more than any node can have;"
            " write a number up to 1000000000"
        ]
    for resource in ["mem", "percent", "core", "gpu"]:
        asked = asking("s", **{"mem": 1, resource: amount} if resource == "core" else {resource: amount})
        assert refusals(pod(asking("a", mem=1), init=[{**asked, "restartPolicy": "Always"}]))


@pytest.mark.parametrize("field", ["limits", "requests"])
@pytest.mark.parametrize("other", [container("a"), asking("a", mem=3)])
def test_it_is_refused_in_every_kind_of_container(other: Json, field: str) -> None:
    big = foreign("10E", "nano-gpu/x", field=field, restartPolicy="Always")
    for listed, path in ((pod(other, big), "containers[1]"), (pod(other, init=[big]), "initContainers[0]")):
        [text] = refusals(listed)
        assert text.startswith(f"spec.{path}.resources.{field}[nano-gpu/x]: 10E is more than any node can have")


@pytest.mark.parametrize("gpus", ["2", "64"])
@pytest.mark.parametrize("amount", [10**9, 6 * 10**8])
def test_products_are_refused_as_well(gpus: str, amount: int) -> None:
    """The webhook multiplies the amount by the number of GPUs."""
    assert refusals(pod(asking("a", mem=amount), annotations={GPUS: gpus})) == [
        f"metadata.annotations[{GPUS}]: container a: {gpus} GPUs with {amount} units each exceed any node;"
        " write fewer GPUs or a smaller amount"
    ]


@pytest.mark.parametrize(
    ("asked", "path", "resource", "rules"),
    [
        (pod(foreign(1)), "containers[0]", "nvidia.com/gpu", RULES),
        (pod(asking("a", mem=3), foreign(1)), "containers[1]", "nvidia.com/gpu", RULES),
        (pod(asking("a", percent=3), init=[foreign(1)]), "initContainers[0]", "nvidia.com/gpu", RULES),
        (pod(asking("a", gpu=1), foreign(1, "nvidia.com/mig-x")), "containers[1]", "nvidia.com/mig-x", WHOLE),
    ],
)
def test_a_preset_node_and_another_plugins_gpus_are_refused(
    asked: Json, path: str, resource: str, rules: Rules
) -> None:
    asked["spec"]["nodeName"] = "node-a"
    assert refusals(asked, rules) == [
        f"spec.nodeName: a preset node bypasses the scheduler, but spec.{path} asks for {resource};"
        " on a node without that resource it would see all GPUs; remove it and choose the node by spec.nodeSelector or"
        " node affinity on kubernetes.io/hostname"
    ]


def mounting(path: str, name: str = "m") -> Json:
    return container(name, volumeMounts=[{"name": "w"}, {"name": "v", "mountPath": path}])


@pytest.mark.parametrize("path", CHOOSING)
def test_a_mount_that_chooses_devices_is_refused_in_every_kind_of_container(path: str) -> None:
    for other in (container("a"), asking("a", mem=1)):
        assert refusals(pod(other, mounting(path), init=[mounting(path)])) == [
            f"spec.{field}.volumeMounts[1].mountPath: {CHOICE}" for field in ("initContainers[0]", "containers[1]")
        ]
    old, new = mounting(path, "old"), mounting(path, "new")
    [error] = reviews.refused(lambda: mutation.mutate_ephemeral(debugged(old, new), debugged(old)))
    assert error.path == "spec.ephemeralContainers[1].volumeMounts[1].mountPath"
    assert mutation.mutate_ephemeral(debugged(old), debugged(old)) is None


@pytest.mark.parametrize("path", ["/var/run", "/data", "/var/run/nvidia", "/dev/nvidia0"])
def test_no_other_mount_is_refused(path: str) -> None:
    mutated(pod(asking("a", mem=1), mounting(path)))


def an(expected: str, found: str = "a string") -> str:
    return f"expected {expected}, found {found}"


STRUCTURES: list[tuple[Json, str, str]] = [
    *(
        ({"spec": {}, "metadata": {key: 3}}, f"metadata.{key}", an("a string", "a number"))
        for key in ("name", "namespace", "generateName")
    ),
    *(
        ({"spec": {key: []}}, f"spec.{key}", an("a string", "a list"))
        for key in ("nodeName", "schedulerName", "runtimeClassName")
    ),
    ({"spec": {}, "metadata": []}, "metadata", an("an object", "a list")),
    (
        {"spec": {}, "metadata": {"annotations": {"a.b/c": 3}}},
        "metadata.annotations[a.b/c]",
        an("a string", "a number"),
    ),
    ({"spec": {}, "metadata": {"labels": ["x"]}}, "metadata.labels", an("an object", "a list")),
    ({"spec": {}, "metadata": {"labels": {"x": None}}}, "metadata.labels[x]", an("a string", "nothing")),
    ({"spec": {"volumes": [{}, 1]}}, "spec.volumes[1]", an("an object", "a number")),
    ({"spec": {"volumes": [{"hostPath": "/"}]}}, "spec.volumes[0].hostPath", an("an object")),
    ({"spec": {"containers": {}}}, "spec.containers", an("a list", "an object")),
    ({"spec": {"containers": [None]}}, "spec.containers[0]", an("an object", "nothing")),
    ({"spec": {"containers": [{"name": ""}]}}, "spec.containers[0].name", an("a string", "nothing")),
    ({"spec": {"initContainers": [{"name": "i", "env": "X=1"}]}}, "spec.initContainers[0].env", an("a list")),
    (debugged({"name": 7}), "spec.ephemeralContainers[0].name", an("a string", "a number")),
    *(
        (pod(container(**{key: "x"})), f"spec.containers[0].{key}", an(expected))
        for key, expected in (("env", "a list"), ("volumeMounts", "a list"), ("securityContext", "an object"))
    ),
    *(
        (pod(container(resources={key: True})), f"spec.containers[0].resources.{key}", an("an object", "true or false"))
        for key in ("limits", "requests")
    ),
]


@pytest.mark.parametrize(("value", "path", "problem"), STRUCTURES)
def test_objects_that_cannot_be_read_are_refused(value: object, path: str, problem: str) -> None:
    [text] = refusals(value)
    assert text.startswith(f"{path}: {problem}; see kubectl explain pod.")


def test_of_such_a_field_its_description_is_named() -> None:
    assert refusals(None) == ["object: expected an object, found nothing; see kubectl explain pod"]
    assert refusals({}) == ["spec: expected an object, found nothing; see kubectl explain pod.spec"]
    assert refusals(pod(container(env=[7])))[0].endswith("; see kubectl explain pod.spec.containers.env")
    assert len(refusals({"spec": {"nodeName": 3, "schedulerName": 4}})) == 2


@pytest.mark.parametrize("field", ["initContainers", "containers", "ephemeralContainers"])
def test_a_pod_with_thousands_of_containers_is_refused_at_once(field: str) -> None:
    value = {"spec": {field: [container(f"c{i}") for i in range(513)]}}
    message = f"spec.{field}: 513 containers are more than any node runs; write at most 512"
    assert refusals(value) == [message]
    assert list(map(str, reviews.refused(lambda: mutation.mutate_ephemeral(value, pod())))) == [message]
    value["spec"][field].pop()
    mutation.mutate(value, RULES)


@pytest.mark.parametrize(
    ("value", "old"), [(pod(ephemeralContainers={}), pod()), (pod(), pod(ephemeralContainers=[1]))]
)
def test_ephemeral_containers_that_cannot_be_read_are_refused(value: Json, old: Json) -> None:
    [error] = reviews.refused(lambda: mutation.mutate_ephemeral(value, old))
    assert error.path.startswith("spec.ephemeralContainers")
