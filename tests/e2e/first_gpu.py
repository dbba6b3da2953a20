"""A new administrator's way, timed: from an empty cluster to the first shared GPU, by docs/install.md.

`make firstgpu` runs it. Every command of the page's blocks for kubeadm is typed as it stands there. Three programs are
stand-ins: `docker`, because the image is built by this project's own means; `helm`, which is Helm's own library, and
asks for simulated GPUs besides; `python3`, which is the interpreter of the tests.
"""

import shlex
import subprocess
import sys
import time

from localcluster import installation, process, provision
from localcluster.cluster import Cluster
from testing import pages
from tests.e2e.administrator import environment, give_helm, give_program


def main() -> int:
    """Run it; the last line has the figures."""
    with Cluster(nodes=1, say=print) as cluster:
        for archive in installation.build_images(cluster, print):
            cluster.import_image(archive)
        if cluster.version < provision.Version(1, 21):
            cluster.kubectl("label", "namespace", "kube-system", "kubernetes.io/metadata.name=kube-system")
        directory = cluster.workdir / "administrator"
        directory.mkdir()
        give_program(directory, "docker", 'echo "docker $1: the nodes have the image already"')
        give_program(directory, "python3", f'exec {sys.executable} "$@"')
        give_helm(directory, "--set", "gpus=simulated")
        named = {"REGISTRY": installation.IMAGE.rpartition("/")[0], "NODE": cluster.nodes[0].name}
        commands = pages.quick_start()
        typed = "\n".join(f"echo {shlex.quote(f'$ {command}')}\n{command}" for command in commands)
        began, environ = time.monotonic(), {**environment(cluster, directory), **named}
        argv = ["bash", "-euo", "pipefail", "-c", typed]
        code = subprocess.run(argv, cwd=installation.ROOT, env=environ, timeout=600, check=False).returncode
        if code != 0:
            raise process.ClusterError(f"a command of docs/{pages.QUICK_START} ended with {code}")
        seconds = time.monotonic() - began
        pod = cluster.kubectl("get", "pod", "gpu-share-pod1", "-o", "jsonpath={.spec.nodeName} {.status.phase}").stdout
        if pod != f"{cluster.nodes[0].name} Running":
            raise process.ClusterError(f"gpu-share-pod1: {pod}")
        print(f"Kubernetes {cluster.version}: first shared GPU after {len(commands)} commands and {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
