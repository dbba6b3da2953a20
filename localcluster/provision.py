"""Find the programs that a cluster is made of, and make those that no one ships.

Order: the directory in ``KUBEBUILDER_ASSETS`` (it may hold only some of them), then ``PATH``, then our cache, which is
filled once from the distribution's source package (see ``build``). Distribution packages for the rest (etcd,
containerd, runc, network plugins, busybox) are installed when they are missing. Standard library only, because this
runs before any virtual environment exists: ``python3 -m localcluster.provision``.
"""

import dataclasses
import fcntl
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster import limits

Say = Callable[[str], None]

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
CACHE_VARIABLE = "GPUSHARE_CACHE"

CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
PROGRESS_PERIOD_S = 15
AGAIN = "Run the command again: packages and compiled parts are kept, and it goes on from them."

CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""What runs without nodes."""

COUPLED = frozenset({"kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet"})
"""Programs that work together in one version only."""

COMMAND_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
"""The package that brings each command, tried only when the command is missing: a containerd that came from
elsewhere (Docker's own packages) is good enough, and installing the distribution's would remove it."""


class ProvisionError(RuntimeError):
    """A program is missing and could not be provided; the message says what the reader can do."""


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    """A Kubernetes version, by which flags and configuration versions are chosen."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @staticmethod
    def parse(text: str) -> "Version":
        """Read the first ``N.N.N`` in the text, such as ``Kubernetes v1.20.2``."""
        version = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
        if version is None:
            raise ProvisionError(f"no version number in {text!r}")
        major, minor, patch = (int(part) for part in version.groups())
        return Version(major, minor, patch)


@dataclasses.dataclass(frozen=True)
class Programs:
    """Where every program is, and the version of Kubernetes."""

    paths: dict[str, Path]
    cni_directory: Path
    version: Version

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]

    def version_of(self, name: str) -> Version:
        """The version of one of Kubernetes' own programs, which may differ where that does no harm."""
        return Version.parse(output([str(self.paths[name]), "--version"]))


def say_nothing(_: str) -> None:
    """Drop progress messages."""


def provision(say: Say = say_nothing) -> Programs:
    """Return all programs, installing or building what is missing (minutes the first time, milliseconds later)."""
    _install_system_packages(say)
    paths = {name: path for name in (*COMMAND_PACKAGES, "busybox") if (path := _which(name)) is not None}
    missing = []
    for name in KUBERNETES:
        program = _which(name)
        if program is None:
            missing.append(name)
        else:
            paths[name] = program
    if missing:
        directory = _cached_or_built(say)
        # One version for all that must fit together; a proxy or a kubectl of another version does.
        mixable = not COUPLED & set(missing)
        if not mixable and any(_is_asset(paths[name]) for name in KUBERNETES if name in paths):
            lacking = ", ".join(sorted(COUPLED & set(missing)))
            say(f"KUBEBUILDER_ASSETS lacks {lacking}: built Kubernetes is used instead")
        for name in KUBERNETES:
            if name in missing or not (mixable and _is_asset(paths[name])):
                paths[name] = directory / name
    cni = next((path for path in CNI_DIRECTORIES if (path / "ptp").exists()), None)
    if cni is None:
        raise ProvisionError("no network plugins (ptp) in " + ", ".join(map(str, CNI_DIRECTORIES)))
    printed = output([str(paths["kube-apiserver"]), "--version"])
    return Programs(paths=paths, cni_directory=cni, version=Version.parse(printed))


def control_plane(directory: Path | None = None, say: Say = say_nothing) -> Programs:
    """What runs without nodes; root is needed only where something is missing.

    Args:
        directory: of another version (see `newer_control_plane`); by default that of `provision`.
        say: see `provision`.
    """
    if _which("etcd") is None:
        install_packages([COMMAND_PACKAGES["etcd"]], say)
    paths = _own_control_plane() if directory is None else {}
    if not paths:
        directory = directory or _cached_or_built(say)
        paths = {name: directory / name for name in CONTROL_PLANE}
    if etcd := _which("etcd"):
        paths["etcd"] = etcd
    return Programs(paths=paths, cni_directory=Path(), version=_version_of(paths))


def newer_control_plane() -> Path | None:
    """Where the cache has the programs of the newest Kubernetes, if that is newer than what `control_plane` takes.

    Anyone may put or link them there, into a directory `kubernetes-N.N.N`; where kubelet and kube-proxy are beside
    them, clusters take that version too. Nothing is installed or built.
    """
    found = {
        Version.parse(path.name): path
        for path in cache_directory().glob("kubernetes-[0-9]*")
        if all(os.access(path / name, os.X_OK) for name in CONTROL_PLANE)
    }
    own = _own_control_plane() or _cached_control_plane()
    newest = max(found, default=None)
    return found[newest] if newest and (not own or newest > _version_of(own)) else None


def _own_control_plane() -> dict[str, Path]:
    found = {name: path for name in CONTROL_PLANE if (path := _which(name)) is not None}
    return found if len(found) == len(CONTROL_PLANE) else {}


def _cached_control_plane() -> dict[str, Path]:
    from localcluster import build  # The builder needs this module; importing it here breaks the circle.

    directory = build.cached(cache_directory())
    return {name: directory / name for name in CONTROL_PLANE} if directory else {}


def _version_of(paths: dict[str, Path]) -> Version:
    return Version.parse(output([str(paths["kube-apiserver"]), "--version"]))


def cache_directory() -> Path:
    """Return the directory for what may be kept between runs and can be made again."""
    explicit = os.environ.get(CACHE_VARIABLE)
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpushare"


def run_step(
    say: Say,
    what: str,
    argv: list[str],
    log: Path,
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = limits.BUILD_STEP_S,
) -> None:
    """Run a long command with its output in a log file, saying every few seconds how long it has taken."""
    started = time.monotonic()
    say(f"{what} ...")
    with log.open("ab") as output:
        child = subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=env, cwd=cwd)
        try:
            _wait_talking(child, what, say, started, timeout_s)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    elapsed = time.monotonic() - started
    if child.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise ProvisionError(
            f"{what}: exit status {child.returncode} after {elapsed:.0f} s; {AGAIN} End of {log}:\n{tail}"
        )
    say(f"{what}: done in {elapsed:.0f} s")


def _wait_talking(child: subprocess.Popen[bytes], what: str, say: Say, started: float, limit: float) -> None:
    while True:
        try:
            child.wait(PROGRESS_PERIOD_S)
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - started
            say(f"{what}: {elapsed:.0f} s so far")
            if elapsed > limit:
                raise ProvisionError(f"{what}: not finished after {limit:.0f} s. {AGAIN}") from None
        else:
            return


@contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Hold a lock file, so that two runs neither build nor install at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def install_packages(packages: Iterable[str], say: Say) -> None:
    """Install distribution packages, without questions."""
    names = sorted(set(packages))
    if not names:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ProvisionError(f"please install these packages (needs root and apt): {' '.join(names)}")
    log = cache_directory() / "apt.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-o", "DPkg::Lock::Timeout=600"]
    with locked(cache_directory() / "apt.lock", say):
        run_step(
            say,
            "reading package lists",
            ["apt-get", *options, "update"],
            log,
            env=environment,
            timeout_s=limits.PACKAGES_S,
        )
        run_step(
            say,
            f"installing {' '.join(names)}",
            ["apt-get", *options, "install", "-y", "--no-install-recommends", *names],
            log,
            env=environment,
            timeout_s=limits.PACKAGES_S,
        )


def _install_system_packages(say: Say) -> None:
    wanted = {package for command, package in COMMAND_PACKAGES.items() if _which(command) is None}
    if not any((directory / "ptp").exists() for directory in CNI_DIRECTORIES):
        wanted.add("containernetworking-plugins")
    busybox = _which("busybox")
    if busybox is None or is_dynamic(busybox):
        wanted.add("busybox-static")
    install_packages(wanted, say)


def is_dynamic(program: Path) -> bool:
    """Say whether a program needs shared libraries, and so cannot be the only file of an image."""
    return b"/ld-linux" in program.read_bytes() or b"/ld-musl" in program.read_bytes()


def _cached_or_built(say: Say) -> Path:
    from localcluster import build  # The builder needs this module; importing it here breaks the circle.

    return build.cached_or_built(cache_directory(), say)


def _which(name: str) -> Path | None:
    assets = assets_directory()
    if assets and os.access(assets / name, os.X_OK):
        return assets / name
    return on_path(name)


def on_path(name: str) -> Path | None:
    """Return where the machine itself has a program."""
    # Root shells of ordinary users often lack the sbin directories, where iptables and runc live.
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
    return Path(path) if path else None


def assets_directory() -> Path | None:
    """Return the directory that the user names for programs."""
    assets = os.environ.get(ASSETS_VARIABLE)
    if assets and not Path(assets).is_dir():
        raise ProvisionError(f"{ASSETS_VARIABLE} names {assets}, which is no directory")
    return Path(assets) if assets else None


def _is_asset(path: Path) -> bool:
    return path.parent == assets_directory()


def output(argv: list[str]) -> str:
    """Return what a short command prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def _runtime_with_cdi(programs: Programs) -> Path:
    from localcluster import runtimes  # It needs this module; importing it here breaks the circle.

    return runtimes.with_cdi(programs.version, _print).containerd


def _print(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Provision everything and print where it is."""
    started = time.monotonic()
    try:
        programs = provision(_print)
        with_cdi = _runtime_with_cdi(programs)
    except ProvisionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, path in sorted(programs.paths.items()):
        print(f"{name:26} {path}")
    print(f"{'containerd with CDI':26} {with_cdi}")
    print(f"Kubernetes {programs.version}, ready after {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    # Under its own name, because the versions that `runtimes` knows are of the class that it has imported.
    sys.exit(importlib.import_module("localcluster.provision").main())
