"""That importing does nothing, and what is imported late; who may import whom is checked by `make lint`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli")
OBJECTS = tuple(f'"gpushare-{name}"' for name in ("controller", "device-plugin", "config", "isolation"))
SKIPPED = ("__main__", "api", "nvml")  # programs; generated code; NVIDIA's library is loaded late

PROBE = """
import importlib, json, sys, threading
from pathlib import Path
before = set(Path('.').iterdir())
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
assert threading.active_count() == 1, threading.enumerate()
assert set(Path('.').iterdir()) == before
print(json.dumps(sorted(sys.modules)))
"""


def modules(package: str) -> list[str]:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not set(parts) & set(SKIPPED):
            found.append(".".join(parts).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_starts_no_thread_and_writes_no_file(package: str, tmp_path: Path) -> None:
    loaded(modules(package), tmp_path)


def test_the_plugin_does_not_load_what_would_cost_its_first_second(tmp_path: Path) -> None:
    late = {"deviceplugin.metrics"}  # loaded when someone reads them
    found = loaded([name for name in modules("deviceplugin") if name not in late], tmp_path)
    assert not {"kubernetes", "flask", "gunicorn", "prometheus_client", "cryptography", "pynvml"} & set(found)


def test_names_on_the_wire_are_spelled_in_one_module_only() -> None:
    spelled = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "names.py"
        for name in (
            '"aliyun.com/gpu-mem"',
            '"gpushare.dev/',
            '"devices.gpushare.dev/',
            '"NVIDIA_VISIBLE_DEVICES"',
            *OBJECTS,
        )
        if name in path.read_text(encoding="utf-8")
    ]
    assert not spelled


def loaded(names: list[str], directory: Path) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", PROBE, json.dumps(names)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result: list[str] = json.loads(done.stdout)
    return result
