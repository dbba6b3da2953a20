"""JupyterHub's real KubeSpawner, in an environment of its own: it would hold back what the project itself may use."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from localcluster import provision
from localcluster.process import clean_environment
from localcluster.provision import ProvisionError, Say
from testing.pages import ROOT, blocks, text

Json = dict[str, Any]
LOCK: Final = ROOT / "requirements" / "jupyterhub.txt"
SCRIPT: Final = Path(__file__).with_name("spawn.py")
Server = Mapping[str, str]
"""`user` and `profile`, and `name` of one that is not the user's first."""
NO_CLUSTER: Final = {
    "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
    "users": [{"name": "c", "user": {}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    "current-context": "c",
}
NAME: Final = "docs/jupyterhub.md"
PAGE: Final = text(NAME)


def python(say: Say = provision.say_nothing) -> Path:
    """The interpreter that has KubeSpawner, made once. Skips where none can be had."""
    cache = provision.cache_directory()
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    directory = cache / f"kubespawner-{key}"
    with provision.locked(cache / "kubespawner.lock", say):
        if not directory.exists():
            try:
                _make(cache, directory, say)
            except ProvisionError as error:
                pytest.skip(str(error))
    return directory / "bin" / "python"


def _make(cache: Path, directory: Path, say: Say) -> None:
    for old in cache.glob("kubespawner-*/"):
        shutil.rmtree(old)
    log, made = cache / "kubespawner.log", str(directory / "bin" / "python")
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    try:
        provision.run_step(say, "an environment for KubeSpawner", [sys.executable, "-m", "venv", str(directory)], log)
        provision.run_step(say, "installing KubeSpawner", [made, *pip, "--requirement", str(LOCK)], log)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def values() -> list[Json]:
    """What the page writes for JupyterHub's chart."""
    return [block for block in map(yaml.safe_load, blocks(NAME, "yaml")) if "kind" not in block]


def profiles() -> list[Json]:
    """Of the page, as the chart hands them to KubeSpawner."""
    [found] = [block for block in values() if "profileList" in block.get("singleuser", {})]
    return list(found["singleuser"]["profileList"])


def user_scheduler() -> Json:
    """The configuration of JupyterHub's scheduler that the page writes."""
    [found] = [block for block in map(yaml.safe_load, blocks(NAME, "yaml")) if "extenders" in block]
    return dict(found)


def pods(settings: Mapping[str, Any], servers: Sequence[Server], directory: Path) -> list[Json]:
    """The pods that KubeSpawner would create. Args: directory: an empty one."""
    somewhere = directory / "kubeconfig"
    somewhere.write_text(yaml.safe_dump(NO_CLUSTER))
    return _ask("pods", settings, servers, somewhere)


def spawned(settings: Mapping[str, Any], servers: Sequence[Server], kubeconfig: Path) -> list[Json]:
    """Create them, wait until each runs or has failed, and tell what the user saw: `pod`, `url` or `failed`, `seen`."""
    return _ask("spawn", settings, servers, kubeconfig)


def _ask(what: str, settings: Mapping[str, Any], servers: Sequence[Server], kubeconfig: Path) -> list[Json]:
    question = json.dumps({"what": what, "settings": settings, "servers": list(servers)})
    argv = [str(python()), "-P", "-W", "ignore", str(SCRIPT)]
    variables = {**clean_environment(), "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(argv, input=question, capture_output=True, text=True, timeout=240, check=False, env=variables)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[Json] = json.loads(done.stdout.splitlines()[-1])
    return answers
