"""One API server of each version for all tests here, with this project on it, and a namespace for each test."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from gpushare import names
from gpushare.kube import api as kube, credentials
from gpushare.kube.client import RestClient
from gpushare.wire import inventory as inventory_wire
from gpushare.wire.claims import API as CLAIMS_API
from localcluster import installation, provision
from localcluster.apiserver import POLICIES_SINCE, WEBHOOKS, WORKLOADS, ApiServer
from localcluster.provision import Version
from testing import claims, skips
from testing.manifests import helm
from tests.apiserver.policies import (
    CLASSES,
    MINE,
    OF_NVIDIA,
    OTHER,
    OTHERS,
    PLAIN,
    SAMPLES,
    SLICES,
    TEAM,
    Plugins,
    choosing,
    slice_of,
    wait_for,
)
from tests.apiserver.server import Json, Server, refusal

HERE: Final = Path(__file__).parent
CONFIG: Final = {"GPUSHARE_WHOLE_GPUS": "true"}
CLAIMS_SINCE: Final = Version(1, 36)
OF_CLAIMS: Final = {
    names.DEVICE_CLASS,
    "gpushare-claim-templates",
    *(f"{names.CONTROLLER}-{name}" for name in ("dra", "claim-templates")),
}
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.apiserver)


NEWER: Final = provision.newer_control_plane()


@pytest.fixture(
    scope="session", params=[None, NEWER] if NEWER else [None], ids=lambda path: path.name if path else "own"
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """This project on a control plane without nodes: of the test clusters' version, and of a newer one if there is."""
    with ApiServer(tmp_path_factory.mktemp("server"), provision.control_plane(request.param)) as running:
        # As on the clusters of the end-to-end tests: pods without GPUs may name the RuntimeClass.
        choice = installation.config_map(names.RUNTIME_CLASS_POLICY, {"refuse": "nothing"})
        dra, patches = {}, [choice] if running.has_policies else []
        if running.version >= CLAIMS_SINCE:
            # Of the component, what is not about device plugins; of the chart, what is about translated pods.
            values = {"kubeVersion": "1.36.0", "wholeGpus": True, "dra": {"enabled": True, "translate": True}}
            found = helm.without_helms_own(helm.render(values))
            running.create(each for each in found if each["metadata"]["name"] in OF_CLAIMS)
            patches += [each for each in found if each["kind"] == "MutatingWebhookConfiguration"]
            dra = {"GPUSHARE_DRA": "true", "GPUSHARE_CLAIM_TEMPLATES": "true"}
        running.install({**CONFIG, **dra}, *patches)
        made = Server(running)
        yield made
        for user in made.users.values():
            user.close()


@pytest.fixture
def namespace(server: Server) -> Iterator[str]:
    """A namespace of the test's own; its pods are gone before the next test."""
    name = f"test-{next(_numbers)}"
    server.create_namespace(name)
    yield name
    server.delete_pods(name)
    server.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The shipped policies and nothing that calls a webhook or schedules, on the newest Kubernetes of this machine."""
    programs = provision.control_plane(NEWER)
    skips.older(programs.version, POLICIES_SINCE, "it has no ValidatingAdmissionPolicies")
    with ApiServer(tmp_path_factory.mktemp("policies"), programs, controllers=False) as running:
        running.create(each for each in running.rendered({}) if each["kind"] not in {*WORKLOADS, *WEBHOOKS})
        made = Server(running)
        for name in (*OF_NVIDIA, *OTHERS):
            running.api.create(CLASSES, {"metadata": {"name": name}, "handler": "runc"})
        made.create_namespace(TEAM)
        for policy, pod in SAMPLES.items():
            wait_for(made, policy, pod, refused=True)
        yield made


@pytest.fixture(scope="module")
def without_class_policy(policies: Server) -> Iterator[Server]:
    """The same where the policy of RuntimeClasses refuses nothing: of several that refuse a pod, any one is named."""
    with choosing(policies, {"refuse": "nothing"}, PLAIN, refused=False):
        yield policies


@pytest.fixture(scope="session")
def plugins(policies: Server) -> Iterator[Plugins]:
    """There are two nodes."""
    for name in (MINE, OTHER):
        metadata = {"name": name, "labels": {"zone": "1"}, "annotations": {"x": "y"}}
        amounts = {"cpu": "4", names.GPU_MEM: "60"}
        policies.api.create("/api/v1/nodes", {"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}})
        status = {"capacity": amounts, "allocatable": amounts}
        policies.api.patch(kube.node_path(name, "status"), {"status": status})
    spec = {"serviceAccountName": names.PLUGIN, "nodeName": MINE, "containers": [{"name": "c", "image": "i"}]}
    own = policies.api.create(
        f"/api/v1/namespaces/{names.NAMESPACE}/pods", {"metadata": {"name": "plugin"}, "spec": spec}
    )
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "plugin", "uid": own["metadata"]["uid"]}
    tokens = [_token(policies, {"boundObjectRef": reference}), _token(policies, {})]
    admin = credentials.of_kubeconfig(str(policies.running.control.kubeconfig))
    made = [
        RestClient(replace(admin, cert_file=None, key_file=None, token_source=partial(str, each))) for each in tokens
    ]
    node, change = kube.node_path(MINE), {"metadata": {"annotations": {names.ANNOTATION_INVENTORY: "{}"}}}
    policies.eventually(
        "the policy of nodes is in force",
        lambda: names.NODES_POLICY in str(refusal(lambda: made[1].patch(node, change, params={"dryRun": "All"}))),
    )
    yield Plugins(*made)
    for each in made:
        each.close()


def _token(server: Server, spec: Json) -> str:
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/{names.PLUGIN}/token"
    made = server.api.create(path, {"spec": {"audiences": [], **spec}})
    return str(made["status"]["token"])


@pytest.fixture(scope="session")
def dra(policies: Server) -> Server:
    """The same with what the chart makes for dynamic resource allocation, and a slice of each node from before."""
    skips.older(policies.version, Version(1, 36), "it shares no device by amounts")
    for node in (MINE, OTHER):
        policies.api.create(SLICES, slice_of(node, name=node))
    before = [each["metadata"] for each in helm.objects()]
    policies.running.create(each for each in helm.objects(dra={"enabled": True}) if each["metadata"] not in before)
    return policies


@contextmanager
def shared_by_claims(server: Server, *nodes: str) -> Iterator[None]:
    """Two of the four GPUs of each node, as device plugins publish them."""
    offered = []
    for name in nodes:
        known = inventory_wire.of_node(server.api.get(kube.node_path(name)))
        assert known is not None
        split = replace(known, gpus=known.gpus[:2], dra=known.gpus[2:])
        annotations = {names.ANNOTATION_INVENTORY: inventory_wire.encode(split)}
        server.api.patch(kube.node_path(name), {"metadata": {"annotations": annotations}})
        offered.append(claims.resource_slice(split))
    with ExitStack() as stack:
        for each in offered:
            server.api.create(f"{CLAIMS_API}/resourceslices", each)
            stack.callback(server.api.delete, f"{CLAIMS_API}/resourceslices/{each['metadata']['name']}")
        yield
