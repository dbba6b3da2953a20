"""What `gpushare scheduler-config` prints is what the manifests install and where the controller listens."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from controller.settings import Settings
from gpushare import names
from gpushare_cli import extenders, schedconfig
from gpushare_cli.schedconfig import Options, ServerVersion

MANIFESTS = Path(__file__).parents[2] / "manifests"
FILES = sorted(MANIFESTS.glob("servers/*/scheduler.yaml"))


def installed(path: Path) -> Any:
    """The configuration in a ConfigMap."""
    return yaml.safe_load(yaml.safe_load(path.read_text(encoding="utf-8"))["data"]["scheduler.yaml"])


def test_there_is_a_configuration_for_old_and_new_servers() -> None:
    found = {installed(path)["apiVersion"] for path in FILES}

    assert {"kubescheduler.config.k8s.io/v1", "kubescheduler.config.k8s.io/v1beta1"} <= found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_the_installed_configuration_is_the_printed_one(path: Path) -> None:
    server = ServerVersion.parse(path.parent.name)

    assert installed(path) == yaml.safe_load(schedconfig.configuration(Options(server=server)))


def test_the_scheduler_calls_the_controller_where_it_listens() -> None:
    url = urlsplit(extenders.DEFAULT_URL)

    assert url.hostname == f"{names.CONTROLLER_SERVICE}.{names.NAMESPACE}.svc"
    assert url.port == Settings().port
    assert url.path == names.EXTENDER_PREFIX
