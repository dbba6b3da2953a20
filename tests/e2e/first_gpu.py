"""A new administrator's way, timed: from an empty cluster to the first shared GPU, by docs/install.md.

`make firstgpu` runs it. Every command of the page's blocks for kubeadm is typed as it stands there. Three programs are
stand-ins: `docker`, because the image is built by this project's own means; `helm`, which is Helm's own library, and
asks for simulated GPUs besides; `python3`, which is the interpreter of the tests.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from localcluster import installation, process, provision
from localcluster.cluster import Cluster
from testing import pages
from testing.manifests import helm_cli

REGISTRY: Final = installation.IMAGE.rpartition("/")[0]
LIMIT_S: Final = 600


def stand_ins() -> Iterator[tuple[str, str]]:
    """Names of programs and their scripts."""
    helm = shlex.join([sys.executable, helm_cli.__file__])
    yield "docker", 'echo "docker $1: the nodes have the image already"'
    yield "helm", f'exec {helm} "$@" --set gpus=simulated'
    yield "python3", f'exec {sys.executable} "$@"'


def environment(cluster: Cluster, directory: Path) -> Mapping[str, str]:
    """What the administrator's shell has."""
    programs = directory / "bin"
    programs.mkdir()
    for name, script in stand_ins():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    return {
        "PATH": f"{programs}:{cluster.program('kubectl').parent}:{os.defpath}",
        "HOME": str(directory),
        "KUBECONFIG": str(cluster.kubeconfig),
        "REGISTRY": REGISTRY,
        "NODE": cluster.nodes[0].name,
    }


def follow(environ: Mapping[str, str]) -> tuple[int, float]:
    """Type all commands in one shell.

    Returns:
        How many they were, and the seconds that they took.
    """
    all_commands = pages.quick_start()
    told = "\n".join(f"echo {shlex.quote(f'$ {command}')}\n{command}" for command in all_commands)
    began = time.monotonic()
    argv = ["bash", "-euo", "pipefail", "-c", told]
    done = subprocess.run(argv, cwd=installation.ROOT, env=environ, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise process.ClusterError(f"a command of docs/{pages.QUICK_START} ended with {done.returncode}")
    return len(all_commands), time.monotonic() - began


def main() -> int:
    """Run it; the last line has the figures."""
    with Cluster(nodes=1, say=print) as cluster:
        for archive in installation.build_images(cluster, print):
            cluster.import_image(archive)
        if cluster.version < provision.Version(1, 21):
            cluster.kubectl("label", "namespace", "kube-system", "kubernetes.io/metadata.name=kube-system")
        directory = cluster.workdir / "administrator"
        directory.mkdir()
        count, seconds = follow(environment(cluster, directory))
        pod = cluster.kubectl("get", "pod", "gpu-share-pod1", "-o", "jsonpath={.spec.nodeName} {.status.phase}").stdout
        if pod != f"{cluster.nodes[0].name} Running":
            raise process.ClusterError(f"gpu-share-pod1: {pod}")
        print(f"Kubernetes {cluster.version}: first shared GPU after {count} commands and {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
