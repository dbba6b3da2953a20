"""The values of the chart that concern the whole cluster, and what is around it: certificates, networks, monitoring."""

from collections.abc import Iterator
from typing import Final

from gpushare import names
from release.pages.chart_schema import (
    BOOLEAN,
    LEVELS,
    MEMORY_UNIT,
    NAME,
    NAMES,
    OBJECT,
    STRING,
    STRINGS,
    Value,
    enum,
    image,
)

MODES: Final = ("if-exists", "where-needed", "always", "never")


CLUSTER: Final[tuple[Value, ...]] = (
    Value(
        path="kubeVersion",
        default="",
        schema={"type": "string", "pattern": r"^(v?1\.(2[0-9]|[3-9][0-9])\.[0-9]+.*)?$"},
        text="version of the servers, such as 1.30.4; empty: Helm asks the cluster. Set it where manifests are rendered"
        " without one (`helm template`)",
    ),
    *image("image", "gpushare", "", "the chart's appVersion"),
    Value(
        path="image.pullPolicy",
        default="",
        schema=enum("", "Always", "IfNotPresent", "Never"),
        text="when nodes pull it; empty: Kubernetes' default",
    ),
    Value(path="imagePullSecrets", default=[], schema=NAMES, text="names of Secrets for the registries"),
    Value(
        path="gpus",
        default="nvidia",
        schema=enum("nvidia", "simulated"),
        text="nvidia: the nodes' own GPUs, by NVML; simulated: from a profile, to try everything but CUDA",
    ),
    Value(
        path="simulatedGpus",
        default={},
        schema=OBJECT,
        text="profile of simulated GPUs (`gpus`, `nodes`); empty: manifests/gpus/simulated/profile.yaml",
    ),
    Value(
        path="wholeGpus",
        default=False,
        schema=BOOLEAN,
        text="hand out whole GPUs (nvidia.com/gpu) as well; NVIDIA's own plugin must not run on these nodes",
    ),
    Value(
        path="settings.memoryUnit",
        default="GiB",
        schema=MEMORY_UNIT,
        text="what one unit of aliyun.com/gpu-mem is: GiB, MiB, or a multiple such as 256MiB",
    ),
    Value(path="settings.logLevel", default="info", schema=enum(*LEVELS), text="debug, info, warning or error"),
    Value(
        path="namespace.create",
        default=False,
        schema=BOOLEAN,
        text="create the namespace gpushare-system, labelled for Pod Security; only if the release is in another",
    ),
    Value(
        path="namespace.quota",
        default=True,
        schema=BOOLEAN,
        text="the ResourceQuota that lets pods of the system priority classes in, which some clusters require",
    ),
    Value(
        path="runtimeClass.enabled",
        default=True,
        schema=BOOLEAN,
        text="false: no RuntimeClass is used. Right where the nodes' default runtime gives the device plugin the"
        " driver's libraries, and GPUs are handed over by CDI",
    ),
    Value(
        path="runtimeClass.create",
        default=True,
        schema=BOOLEAN,
        text="create the RuntimeClass nvidia; false where the GPU Operator, k3s or you have made it. It stays when the"
        " release is removed",
    ),
    Value(
        path="runtimeClass.handler",
        default="",
        schema={"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"},
        text="its handler in containerd or CRI-O; empty: nvidia, for simulated GPUs runc",
    ),
    Value(
        path="runtimeClass.mode",
        default="",
        schema=enum("", *MODES),
        text="when it is written into GPU pods; empty: where-needed",
    ),
    Value(
        path="runtimeClass.refuse",
        default="",
        schema=enum("", "without-gpus", "always", "nothing"),
        text="to which pods RuntimeClasses of NVIDIA are refused (Kubernetes 1.30 and newer); empty: without-gpus",
    ),
    Value(
        path="runtimeClass.names",
        default=[],
        schema=NAMES,
        text="which RuntimeClasses these are; empty: as in manifests/servers/1.30/policy.yaml",
    ),
    Value(
        path="exemptNamespaces",
        default=list(names.ADDON_NAMESPACES),
        schema=NAMES,
        text="namespaces of GPU add-ons whose pods may see every GPU, beside kube-system and gpushare-system; or label"
        " a namespace gpushare.dev/isolation=disabled",
    ),
    Value(
        path="limits.cgroup",
        default=False,
        schema=BOOLEAN,
        text="the driver (r615 and newer) holds memory limits of cgroups; the device plugin gets SYS_ADMIN",
    ),
    Value(
        path="limits.mps",
        default=False,
        schema=BOOLEAN,
        text="NVIDIA's MPS daemon, on nodes with the label gpushare.dev/limits=mps",
    ),
    Value(
        path="openshift.enabled",
        default=False,
        schema=BOOLEAN,
        text="SecurityContextConstraints for OpenShift, and who may use which",
    ),
    Value(
        path="watchdog",
        default="none",
        schema=enum("none", "report", "evict", "kill"),
        text="what is done about containers above their grant; all but none read usage, with hostPID",
    ),
    Value(
        path="placeholders",
        default=0,
        schema={"type": "integer", "minimum": 0, "maximum": 100},
        text="pods at most that ask an autoscaler for a node where the sums of nodes suffice for a waiting pod and"
        " their GPUs do not; 0: none",
    ),
)

CIDR: Final = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$"
CERTIFICATES_AND_NETWORK: Final[tuple[Value, ...]] = (
    Value(
        path="certificates.source",
        default="self",
        schema=enum("self", "cert-manager", "files"),
        text="self: the webhook makes and rotates its own; cert-manager; files: from a Secret that you keep",
    ),
    Value(
        path="certificates.secretName",
        default="gpushare-webhook-cert",
        schema=NAME,
        text="Secret with tls.crt, tls.key and ca.crt, which cert-manager writes or you do; not for self",
    ),
    Value(
        path="certificates.caBundle",
        default="",
        schema={"type": "string", "pattern": "^[A-Za-z0-9+/=]*$"},
        text="for files: the CA's certificates, PEM in base64",
    ),
    Value(
        path="certificates.issuerRef",
        default={},
        schema={
            "type": "object",
            "properties": {"name": NAME, "kind": STRING, "group": STRING},
            "dependencies": {"kind": ["name"], "group": ["name"]},
            "additionalProperties": False,
        },
        text="for cert-manager: name, kind and group of an issuer whose certificates carry ca.crt; empty: an own CA",
    ),
    Value(
        path="networkPolicy.enabled",
        default=True,
        schema=BOOLEAN,
        text="NetworkPolicies of controller and device plugin",
    ),
    Value(
        path="networkPolicy.prometheusNamespaces",
        default=[],
        schema=NAMES,
        text="namespaces whose pods may read the metrics",
    ),
    Value(
        path="networkPolicy.controlPlane",
        default=[],
        schema={"type": "array", "items": {"type": "string", "pattern": CIDR}, "uniqueItems": True},
        text="networks (CIDR) of the control plane: for the cluster's own scheduler, `gpushare doctor` and"
        " `inspect --limits`",
    ),
)


def monitoring() -> Iterator[Value]:
    """What Prometheus and Grafana find."""
    for kind, what in (
        ("podMonitor", "PodMonitors of the controller and the device plugin"),
        ("serviceMonitor", "a ServiceMonitor of the webhook"),
        ("rules", "a PrometheusRule with the alerts of manifests/monitoring"),
        ("dashboards", "ConfigMaps with the dashboards of manifests/monitoring, for Grafana's sidecar"),
    ):
        yield Value(path=f"monitoring.{kind}.enabled", default=False, schema=BOOLEAN, text=what)
        labels = {"grafana_dashboard": "1"} if kind == "dashboards" else {}
        yield Value(
            path=f"monitoring.{kind}.labels", default=labels, schema=STRINGS, text="labels by which it is found"
        )
    yield Value(
        path="monitoring.interval",
        default="",
        schema={"type": "string", "pattern": "^([0-9]+(ms|s|m|h))*$"},
        text="time between two scrapes, such as 30s; empty: Prometheus' own",
    )
    yield Value(
        path="monitoring.namespace",
        default="",
        schema={"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"},
        text="namespace of the rules and dashboards; empty: gpushare-system",
    )
