"""The image, built by buildah from two copies of the sources that differ in times and modes, without a network."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import gpushare
from localcluster import images, node_files, python_image
from localcluster.images import Entry
from localcluster.installation import ROOT
from release.__main__ import digest, with_pip
from tests.e2e.system import System

pytestmark = pytest.mark.release
BASE = "localhost/python-base:test"
ARCHIVE = f"dist/gpushare-{gpushare.__version__}.oci.tar"
OF_BUILD = (
    *("config-", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tkinter", "turtledemo"),
)
"""Directories of the standard library that no image needs; the first is large."""
NAME = "localhost/gpushare:test"
INSTALLED = (
    "import importlib.metadata as m; print(*sorted(d.name.lower().replace('_', '-') for d in m.distributions()))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Path]]:
    """Two copies of the sources, in each of which the image was built without a network."""
    if shutil.which("buildah") is None:
        pytest.skip("there is no buildah here")
    directory = tmp_path_factory.mktemp("image")
    environment = for_buildah(directory)
    run(["buildah", "pull", f"docker-archive:{base_image(directory)}"], environment)
    copies = [sources(directory / "one"), directory / "two"]
    shutil.copytree(copies[0], copies[1], copy_function=shutil.copyfile)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    run([sys.executable, "-m", "release", "wheels", f"--python-version={version}"], environment, copies[0])
    shutil.copytree(copies[0] / "wheels", copies[1] / "wheels")
    for copy in copies:
        build = ["unshare", "--net", sys.executable, "-m", "release", "image", f"--python-image={BASE}"]
        run([*build, "--builder=buildah", f"--name={NAME}"], environment, copy)
    yield copies
    shutil.rmtree(directory, ignore_errors=True)


def for_buildah(directory: Path) -> Mapping[str, str]:
    """Variables, so that it needs no daemon, and leaves nothing outside of a directory."""
    storage = directory / "storage.conf"
    driver = "overlay" if node_files.snapshotter(directory) == "overlayfs" else "vfs"
    roots = f'graphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n'
    storage.write_text(f'[storage]\ndriver = "{driver}"\n{roots}')
    variables = {"CONTAINERS_STORAGE_CONF": str(storage), "STORAGE_DRIVER": driver, "BUILDAH_ISOLATION": "chroot"}
    return {**os.environ, **variables, "SOURCE_DATE_EPOCH": "1700000000"}


def run(argv: Sequence[str | Path], environment: Mapping[str, str], directory: Path = ROOT) -> str:
    done = subprocess.run(
        argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


def base_image(directory: Path) -> Path:
    """The running Python with pip and a shell, in the place of the official image, which no registry here has."""
    top = python_image.STANDARD_LIBRARY
    entries = library(Path(sysconfig.get_path("stdlib")), top)
    pip = run([with_pip(), "-c", "import pip; print(pip.__path__[0])"], os.environ)
    for packages in ("site-packages", "dist-packages"):  # the second is Debian's
        entries |= library(Path(pip), f"{top}/{packages}/pip")
    program = Path(sys.base_prefix, "bin", python_image.VERSION).resolve()
    entries[python_image.INTERPRETER] = Entry(source=program, mode=0o755)
    entries |= {f"/usr/local/bin/{name}": Entry(link=python_image.VERSION) for name in ("python", "python3")}
    entries |= python_image.libraries(entries)
    entries["/bin/busybox"] = Entry(source=Path(str(shutil.which("busybox"))), mode=0o755)
    entries |= {f"/bin/{applet}": Entry(link="busybox") for applet in images.APPLETS}
    entries |= images.account_files()
    layer = images.write_layer(directory / "base.layer", entries)
    settings = images.Settings(cmd=["sh"], env={"LD_LIBRARY_PATH": python_image.UNUSED_LIBRARIES})
    return images.write_image(directory / "base.tar", [BASE], [layer], settings)


def library(top: Path, inside: str) -> dict[str, Entry]:
    return {
        f"{inside}/{path.relative_to(top)}": Entry(source=path)
        for path in top.rglob("*")
        if not path.relative_to(top).parts[0].startswith(OF_BUILD)
        and "__pycache__" not in path.parts
        and path.is_file()
    }


def sources(directory: Path) -> Path:
    """A copy of what git tracks, as another user's clone has it."""
    tracked = run(["git", "ls-files"], os.environ)
    for name in tracked.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("docs/", "manifests/", "tests/")):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, directory / name)
            (directory / name).chmod(0o664)
    return directory


def test_the_same_sources_give_the_same_image_without_a_network(built: Sequence[Path]) -> None:
    one, two = (digest(copy / ARCHIVE) for copy in built)
    assert one == two


def test_nodes_without_a_registry_run_the_image(system: System, shared_namespace: str, built: Sequence[Path]) -> None:
    """As docs/install.md has it, from the archive; what is installed in it is what the list says."""
    system.cluster.import_image(built[0] / ARCHIVE)
    command = ["sh", "-c", f'gpushare --version && exec /opt/gpushare/bin/python3 -c "{INSTALLED}"']
    container = {"name": "c0", "image": NAME, "imagePullPolicy": "Never", "command": command}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "image"}}
    system.create(shared_namespace, {**document, "spec": {"restartPolicy": "Never", "containers": [container]}})
    ended = {"Succeeded", "Failed"}
    system.eventually("it has ended", lambda: system.pod(shared_namespace, "image")["status"]["phase"] in ended)
    said = system.cluster.kubectl("logs", "-n", shared_namespace, "image").stdout.split()
    bill = json.loads((built[0] / "dist" / f"gpushare-{gpushare.__version__}.cdx.json").read_text())
    listed = [each["name"] for each in bill["components"] if "version" in each]
    assert said == ["gpushare", gpushare.__version__, *sorted([*listed, "gpushare"])]
