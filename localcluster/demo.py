"""`make demo`: a cluster on this machine, this project installed from its manifests, and the samples running on it.

With DEMO_ONCE=1 it ends as soon as all samples run, with 0, or with what is missing and 1.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from localcluster import installation, limits, runtimes
from localcluster.cluster import Cluster
from localcluster.process import ClusterError, clean_environment
from localcluster.provision import ProvisionError, Say, Version, provision

SAMPLES: Final = installation.ROOT / "manifests" / "samples"


def main() -> int:
    """Run the demonstration; returns the exit code."""
    once = os.environ.get("DEMO_ONCE") == "1"
    if sys.platform != "linux" or os.geteuid() != 0:
        print("make demo needs root on Linux: it starts real kubelets and containers", file=sys.stderr)
        return 1
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)

    try:
        with Cluster(nodes=2, cdi=with_cdi(provision(say).version, say), say=say) as cluster:
            _demonstrate(cluster, say)
            if not once:
                _keep_running(cluster)
    except (ClusterError, ProvisionError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1 if once else 0
    return 0


def with_cdi(kubernetes: Version, say: Say) -> Collection[int]:
    """Numbers of the nodes that hand GPUs over by CDI: the first, if a container runtime for it can be had."""
    try:
        runtimes.with_cdi(kubernetes, say)
    except ProvisionError as error:
        say(f"both nodes hand GPUs over by the variable: {error}")
        return ()
    return (1,)


def _demonstrate(cluster: Cluster, say: Say) -> None:
    installation.install(cluster, say=say)
    say(f"kubectl apply -f {SAMPLES.relative_to(installation.ROOT)}")
    cluster.kubectl("apply", "-f", str(SAMPLES))
    _wait_for_samples(cluster, say)
    for arguments in (["get", "pods", "-o", "wide"], ["inspect", "gpushare"], ["inspect", "gpushare", "-d"]):
        print(f"\n$ kubectl {' '.join(arguments)}", flush=True)
        print(_kubectl(cluster, *arguments), flush=True)


def _wait_for_samples(cluster: Cluster, say: Say) -> None:
    """Until every pod of the samples runs; the StatefulSet's appear one after another."""
    wanted = _wanted(cluster)
    limit = time.monotonic() + limits.SAMPLES_S
    told = -1
    while True:
        pods = json.loads(cluster.kubectl("get", "pods", "-o", "json").stdout)["items"]
        running = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
        if len(running) != told:
            told = len(running)
            say(f"{told} of {wanted} sample pods run")
        if told >= wanted:
            return
        if time.monotonic() > limit:
            events = cluster.kubectl("get", "events", "--sort-by=.lastTimestamp").stdout
            lacking = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] not in running]
            raise ClusterError(f"samples do not run after {limits.SAMPLES_S:.0f} s: {lacking}\n{events}")
        time.sleep(0.5)


def _wanted(cluster: Cluster) -> int:
    applied = json.loads(cluster.kubectl("get", "-f", str(SAMPLES), "-o", "json").stdout)["items"]
    return sum(item["spec"].get("replicas", 1) if item["kind"] == "StatefulSet" else 1 for item in applied)


def _kubectl(cluster: Cluster, *arguments: str) -> str:
    """kubectl as a user has it, with this project's plug-in on its path."""
    scripts = str(Path(sys.executable).parent)
    environment = clean_environment()
    environment |= {"KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{scripts}:{environment['PATH']}"}
    argv = [str(cluster.program("kubectl")), *arguments]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limits.COMMAND_S, env=environment)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


def _keep_running(cluster: Cluster) -> None:
    programs = (cluster.program("kubectl").parent, Path(sys.executable).parent)
    print(instructions(cluster.kubeconfig, programs), flush=True)
    signal.pause()


def instructions(kubeconfig: Path, programs: Sequence[Path]) -> str:
    """What to try while the cluster runs.

    Args:
        kubeconfig: of the cluster.
        programs: directories of kubectl and of this project's commands.
    """
    images = "\n".join(f"  {image}" for image in installation.SAMPLE_IMAGES)
    return f"""
The cluster runs until Ctrl-C. In another terminal:

  export KUBECONFIG={kubeconfig} PATH={":".join(map(str, programs))}:$PATH

Try next:

  kubectl inspect gpushare -d
  gpushare explain gpu-share-pod1
  gpushare top
  gpushare dashboard
  gpushare doctor
  kubectl logs gpu-share-pod1
  kubectl delete pod gpu-share-pod1

The nodes reach no registry. Pods can use these images, which hold busybox and print their environment:

{images}
"""


class Stop:
    """Ends the demonstration at the first SIGINT or SIGTERM; later ones do not interrupt the removal of the cluster."""

    def __init__(self) -> None:
        self._stopped = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self._stopped:
            return
        self._stopped = True
        print(f"\n{signal.Signals(number).name} received: removing the cluster", flush=True)
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
