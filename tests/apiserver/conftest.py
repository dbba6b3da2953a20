"""One API server of each version for all tests here, with this project on it, and a namespace for each test."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpushare import names
from localcluster import installation, provision
from localcluster.apiserver import POLICIES_SINCE, WEBHOOKS, WORKLOADS, ApiServer
from testing import skips
from tests.apiserver.policies import CLASSES, OF_NVIDIA, OTHERS, PLAIN, SAMPLES, TEAM, choosing, wait_for
from tests.apiserver.server import Server

HERE: Final = Path(__file__).parent
CONFIG: Final = {"GPUSHARE_WHOLE_GPUS": "true"}
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
        running.install(CONFIG, *([choice] if running.has_policies else []))
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
