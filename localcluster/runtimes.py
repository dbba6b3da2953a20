"""The container runtimes of nodes: the machine's own, and one that injects CDI devices.

Debian 12's containerd 1.6 knows nothing of CDI, so nodes with it hand GPUs over by the environment variable. A release
with CDI comes from ``KUBEBUILDER_ASSETS``, from the machine, or from our cache, which is filled once with the package
of the distribution's next release; it runs beside the machine's own and changes nothing there. Standard library only,
like ``provision``.
"""

import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from localcluster import apt, provision
from localcluster.provision import ProvisionError, Say, Version

PACKAGE: Final = "containerd"
FILES: Final = ("containerd", "ctr", "containerd-shim-runc-v2")
NEXT_RELEASE: Final = {"bookworm": "trixie"}
"""For releases of Debian whose own containerd has no CDI: the next one, whose programs still run there."""

CDI_SINCE: Final = Version(1, 7)
CDI_BY_DEFAULT_SINCE: Final = Version(2, 0)
ONLY_V1_SINCE: Final = Version(2, 0)
"""From here on containerd speaks only version 1 of the runtime interface, which kubelets learned in 1.23."""
V1_SINCE: Final = Version(1, 23)


@dataclasses.dataclass(frozen=True)
class ContainerRuntime:
    """One release of containerd, and whether nodes use its CDI."""

    directory: Path
    version: Version
    cdi: bool

    @property
    def containerd(self) -> Path:
        """The program."""
        return self.directory / "containerd"

    @property
    def ctr(self) -> Path:
        """Its command line, of the same release."""
        return self.directory / "ctr"

    @property
    def shim(self) -> Path | None:
        """Its shim beside it; by itself it would look on PATH first, where another release's may be."""
        path = self.directory / "containerd-shim-runc-v2"
        return path if path.exists() else None


def of_the_machine(programs: provision.Programs) -> ContainerRuntime:
    """The machine's own, with CDI off where it could do it."""
    program = provision.on_path("containerd") or programs["containerd"]
    return ContainerRuntime(program.parent, _version(program), cdi=False)


def with_cdi(kubernetes: Version, say: Say) -> ContainerRuntime:
    """One with CDI that a kubelet of this version speaks to, fetched if this machine has none."""
    cache = provision.cache_directory()
    with provision.locked(cache / "containerd.lock", say):
        found = best(_known(cache), kubernetes)
        if found is None:
            _fetch(cache, say)
            found = best(_known(cache), kubernetes)
    if found is None:
        raise ProvisionError(
            f"no containerd with CDI for Kubernetes {kubernetes}: install 1.7, or 2.0 and newer from Kubernetes "
            f"{V1_SINCE.major}.{V1_SINCE.minor} on, or put {', '.join(FILES)} into ${provision.ASSETS_VARIABLE}"
        )
    return found


def best(known: Sequence[ContainerRuntime], kubernetes: Version) -> ContainerRuntime | None:
    """The first that has CDI and speaks what the kubelet does."""
    fits = [
        one for one in known if one.version >= CDI_SINCE and (one.version < ONLY_V1_SINCE or kubernetes >= V1_SINCE)
    ]
    return dataclasses.replace(fits[0], cdi=True) if fits else None


def _known(cache: Path) -> Sequence[ContainerRuntime]:
    assets = provision.assets_directory()
    program = provision.on_path("containerd")
    directories = [*([assets] if assets else []), *([program.parent] if program else [])]
    directories += sorted(cache.glob("containerd-[0-9]*"), reverse=True)
    return [
        ContainerRuntime(directory, _version(directory / "containerd"), cdi=False)
        for directory in directories
        if all((directory / name).exists() for name in FILES)
    ]


def _version(program: Path) -> Version:
    return Version.parse(provision.output([str(program), "--version"]))


def _fetch(cache: Path, say: Say) -> None:
    """Unpack the package of the distribution's next release into the cache; nothing is installed."""
    release = apt.codename()
    following = NEXT_RELEASE.get(release)
    if following is None or shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    work, log = cache / "containerd-work", cache / "containerd.log"
    shutil.rmtree(work, ignore_errors=True)
    (work / "root").mkdir(parents=True)
    say(f"reading package lists of {following} for a containerd with CDI")
    options = apt.private_lists(work / "apt", lambda entry: apt.packages_of(entry, release, following))
    download = ["apt-get", *options, "download", f"{PACKAGE}/{following}"]
    try:
        provision.run_step(say, f"fetching {PACKAGE} of {following}", download, log, cwd=work)
    except ProvisionError as error:
        raise ProvisionError(
            f"the machine's package sources have no {following}, whose {PACKAGE} has CDI: {error}"
        ) from error
    (archive,) = work.glob(f"{PACKAGE}_*.deb")
    provision.run_step(say, f"unpacking {archive.name}", ["dpkg-deb", "-x", str(archive), str(work / "root")], log)
    number = re.sub(r"[^0-9.].*", "", archive.name.split("_")[1])
    partial = work / "bin"
    partial.mkdir()
    for name in FILES:
        shutil.copy2(work / "root/usr/bin" / name, partial / name)
    partial.rename(cache / f"containerd-{number}")
    shutil.rmtree(work)
