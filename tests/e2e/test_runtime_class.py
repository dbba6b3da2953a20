"""RuntimeClasses of NVIDIA: refused where an administrator chooses so, and not written where no node needs one."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.wire import hand_over
from gpushare.wire import inventory as inventory_wire
from tests.e2e.system import Json, Share, System

pytestmark = pytest.mark.e2e
POLICY: Final = names.RUNTIME_CLASS_POLICY
CHOICE: Final = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{POLICY}"
WITH_GPU, WITHOUT = Share(name="with-gpu"), Share(name="without", gib=(None,))


def admitted(system: System, namespace: str, share: Share, runtime: str | None = None) -> Json:
    """The pod as it would be stored."""
    pod = share.document()
    if runtime:
        pod["spec"]["runtimeClassName"] = runtime
    return system.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, {"dryRun": "All"}, timeout_s=30)


def refused(system: System, namespace: str, share: Share) -> bool:
    try:
        admitted(system, namespace, share, names.RUNTIME_CLASS)
    except kube.BadRequestError as error:
        if POLICY not in str(error):
            raise
        return True
    return False


@contextmanager
def refusing(system: System, word: str) -> Iterator[None]:
    before = system.api.get(CHOICE)["data"]["refuse"]
    system.api.patch(CHOICE, {"data": {"refuse": word}})
    try:
        yield
    finally:
        system.api.patch(CHOICE, {"data": {"refuse": before}})


def test_an_administrator_decides_to_whom_the_runtime_class_is_refused(system: System, namespace: str) -> None:
    if (system.cluster.version.major, system.cluster.version.minor) < (1, 30):
        assert not refused(system, namespace, WITHOUT)  # such servers have no policies
        return

    def agree(expected: tuple[bool, bool]) -> bool:
        return (refused(system, namespace, WITHOUT), refused(system, namespace, WITH_GPU)) == expected

    for word, expected in (("without-gpus", (True, False)), ("always", (True, True)), ("nothing", (False, False))):
        with refusing(system, word):
            system.eventually(f"{word} takes effect", functools.partial(agree, expected))
            admitted(system, namespace, WITHOUT)


def test_the_runtime_class_is_written_unless_every_node_hands_over_by_cdi(system: System, namespace: str) -> None:
    nodes = system.api.get("/api/v1/nodes")["items"]
    inventories = [found for node in nodes if (found := inventory_wire.of_node(node)) is not None]
    word = hand_over.summary(inventories)
    path = hand_over.path(names.NAMESPACE)
    system.eventually("the controller has told it", lambda: hand_over.word(system.api.get(path)) == word)
    expected = (None, "cdi") if word == "cdi" else (names.RUNTIME_CLASS, None)

    def written() -> tuple[str | None, str | None]:
        pod = admitted(system, namespace, WITH_GPU)
        notes = pod["metadata"].get("annotations", {})
        return pod["spec"].get("runtimeClassName"), notes.get(names.ANNOTATION_HAND_OVER)

    system.eventually("the webhook goes by it", lambda: written() == expected)
    assert admitted(system, namespace, WITHOUT)["spec"].get("runtimeClassName") is None
