"""What the API server refuses by itself where an administrator chooses so: RuntimeClasses of NVIDIA."""

import pytest

from gpushare import names
from gpushare_cli.doctor import objects
from testing.reviews import VOID, visible
from tests.apiserver.policies import CHOICE, OF_NVIDIA, OTHERS, PLAIN, admit, choosing, container, deny, pod, under
from tests.apiserver.server import Json, Server

POLICY = names.RUNTIME_CLASS_POLICY
WITHOUT = (
    "a pod that asks for no GPU must not name a RuntimeClass of NVIDIA, under which a container can choose devices;"
    " remove spec.runtimeClassName"
)
ANY = "no pod may name a RuntimeClass of NVIDIA in this cluster, and GPU pods need none; remove spec.runtimeClassName"
IDLE = container("b", VOID)
"""As the webhook leaves it, so that no other policy refuses it."""


def shared(name: str, resource: str) -> Json:
    return container(name, visible(name), limits={resource: 1})


WITH_GPUS = {
    "memory": pod(shared("a", names.GPU_MEM)),
    "percent": pod(shared("a", names.GPU_PERCENT), IDLE),
    "init": pod(IDLE, init=(shared("i", names.GPU_MEM),)),
    "whole": pod(container("a", limits={names.GPU: 1})),
    "time-sliced": pod(container("a", limits={"nvidia.com/gpu.shared": 1})),
    "mig": pod(container("a", limits={"nvidia.com/mig-1g.5gb": 1})),
}
WITHOUT_GPUS = {
    "plain": pod(IDLE),
    "cpu": pod(container("a", VOID, limits={"cpu": 1}), init=(container("i", VOID),)),
    "none": pod(container("a", VOID, limits={names.GPU: 0, names.GPU_MEM: 0})),
    "hostdev": pod(container("a", VOID, limits={"nvidia.com/hostdev": 1, "nvidia.com/gpux": 1})),
    "forged": pod(IDLE, annotations={names.ANNOTATION_ALLOCATION: "{}"}, labels={names.LABEL_MANAGED: "true"}),
}
SHIPPED = {"names": ",".join(objects.RUNTIME_CLASSES), "refuse": "without-gpus"}
NVIDIA = under("nvidia", WITH_GPUS["memory"])


def test_it_reads_the_administrators_choice_of_the_classes_that_the_isolation_policy_knows(policies: Server) -> None:
    assert policies.api.get(CHOICE)["data"] == SHIPPED
    assert (names.RUNTIME_CLASS, *OF_NVIDIA) == objects.RUNTIME_CLASSES


def test_as_shipped_it_refuses_them_to_pods_without_gpus(policies: Server) -> None:
    for value in WITHOUT_GPUS.values():
        assert WITHOUT in deny(policies, POLICY, under("nvidia", value))
        admit(policies, value)
    for runtime in OF_NVIDIA:
        assert WITHOUT in deny(policies, POLICY, under(runtime, pod(IDLE)))
    for runtime in OTHERS:
        admit(policies, under(runtime, pod(IDLE)))
    for value in WITH_GPUS.values():
        admit(policies, under("nvidia", value))


def test_it_refuses_nothing_where_an_administrator_says_so(policies: Server) -> None:
    with choosing(policies, {**SHIPPED, "refuse": "nothing"}, PLAIN, refused=False):
        for value in (*WITH_GPUS.values(), *WITHOUT_GPUS.values()):
            admit(policies, under("nvidia", value))


@pytest.mark.parametrize("word", ["always", "", "alway", "Nothing"])
def test_always_and_words_that_it_does_not_know_refuse_all(policies: Server, word: str) -> None:
    with choosing(policies, {**SHIPPED, "refuse": word}, NVIDIA, refused=True):
        for value in WITH_GPUS.values():
            assert ANY in deny(policies, POLICY, under("nvidia", value))
            admit(policies, under("runc", value))
        for value in WITHOUT_GPUS.values():
            assert WITHOUT in deny(policies, POLICY, under("nvidia", value))


def test_the_names_are_the_administrators(policies: Server) -> None:
    data = {"names": "nvidia, gpu-runtime ,", "refuse": "always"}
    with choosing(policies, data, under("gpu-runtime", WITH_GPUS["memory"]), refused=True):
        assert ANY in deny(policies, POLICY, NVIDIA)
        admit(policies, under("nvidia-cdi", WITH_GPUS["memory"]))


@pytest.mark.parametrize("data", [None, {}, {"names": "nvidia"}, {"refuse": "always"}])
def test_a_choice_that_says_nothing_refuses_nothing(policies: Server, data: dict[str, str] | None) -> None:
    """If a missing ConfigMap meant Deny, no pod of any namespace could be created."""
    with choosing(policies, data, PLAIN, refused=False):
        admit(policies, NVIDIA)


def test_add_ons_and_namespaces_that_are_exempt_are_left_alone(policies: Server) -> None:
    """Some need every GPU, as the DaemonSets of the GPU Operator."""
    account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
    policies.api.create("/api/v1/namespaces/kube-system/serviceaccounts", account)
    policies.create_namespace("exempt", {names.LABEL_ISOLATION: "disabled"})
    with choosing(policies, {**SHIPPED, "refuse": "always"}, NVIDIA, refused=True):
        for namespace in ("kube-system", "exempt"):
            policies.admitted(namespace, PLAIN)
            policies.admitted(namespace, NVIDIA)
