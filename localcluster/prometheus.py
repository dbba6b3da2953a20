"""Prometheus and promtool: the machine's own, or the distribution's package, unpacked into our cache.

Nothing is installed and no service starts. Standard library only, like ``provision``.
"""

import shutil
from pathlib import Path
from typing import Final

from localcluster import apt, provision
from localcluster.provision import ProvisionError, Say

PACKAGE: Final = "prometheus"
PROGRAMS: Final = ("prometheus", "promtool")


def programs(say: Say = provision.say_nothing) -> Path:
    """The directory that holds both, fetched once if this machine has none."""
    found = provision.on_path(PROGRAMS[1])
    if found is not None and (found.parent / PROGRAMS[0]).exists():
        return found.parent
    cache = provision.cache_directory()
    with provision.locked(cache / "prometheus.lock", say):
        directory = cache / PACKAGE
        if not directory.exists():
            _fetch(cache, directory, say)
    return directory


def _fetch(cache: Path, directory: Path, say: Say) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ProvisionError(f"neither {' nor '.join(PROGRAMS)} is on PATH: install Prometheus 2.42 or newer")
    work, log = cache / "prometheus-work", cache / "prometheus.log"
    shutil.rmtree(work, ignore_errors=True)
    (work / "root").mkdir(parents=True)
    say("reading package lists for Prometheus")
    options = apt.private_lists(work / "apt", apt.binary_packages)
    provision.run_step(say, f"fetching {PACKAGE}", ["apt-get", *options, "download", PACKAGE], log, cwd=work)
    (archive,) = work.glob(f"{PACKAGE}_*.deb")
    provision.run_step(say, f"unpacking {archive.name}", ["dpkg-deb", "-x", str(archive), str(work / "root")], log)
    partial = work / "bin"
    partial.mkdir()
    for name in PROGRAMS:
        shutil.copy2(work / "root/usr/bin" / name, partial / name)
    partial.rename(directory)
    shutil.rmtree(work)
