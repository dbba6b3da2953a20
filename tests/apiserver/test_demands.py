"""What an administrator decides for namespaces and nodes: RuntimeClasses of NVIDIA, and limits that are enforced."""

import json

from gpushare import names
from gpushare.model.gpu import HandOver
from gpushare.wire import hand_over
from testing.manifests import tree
from tests.apiserver.server import Json, Server, pod

WITH_GPU, WITHOUT = pod("with-gpu", 1), pod("without", None)


def test_the_runtime_class_is_written_unless_every_node_hands_over_by_cdi(server: Server, namespace: str) -> None:
    def written() -> tuple[str | None, str | None]:
        made = server.admitted(namespace, WITH_GPU)
        notes = made["metadata"].get("annotations", {})
        return made["spec"].get("runtimeClassName"), notes.get(names.ANNOTATION_HAND_OVER)

    with server.node("by-cdi", hand_over=HandOver.CDI):
        server.eventually("the controller says cdi", lambda: told(server) == "cdi")
        server.eventually("the webhook goes by it", lambda: written() == (None, "cdi"))
        with server.node("by-variable", hand_over=HandOver.ENVVAR):
            server.eventually("the controller says mixed", lambda: told(server) == hand_over.MIXED)
            server.eventually("the webhook goes by it again", lambda: written() == (names.RUNTIME_CLASS, None))
            assert server.admitted(namespace, WITHOUT)["spec"].get("runtimeClassName") is None
            # The manifests are applied again: what the controller wrote stays.
            shipped = tree.one(tree.objects("base"), "ConfigMap", names.HAND_OVER)
            server.running.kubectl("apply", "--validate=false", "-f", "-", input=json.dumps(shipped))
            assert told(server) == hand_over.MIXED


def told(server: Server) -> str:
    """By the controller."""
    return hand_over.word(server.api.get(hand_over.path(names.NAMESPACE)))


def test_a_namespace_demands_limits_for_all_of_its_gpu_pods(server: Server, namespace: str) -> None:
    server.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {names.LABEL_LIMIT: names.ENFORCED}}})

    def demands(value: Json) -> bool:
        notes = server.admitted(namespace, value)["metadata"].get("annotations", {})
        return bool(notes.get(names.ANNOTATION_LIMIT) == names.ENFORCED)

    server.eventually("a GPU pod demands an enforced limit", lambda: demands(WITH_GPU))
    assert not demands(WITHOUT)
    with server.node("node-1"):
        server.create_pod(namespace, WITH_GPU)
        message = "needs a GPU with an enforced limit; GPUs of node-1: 0: limit "
        assert message in server.unschedulable(namespace, "with-gpu")
        assert "nodeName" not in server.pod(namespace, "with-gpu")["spec"]
        server.delete_pods(namespace)
