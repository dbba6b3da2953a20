"""The installed commands, and what each needs of the libraries."""

import importlib.metadata
import signal
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

import gpushare
from gpushare import launch

MODULES = {
    "webhook": "webhook.main",
    "controller": "controller.main",
    "device-plugin": "deviceplugin.main",
    "cli": "gpushare_cli.__main__, kubernetes.config",
}
DENY = """
import sys
class Deny:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {denied!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Deny())
"""


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def needed(extra: str) -> set[str]:
    """The distributions that an installation with this extra brings."""
    waiting = [Requirement(f"gpushare[{extra}]")]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        for text in importlib.metadata.requires(requirement.name) or ():
            each = Requirement(text)
            markers = [
                each.marker is None or each.marker.evaluate({"extra": name}) for name in requirement.extras or {""}
            ]
            if any(markers) and canonical(each.name) not in found:
                found.add(canonical(each.name))
                waiting.append(each)
    return found


def denied(extra: str) -> set[str]:
    """Importable modules of all other installed distributions."""
    allowed = needed(extra) | {"gpushare"}
    providers = importlib.metadata.packages_distributions()
    return {
        module
        for module, distributions in providers.items()
        if not {canonical(each) for each in distributions} & allowed and module not in sys.stdlib_module_names
    } - {"gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("extra", MODULES)
def test_a_component_needs_no_library_outside_of_its_extra(extra: str) -> None:
    ran = run(DENY.format(denied=denied(extra)) + f"import {MODULES[extra]}")

    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_controller_needs_no_web_framework_and_the_command_line_neither_grpc_nor_nvml() -> None:
    assert {"flask", "gunicorn", "jsonpatch", "cryptography"} <= denied("controller")
    assert {"grpc", "pynvml", "flask", "gunicorn", "cryptography"} <= denied("cli")


@pytest.mark.parametrize(
    ("function", "command", "library", "extra"),
    [
        ("webhook", "gpushare-webhook", "flask", "webhook"),
        ("controller", "gpushare-controller", "prometheus_client", "controller"),
        ("cli", "gpushare", "yaml", "cli"),
        ("inspect", "kubectl-inspect-gpushare", "yaml", "cli"),
    ],
)
def test_a_missing_library_names_the_extra_to_install(function: str, command: str, library: str, extra: str) -> None:
    ran = run(DENY.format(denied={library}) + f"from gpushare import launch\nsys.exit(launch.{function}())")

    assert ran.returncode == 2
    assert ran.stderr == f"{command}: the library {library} is missing; run: pip install 'gpushare[{extra}]'\n"


def test_a_missing_module_of_ours_is_no_library_and_a_kubeconfigs_library_names_its_extra() -> None:
    ran = run(DENY.format(denied={"controller"}) + "from gpushare import launch\nsys.exit(launch.controller())")
    assert "ModuleNotFoundError: No module named 'controller'" in ran.stderr
    code = DENY.format(denied={"kubernetes"}) + "from gpushare.kube import client\nclient.connect('/nowhere')"

    ran = run(code)

    assert ran.stderr.splitlines()[-1] == (
        "gpushare.errors.SettingsError: a kubeconfig needs the library kubernetes; run: pip install 'gpushare[cli]', "
        "or leave the kubeconfig away to use the pod's service account"
    )


@pytest.mark.parametrize(
    ("function", "command"),
    [
        *(("cli", "gpushare"), ("inspect", "kubectl inspect gpushare"), ("webhook", "gpushare-webhook")),
        *(("controller", "gpushare-controller"), ("device_plugin", "gpushare-device-plugin")),
    ],
)
def test_every_command_tells_its_version(
    function: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--version"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = getattr(launch, function)()
    except SystemExit as end:
        status = end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (status, capsys.readouterr().out) == (0, f"{command} {gpushare.__version__}\n")
