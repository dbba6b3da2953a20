"""What the API server refuses by itself where an administrator chooses so: RuntimeClasses of NVIDIA."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare import names
from gpushare_cli.doctor import own
from testing.manifests import tree
from testing.manifests.tree import Json
from testing.reviews import VOID, asking, container, pod
from tests.manifests import cel

NEW = tree.objects("servers/1.30")
POLICY = tree.one(NEW, "ValidatingAdmissionPolicy", names.RUNTIME_CLASS_POLICY)["spec"]
BINDING = tree.one(NEW, "ValidatingAdmissionPolicyBinding", names.RUNTIME_CLASS_POLICY)["spec"]
SHIPPED = tree.one(NEW, "ConfigMap", names.RUNTIME_CLASS_POLICY)
WITHOUT = (
    "a pod that asks for no GPU must not name a RuntimeClass of NVIDIA, under which a container can choose devices;"
    " remove spec.runtimeClassName"
)
ANY = "no pod may name a RuntimeClass of NVIDIA in this cluster, and GPU pods need none; remove spec.runtimeClassName"
WITH_GPUS = [
    pod(asking("a", mem=3)),
    pod(asking("a", percent=20), container("b")),
    pod(container("a"), init=[asking("i", mem="1")]),
    *(
        pod(container("a", resources={"limits": {resource: "1"}}))
        for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb")
    ),
]
WITHOUT_GPUS = [
    pod(container("a")),
    pod(container("a", env=[VOID])),
    pod(container("a", resources={})),
    pod(container("a", resources={"limits": {"cpu": "1"}}), init=[container("i")]),
    pod(container("a", resources={"limits": {"nvidia.com/gpu": "0"}})),
    pod(container("a", resources={"limits": {"aliyun.com/gpu-mem": "0"}})),
    pod(container("a", resources={"limits": {"nvidia.com/hostdev": "1"}})),
    pod(container("a", resources={"limits": {"nvidia.com/gpux": "1", "x/nvidia.com/gpu": "1"}})),
    pod(container("a", resources={"requests": {"aliyun.com/gpu-mem": "1"}})),
    pod(container("a"), annotations={"devices.gpushare.dev/a": "GPU-1", "gpushare.dev/allocation": "{}"}),
    pod(container("a"), labels={names.LABEL_MANAGED: "true"}),
]


def under(obj: Json, runtime: str | None) -> Json:
    return obj if runtime is None else {**obj, "spec": {**obj["spec"], "runtimeClassName": runtime}}


def refusals(obj: Json, refuse: str | None, runtime: str | None = "nvidia", data: Mapping[str, str] = {}) -> list[str]:
    params: Json = {**SHIPPED, "data": {**SHIPPED["data"], **({} if refuse is None else {"refuse": refuse}), **data}}
    scope: dict[str, Any] = {"object": under(obj, runtime), "request": {"operation": "CREATE"}, "params": params}
    return cel.refusals(POLICY, scope)


def test_it_looks_at_new_pods_and_reads_the_administrators_choice() -> None:
    assert POLICY["matchConstraints"]["resourceRules"] == [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    ]
    assert POLICY["failurePolicy"] == "Fail"
    assert POLICY["paramKind"] == {"apiVersion": "v1", "kind": "ConfigMap"}
    assert SHIPPED["metadata"] == {"name": names.RUNTIME_CLASS_POLICY, "namespace": names.NAMESPACE}
    # Without it no pod of any namespace could be created, if this said Deny.
    assert BINDING["paramRef"] == {**SHIPPED["metadata"], "parameterNotFoundAction": "Allow"}


def test_the_classes_are_those_that_the_isolation_policy_knows() -> None:
    assert tuple(SHIPPED["data"]["names"].split(",")) == own.RUNTIME_CLASSES


@pytest.mark.parametrize("runtime", ["nvidia", "runc", None])
def test_as_shipped_it_refuses_them_to_pods_without_gpus(runtime: str | None) -> None:
    for obj in WITH_GPUS:
        assert refusals(obj, None, runtime) == []
    for obj in WITHOUT_GPUS:
        assert refusals(obj, None, runtime) == ([WITHOUT] if runtime == "nvidia" else [])


@pytest.mark.parametrize("obj", [*WITH_GPUS, *WITHOUT_GPUS])
@pytest.mark.parametrize("runtime", ["nvidia", "runc", None])
def test_it_refuses_nothing_where_an_administrator_says_so(obj: Json, runtime: str | None) -> None:
    assert refusals(obj, "nothing", runtime) == []


@pytest.mark.parametrize("obj", WITHOUT_GPUS)
@pytest.mark.parametrize("refuse", ["without-gpus", "always"])
@pytest.mark.parametrize("runtime", own.RUNTIME_CLASSES)
def test_a_pod_without_gpus_is_refused_whatever_the_webhook_made_of_it(obj: Json, refuse: str, runtime: str) -> None:
    assert refusals(obj, refuse, runtime) == [WITHOUT]


@pytest.mark.parametrize("obj", WITH_GPUS)
def test_a_pod_with_gpus_is_refused_only_where_all_are(obj: Json) -> None:
    assert refusals(obj, "without-gpus") == []
    assert refusals(obj, "always") == [ANY]


@pytest.mark.parametrize("word", ["", "alway", "none", "Nothing"])
def test_a_word_that_it_does_not_know_refuses_all(word: str) -> None:
    assert refusals(WITH_GPUS[0], word) == [ANY]
    assert refusals(WITHOUT_GPUS[0], word) == [WITHOUT]


@pytest.mark.parametrize("obj", [*WITH_GPUS, *WITHOUT_GPUS])
@pytest.mark.parametrize("runtime", [None, "", "runc", "gvisor", "nvidia-other", "nvidia,nvidia-cdi"])
@pytest.mark.parametrize("refuse", ["without-gpus", "always"])
def test_other_runtime_classes_are_not_its_business(obj: Json, runtime: str | None, refuse: str) -> None:
    assert refusals(obj, refuse, runtime) == []


def test_the_names_are_the_administrators() -> None:
    data = {"names": "nvidia, gpu-runtime ,"}
    for runtime, expected in (("gpu-runtime", [ANY]), ("nvidia", [ANY]), ("nvidia-cdi", []), ("", []), (None, [])):
        assert refusals(WITH_GPUS[0], "always", runtime, data) == expected


@pytest.mark.parametrize("params", [{}, {"data": {}}, {"data": {"names": "nvidia"}}, {"data": {"refuse": "always"}}])
def test_a_choice_that_says_nothing_breaks_nothing(params: Json) -> None:
    scope: dict[str, Any] = {"object": under(pod(container("a")), "nvidia"), "request": {}, "params": params}
    assert cel.refusals(POLICY, scope) == []
