"""What the API server refuses by itself: ResourceSlices of our driver but those of a device plugin's own node."""

from collections.abc import Mapping
from typing import Final

import pytest

from gpushare import names
from gpushare.kube.client import RestClient
from tests.apiserver.policies import MINE, OTHER, SLICES, Plugins, slice_of
from tests.apiserver.server import Json, Server, refusal, refused_by

POLICY: Final = names.SLICES_POLICY
DRIVER: Final = names.DRA_DRIVER
FOREIGN: Final = "gpu.example.com"
OTHERS = f"only gpushare's device plugin may create or change ResourceSlices of {DRIVER}; use another driver name"
OWN = (
    f"a device plugin may write only ResourceSlices of {DRIVER} whose nodeName and pool are the node that its own pod"
    " runs on, with the token that its pod was given"
)


def create(client: RestClient, body: Json) -> object:
    return client.create(SLICES, body, params={"dryRun": "All"})


def delete(client: RestClient, name: str) -> object:
    return client.delete(f"{SLICES}/{name}", params={"dryRun": "All"})


def change(server: Server, client: RestClient, name: str, *, labels: bool = False) -> object:
    """Its devices, or its labels alone."""
    body = server.api.get(f"{SLICES}/{name}")
    if labels:
        body["metadata"]["labels"] = {"x": body["metadata"]["resourceVersion"]}
    else:
        body["spec"]["devices"].append({"name": f"gpu-{len(body['spec']['devices'])}"})
    return client.replace(f"{SLICES}/{name}", body)


@pytest.fixture(scope="module")
def slices(dra: Server) -> Server:
    """There is one of each node, and one of another driver."""
    dra.api.create(SLICES, slice_of(MINE, driver=FOREIGN, name=FOREIGN))
    dra.eventually("the policy is in force", lambda: refusal(lambda: create(dra.api, slice_of(MINE))))
    return dra


def test_a_plugin_writes_and_deletes_the_slices_of_its_own_node(slices: Server, plugins: Plugins) -> None:
    create(plugins.of_its_pod, slice_of(MINE))
    change(slices, plugins.of_its_pod, MINE)
    delete(plugins.of_its_pod, MINE)


CREATED: Final[Mapping[str, Json]] = {
    "another-node": slice_of(OTHER),
    "pool-of-another-node": slice_of(MINE, pool=OTHER),
    "all-nodes": slice_of(MINE, allNodes=True),
    "another-driver": slice_of(MINE, driver=FOREIGN),
}


@pytest.mark.parametrize("name", CREATED)
def test_a_plugin_creates_no_others(slices: Server, plugins: Plugins, name: str) -> None:
    assert OWN in refused_by(POLICY, lambda: create(plugins.of_its_pod, CREATED[name]))


@pytest.mark.parametrize("name", [OTHER, FOREIGN])
def test_a_plugin_neither_changes_nor_deletes_others(slices: Server, plugins: Plugins, name: str) -> None:
    for call in (
        lambda: change(slices, plugins.of_its_pod, name),
        lambda: change(slices, plugins.of_its_pod, name, labels=True),
        lambda: delete(plugins.of_its_pod, name),
    ):
        assert OWN in refused_by(POLICY, call)


def test_nothing_with_a_token_that_names_no_node(slices: Server, plugins: Plugins) -> None:
    assert OWN in refused_by(POLICY, lambda: create(plugins.of_no_pod, slice_of(MINE)))
    assert OWN in refused_by(POLICY, lambda: change(slices, plugins.of_no_pod, MINE))


def test_others_write_none_of_our_driver(slices: Server) -> None:
    """Not the administrator either. Kubelets delete them, and the garbage collector takes finalizers off."""
    for call in (lambda: create(slices.api, slice_of(MINE)), lambda: change(slices, slices.api, MINE)):
        assert OTHERS in refused_by(POLICY, call)
    change(slices, slices.api, MINE, labels=True)
    delete(slices.api, MINE)
    create(slices.api, slice_of(MINE, driver=FOREIGN))
    change(slices, slices.api, FOREIGN)
