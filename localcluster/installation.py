"""This project on a test cluster, installed from `manifests/` as a user would: images, labels, `kubectl apply -k`."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from localcluster import images, limits, process, provision, runtimes
from localcluster.cluster import Cluster
from localcluster.python_image import python_image

ROOT: Final = Path(__file__).resolve().parents[1]
NAMESPACE: Final = "gpushare-system"
IMAGE: Final = "docker.io/library/gpushare:0.1.0"


@dataclasses.dataclass(frozen=True)
class Tree:
    """Sources of this project with their manifests, and the name that their image has on the nodes."""

    root: Path = ROOT
    image: str = IMAGE


LOCAL: Final = Tree()
PACKAGES: Final = ("gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli")
REQUIREMENTS: Final = (
    *("cryptography", "flask", "grpcio", "gunicorn", "jsonpatch", "numpy", "nvidia-ml-py", "orjson"),
    *("prometheus-client", "protobuf", "PyYAML", "urllib3", "waitress"),
)
SCHEDULER_IMAGE: Final = "registry.k8s.io/kube-scheduler"
PROBED_EACH_SECOND: Final = {
    "gpushare-device-plugin": ("DaemonSet", "device-plugin"),
    "gpushare-scheduler": ("Deployment", "kube-scheduler"),
    "gpushare-webhook": ("Deployment", "webhook"),
}
"""Workloads, their kinds and containers: up to ten seconds until a probe would be most of what a new pod takes."""
SAMPLE_IMAGES: Final = (
    *("docker.io/cheyang/gpu-player:v2", "docker.io/library/busybox:1.36", "nvcr.io/nvidia/cuda:9.0-devel"),
    "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda10.2",
)


def install(
    cluster: Cluster,
    *,
    config: Mapping[str, str] | None = None,
    profile: str | None = None,
    components: Sequence[str] = (),
    say: provision.Say = provision.say_nothing,
) -> None:
    """Build the images from the local tree, give them to the nodes, apply the manifests and wait until all serve.

    Args:
        cluster: a running cluster.
        config: entries to add to the ConfigMap gpushare-config, such as shorter leases for tests.
        profile: YAML of simulated GPUs instead of the overlay's own.
        components: folders of `manifests/`, which kubectl reads from 1.21 on.
        say: called with one line of progress at a time.
    """
    with process.timed(say, "images of this project"):
        for archive in build_images(cluster, say):
            cluster.import_image(archive)
            archive.unlink()
    label_nodes(cluster)
    # On servers before 1.21 namespaces do not carry their name as a label, which the webhooks' selectors need.
    cluster.kubectl("label", "--overwrite", "namespace", "kube-system", "kubernetes.io/metadata.name=kube-system")
    with process.timed(say, "kubectl apply -k manifests"):
        written = kustomization(cluster, config or {}, profile, components=components)
        cluster.kubectl("apply", "-k", str(written), timeout_s=limits.INSTALLATION_S)
    with process.timed(say, "webhook, controller, scheduler and device plugins ready"):
        wait_ready(cluster)


def label_nodes(cluster: Cluster) -> None:
    """Have all nodes share, and say what an administrator knows of them."""
    for node in cluster.nodes:
        cluster.kubectl("label", "--overwrite", "node", node.name, "gpushare=true", *hand_over_label(node.runtime))


def hand_over_label(runtime: runtimes.ContainerRuntime) -> Sequence[str]:
    """The administrator's word on what cannot be told by the version of the container runtime."""
    default = runtime.version >= runtimes.CDI_BY_DEFAULT_SINCE
    if runtime.cdi == default:
        return []
    return [f"gpushare.dev/hand-over={'cdi' if runtime.cdi else 'envvar'}"]


def build_images(cluster: Cluster, say: provision.Say = provision.say_nothing) -> Sequence[Path]:
    """Archives of our image, of the scheduler's and of the samples'."""
    ours = build_image(cluster, LOCAL, say)
    directory = ours.parent
    samples = images.busybox_image(directory / "samples.tar", SAMPLE_IMAGES, cluster.program("busybox"))
    entries = {
        "/usr/local/bin/kube-scheduler": images.Entry(source=cluster.program("kube-scheduler"), mode=0o755),
        **images.account_files(),
    }
    layer = images.write_layer(directory / "scheduler.layer", entries)
    names = [f"{SCHEDULER_IMAGE}:{scheduler_tag(cluster)}"]
    scheduler = images.write_image(directory / "scheduler.tar", names, [layer], images.Settings())
    layer.unlink()
    return [ours, samples, scheduler]


def build_image(cluster: Cluster, tree: Tree, say: provision.Say = provision.say_nothing) -> Path:
    """The archive of the image of webhook, controller and device plugin."""
    directory = cluster.workdir / "images"
    directory.mkdir(exist_ok=True)
    return python_image(
        directory / "gpushare.tar",
        [tree.image],
        [tree.root / package for package in PACKAGES],
        requirements=REQUIREMENTS,
        settings=images.Settings(working_dir="/app"),
        say=say,
    )


def scheduler_tag(cluster: Cluster) -> str:
    """The tag of the cluster's own version."""
    return f"v{cluster.version}"


def bases(version: provision.Version, *, whole_gpus: bool = False, tree: Tree = LOCAL) -> Sequence[Path]:
    """The overlay for simulated GPUs and the server's version, or the parts of it that hand out whole GPUs too."""
    manifests = tree.root / "manifests"
    servers = [tuple(map(int, path.name.split("."))) for path in (manifests / "servers").iterdir()]
    since = "{}.{}".format(*max(server for server in servers if server <= (version.major, version.minor)))
    if whole_gpus:
        former = manifests / "whole-gpus" / "simulated"  # of versions whose overlays had a second line for it
        return [former if former.exists() else manifests / "gpus" / "simulated", manifests / "whole-gpus" / since]
    return [manifests / "overlays" / ("simulated" if since == "1.30" else f"simulated-{since}")]


def kustomization(
    cluster: Cluster, config: Mapping[str, str], profile: str | None, tree: Tree = LOCAL, components: Sequence[str] = ()
) -> Path:
    """A directory with a user's own kustomization on top of the manifests: the scheduler's version and the settings."""
    patches = [config_map("gpushare-config", config)]
    if tree.root == ROOT:
        patches += [_probed(name, kind, container) for name, (kind, container) in PROBED_EACH_SECOND.items()]
    if tree == LOCAL and (cluster.version.major, cluster.version.minor) >= (1, 30):
        # So that it can be tried what NVIDIA's runtime shows to a container without a grant.
        patches.append(config_map("gpushare-runtime-class", {"refuse": "nothing"}))
    if profile is not None:
        patches.append(config_map("gpushare-simulated-gpus", {"profile.yaml": profile}))
    whole_gpus = config.get("GPUSHARE_WHOLE_GPUS") == "true"
    built_on = bases(cluster.version, whole_gpus=whole_gpus, tree=tree)
    images = [
        {"name": "gpushare", "newTag": tree.image.rpartition(":")[2]},
        {"name": SCHEDULER_IMAGE, "newTag": scheduler_tag(cluster)},
    ]
    added = [tree.root / "manifests" / name for name in components]
    return write_kustomization(cluster.workdir / "kustomization", built_on, patches, images, added)


def write_kustomization(
    directory: Path,
    built_on: Sequence[Path],
    patches: Sequence[Mapping[str, object]],
    images: Sequence[object] = (),
    components: Sequence[Path] = (),
) -> Path:
    """A directory with a user's own kustomization, which every kubectl can read."""
    directory.mkdir(exist_ok=True)
    names = [f"patch-{i}.json" for i in range(len(patches))]
    for name, patch in zip(names, patches, strict=True):
        (directory / name).write_text(json.dumps(patch))
    # Relative paths, because kustomize refuses absolute ones.
    up = Path(*[".."] * len(directory.resolve().parts[1:]))
    document = {
        "bases": [str(up.joinpath(*base.parts[1:])) for base in built_on],
        "images": list(images),
        "patchesStrategicMerge": names,
    }
    if components:  # a field that old kubectls do not know
        document["components"] = [str(up.joinpath(*each.parts[1:])) for each in components]
    (directory / "kustomization.yaml").write_text(json.dumps(document))
    return directory


def _probed(name: str, kind: str, container: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    containers = [{"name": container, "readinessProbe": {"periodSeconds": 1}}]
    spec = {"template": {"spec": {"containers": containers}}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def wait_ready(cluster: Cluster, timeout_s: float = limits.INSTALLATION_S) -> None:
    """Wait until every part serves and all nodes advertise GPU memory; says what was missing when time is up."""
    missing = ["nothing was looked at"]

    def ready() -> bool:
        missing[:] = _missing(cluster)
        return not missing

    try:
        process.wait_until(ready, "gpushare ready", timeout_s)
    except process.ClusterError as error:
        pods = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "wide", check=False).stdout
        events = cluster.kubectl("get", "events", "-n", NAMESPACE, check=False).stdout
        raise process.ClusterError(f"{error}; missing: {', '.join(missing)}\n{pods}\n{events[-4000:]}") from error


def _missing(cluster: Cluster) -> list[str]:
    answer = cluster.kubectl("get", "deployments,daemonsets,endpoints", "-n", NAMESPACE, "-o", "json", check=False)
    if answer.returncode != 0:
        return [answer.stderr.strip()]
    # Of a former version only the controller that leads is ready.
    wanted = {"gpushare-controller": 1, "gpushare-webhook": 2, "gpushare-scheduler": 2}
    wanted["gpushare-device-plugin"] = len(cluster.nodes)
    items = json.loads(answer.stdout)["items"]
    of_controller = [item for item in items if item["metadata"]["name"] == "gpushare-controller"]
    leads = any(subset.get("addresses") for item in of_controller for subset in item.get("subsets", ()))
    for item in items:
        status = item.get("status", {})
        ready = status.get("readyReplicas", status.get("numberReady", 0))
        name = item["metadata"]["name"]
        if name in wanted and ready >= wanted[name]:
            del wanted[name]
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json").stdout)["items"]
    without = [
        node["metadata"]["name"]
        for node in nodes
        if node["status"]["allocatable"].get("aliyun.com/gpu-mem", "0") == "0"
    ]
    leader = [] if leads else ["an endpoint of the controller's Service"]
    return [*wanted, *leader, *(f"GPU memory of {name}" for name in without)]
