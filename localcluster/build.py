"""Build the Kubernetes binaries from the distribution's source package, once, into a cache directory.

No package index carries a kube-apiserver binary, but the source package of Debian holds the whole tree with its
vendored dependencies and builds with the distribution's own Go compiler: about five minutes on two cores, and 2 GB of
disk that are given back afterwards. Standard library only, like ``provision``.
"""

import os
import re
import shutil
from pathlib import Path

from localcluster import apt
from localcluster.provision import KUBERNETES, ProvisionError, Say, Version, install_packages, locked, run_step

SOURCE_PACKAGE = "kubernetes"
GO = Path("/usr/lib/go/bin/go")
REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
PACKAGES = {
    "golang-go": GO,
    "dpkg-dev": Path("/usr/bin/dpkg-source"),
    "golang-github-modern-go-reflect2-dev": REFLECT2 / "reflect2.go",
}
TREE = "k8s.io/kubernetes"
OPENAPI_MARK = "+k8s:openapi-gen="
OPENAPI_SKIPPED = frozenset({"code-generator", "sample-apiserver", "kube-openapi", "gengo"})
VERSION_PACKAGES = ("client-go/pkg/version", "component-base/version")

KUBELET_WAITS = (
    # At each start it looks for Docker, in vain: 50 ms instead of 5 s.
    (
        "vendor/github.com/google/cadvisor/container/docker/factory.go",
        "rootDirRetryPeriod time.Duration = 1000 * time.Millisecond",
        "rootDirRetryPeriod time.Duration = 10 * time.Millisecond",
    ),
    # A deleted pod leaves the API when the next round finds its containers gone: a round a second instead of 10 s.
    (
        "pkg/kubelet/status/status_manager.go",
        "const syncPeriod = 10 * time.Second",
        "const syncPeriod = 1 * time.Second",
    ),
)


def cached_or_built(cache: Path, say: Say) -> Path:
    """Return a directory with all Kubernetes binaries, building them if this machine never did."""
    with locked(cache / "kubernetes.lock", say):
        binaries = cached(cache)
        if binaries is not None:
            return binaries
        install_packages((name for name, probe in PACKAGES.items() if not probe.exists()), say)
        return _Build(cache, say).run()


def cached(cache: Path) -> Path | None:
    """The newest Kubernetes in the cache that has everything a cluster needs."""
    candidates = [
        path for path in cache.glob("kubernetes-[0-9]*") if all(os.access(path / name, os.X_OK) for name in KUBERNETES)
    ]
    return max(candidates, key=lambda path: Version.parse(path.name), default=None)


class _Build:
    """One build, in a directory of its own below the cache; a failed one keeps its compiler cache for the next."""

    def __init__(self, cache: Path, say: Say) -> None:
        self._cache = cache
        self._say = say
        self._work = cache / "build"
        self._log = cache / "build.log"
        self._tree = self._work / "go/src" / TREE

    def run(self) -> Path:
        self._say("building Kubernetes from the source package: minutes, once per machine")
        for name in ("go", "source", "apt", "bin"):
            shutil.rmtree(self._work / name, ignore_errors=True)
        (self._work / "bin").mkdir(parents=True)
        self._log.unlink(missing_ok=True)
        version = self._fetch()
        self._fix_reflect2()
        self._shorten_waits()
        self._generate_openapi()
        for name in KUBERNETES:
            output = self._work / "bin" / name
            self._go(
                f"compiling {name} {version}", "-ldflags", _link_flags(version), "-o", str(output), f"./cmd/{name}"
            )
        result = self._cache / f"kubernetes-{version}"
        shutil.rmtree(result, ignore_errors=True)
        (self._work / "bin").rename(result)
        self._say(f"removing the compiler's cache below {self._work}")
        shutil.rmtree(self._work)
        return result

    def _fetch(self) -> Version:
        source = self._work / "source"
        source.mkdir(parents=True)
        options = apt.private_lists(self._work / "apt", apt.source_packages)
        fetch = ["apt-get", *options, "source", "--download-only", SOURCE_PACKAGE]
        run_step(self._say, "fetching the Kubernetes source package", fetch, self._log, cwd=source)
        described = next(iter(source.glob("*.dsc")), None)
        if described is None:
            raise ProvisionError(f"apt-get source {SOURCE_PACKAGE} brought nothing")
        self._tree.parent.mkdir(parents=True)
        unpack = ["dpkg-source", "--no-check", "-x", str(described), str(self._tree)]
        run_step(self._say, "unpacking the Kubernetes source package", unpack, self._log)
        if not (self._tree / "cmd/kube-apiserver").is_dir():
            raise ProvisionError(
                f"{described.name} does not hold the source of Kubernetes: this distribution ships something else "
                "under that name. Set KUBEBUILDER_ASSETS to a directory with " + ", ".join(KUBERNETES)
            )
        # 1.20.5+really1.20.2-1.1 is Debian's way to go back to 1.20.2.
        return Version.parse(re.sub(r".*\+really", "", described.name))

    def _fix_reflect2(self) -> None:
        """Replace a vendored package that, with Go 1.18 or newer, crashes the API server on a mutating webhook."""
        vendored = self._tree / "vendor/github.com/modern-go/reflect2"
        for pattern in ("*.go", "*.s"):
            for old in vendored.glob(pattern):
                old.unlink()
            for new in REFLECT2.glob(pattern):
                shutil.copy(new, vendored)

    def _shorten_waits(self) -> None:
        """Shorten two waits of the kubelet that no setting reaches; what it does stays the same."""
        for name, slow, fast in KUBELET_WAITS:
            path = self._tree / name
            text = path.read_text()
            if slow not in text:
                self._say(f"note: {name} has no {slow!r} to shorten")
            path.write_text(text.replace(slow, fast))

    def _generate_openapi(self) -> None:
        """Make the one generated file that the source package leaves out."""
        generator = self._work / "openapi-gen"
        self._go("compiling openapi-gen", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        packages = ",".join(f"{TREE}/{package}" for package in _openapi_packages(self._tree))
        argv = [str(generator), "-p", f"{TREE}/pkg/generated/openapi", "-O", "zz_generated.openapi"]
        argv += ["-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"]
        argv += ["-r", str(self._work / "openapi-report"), "-i", packages]
        run_step(self._say, "generating API definitions", argv, self._log, env=self._environment(), cwd=self._tree)

    def _go(self, what: str, *arguments: str) -> None:
        argv = [str(GO), "build", "-trimpath", *arguments]
        run_step(self._say, what, argv, self._log, env=self._environment(), cwd=self._tree)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{GO.parent}:/usr/bin:/bin",
            "HOME": str(self._work),
            "GOPATH": str(self._work / "go"),
            "GOCACHE": str(self._work / "cache"),
            "GO111MODULE": "off",
            "CGO_ENABLED": "0",
        }


def _link_flags(version: Version) -> str:
    flags = ["-s", "-w"]
    for package in VERSION_PACKAGES:
        prefix = f"{TREE}/vendor/k8s.io/{package}"
        flags.append(f"-X {prefix}.gitVersion=v{version}")
        flags.append(f"-X {prefix}.gitMajor={version.major} -X {prefix}.gitMinor={version.minor}")
    return " ".join(flags)


def _openapi_packages(tree: Path) -> list[str]:
    """Return the packages, relative to the tree, whose types carry the generator's mark."""
    tops = [tree / name for name in ("pkg", "cmd", "plugin")]
    tops += [path for path in (tree / "vendor/k8s.io").iterdir() if path.name not in OPENAPI_SKIPPED]
    packages: set[str] = set()
    for top in tops:
        # The vendored Kubernetes modules are links; a trailing slash makes the walk enter them.
        for directory, _, names in os.walk(f"{top}/"):
            for name in names:
                if (
                    not name.endswith(".go")
                    or name.endswith("_test.go")
                    or name.startswith(("zz_generated", "generated"))
                ):
                    continue
                path = Path(directory, name)
                if OPENAPI_MARK in path.read_text(errors="replace"):
                    packages.add(str(path.parent.relative_to(tree)))
    return sorted(packages)
