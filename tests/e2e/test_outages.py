"""P9: pods without a GPU request never depend on this system; the others wait and then run."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import names
from localcluster.process import ClusterError
from tests.e2e import checks, disturb, former
from tests.e2e.system import Share, System, is_ready

pytestmark = pytest.mark.e2e


@contextmanager
def scaled_to_zero(system: System, deployment: str, component: str) -> Iterator[None]:
    system.cluster.kubectl("scale", "-n", names.NAMESPACE, f"deployment/{deployment}", "--replicas=0")
    try:
        for pod in disturb.component_pods(system, component):
            # A process that ends in order goes on answering on connections that the API server has kept.
            disturb.sigkill(pod)
            disturb.delete_now(system, pod)
        system.eventually(
            f"{component} gone",
            lambda: not system.pods(names.NAMESPACE, f"app.kubernetes.io/name=gpushare-{component}"),
        )
        yield
    finally:
        system.cluster.kubectl("scale", "-n", names.NAMESPACE, f"deployment/{deployment}", "--replicas=2")

        def back() -> bool:
            return any(is_ready(pod) for pod in disturb.component_pods(system, component))

        system.eventually(f"{component} back", back)


def test_without_the_webhook_other_pods_are_created_and_run_as_always(system: System, namespace: str) -> None:
    with scaled_to_zero(system, "gpushare-webhook", "webhook"):
        system.create(namespace, Share(name="plain", gib=(None,)).document())
        system.all_running(namespace, 1)
        the_runtime_class_opens_nothing(system, namespace)
    former.webhooks_work(system)
    system.create(namespace, Share(name="after").document())
    checks.every_container_sees_exactly_its_gpus(
        system, namespace, [pod for pod in system.all_running(namespace, 2) if pod["metadata"]["name"] == "after"]
    )


def the_runtime_class_opens_nothing(system: System, namespace: str) -> None:
    """Without the webhook no one writes void, so the API server itself refuses what could see a GPU, where it can."""
    pod = Share(name="sly", gib=(None,), env={names.ENV_VISIBLE_DEVICES: "all"}).document()
    pod["spec"]["runtimeClassName"] = names.RUNTIME_CLASS
    if (system.cluster.version.major, system.cluster.version.minor) >= (1, 30):
        with pytest.raises(ClusterError, match="gpushare-isolation"):
            system.create(namespace, pod)


def test_without_the_controller_other_pods_run_and_gpu_pods_wait(system: System, namespace: str) -> None:
    with scaled_to_zero(system, "gpushare-controller", "controller"):
        system.create(namespace, Share(name="plain", gib=(None,)).document(), Share(name="waits").document())
        system.eventually("the plain pod runs", lambda: is_ready(system.pod(namespace, "plain")))
        assert not system.pod(namespace, "waits")["spec"].get("nodeName")
    pods = system.all_running(namespace, 2)
    checks.every_container_sees_exactly_its_gpus(
        system, namespace, [pod for pod in pods if pod["metadata"]["name"] == "waits"]
    )
