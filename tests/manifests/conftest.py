import pytest

from tests.manifests import kustomize
from tests.manifests.kustomize import Kubectl


@pytest.fixture(scope="session")
def kubectls() -> list[Kubectl]:
    """All that are here, at least one."""
    found = kustomize.kubectls()
    if not found:
        pytest.skip("there is no kubectl: python -m localcluster.provision")
    return found
