"""Every name that crosses a process boundary: resources, labels, annotations, variables, paths.

The rest of the code spells none of them. Names without this project's domain belong to the systems that it can
replace (Aliyun gpushare, ACK) and are kept so that their tools go on working.
"""

from typing import Final

DOMAIN: Final = "gpushare.dev"

# Extended resources.
GPU_MEM: Final = "aliyun.com/gpu-mem"
GPU_COUNT: Final = "aliyun.com/gpu-count"  # on the node's status only; a pod that asks for it is refused
GPU_PERCENT: Final = "nano-gpu/gpu-percent"  # a part of one GPU: so much of its memory and of its compute
GPU_CORE: Final = "aliyun.com/gpu-core.percentage"  # beside gpu-mem: a part of a GPU's compute; on node statuses only
GPU: Final = "nvidia.com/gpu"  # whole GPUs, if this project owns the resource (`ResourceConfig`)
SHARED_RESOURCES: Final = (GPU_MEM, GPU_PERCENT)
GPU_DOMAINS: Final = ("nvidia.com/", "aliyun.com/", "nano-gpu/")  # of resources that stand for GPUs, or may do so
# Of other plugins that choose the devices of a container themselves; a trailing * stands for any ending.
PLUGIN_RESOURCES: Final = (GPU, "nvidia.com/gpu.shared", "nvidia.com/mig-*")

# Of dynamic resource allocation.
DRA_DRIVER: Final = "gpu.gpushare.dev"
DEVICE_CLASS: Final = "gpushare"
DRA_MEMORY: Final = "memory"  # bytes of each GPU; what a request leaves out is all of it
DRA_COMPUTE: Final = "compute"  # per cent of each GPU

# What an author may write on a pod.
LABEL_GPU_COUNT: Final = "aliyun.com/gpu-count"  # gpu-mem is the container's total over so many GPUs
ANNOTATION_GPUS: Final = "gpushare.dev/gpus"  # gpu-mem is per GPU, on so many GPUs
ANNOTATION_POLICY: Final = "gpushare.dev/gpu-policy"
ANNOTATION_MODEL: Final = "gpushare.dev/gpu-model"
ANNOTATION_UUID: Final = "gpushare.dev/gpu-uuid"
ANNOTATION_MIN_MEMORY: Final = "gpushare.dev/min-gpu-memory"
ANNOTATION_LIMIT: Final = "gpushare.dev/limit"  # also a label of namespaces, for all of their GPU pods
ANNOTATION_MIG: Final = "gpushare.dev/mig"
ANNOTATION_OVERSUBSCRIPTION: Final = "gpushare.dev/oversubscription"  # of a pod: never; LABEL_OVERSUBSCRIPTION of nodes
ANNOTATION_FRAMEWORK_VARIABLES: Final = "gpushare.dev/framework-variables"  # which frameworks are told their limit
ANNOTATION_SAME_GPU: Final = "gpushare.dev/same-gpu-as"  # a label selector of pods in the same namespace
ANNOTATION_OTHER_GPU: Final = "gpushare.dev/other-gpu-than"  # the same, to keep away from them
REQUEST_ANNOTATIONS: Final = (
    ANNOTATION_GPUS,
    ANNOTATION_POLICY,
    ANNOTATION_MODEL,
    ANNOTATION_UUID,
    ANNOTATION_MIN_MEMORY,
    ANNOTATION_LIMIT,
    ANNOTATION_MIG,
    ANNOTATION_OVERSUBSCRIPTION,
    ANNOTATION_SAME_GPU,
    ANNOTATION_OTHER_GPU,
)

# Annotation of a pod and label of a namespace: report, evict or kill; what is stricter than the node's setting counts.
WATCHDOG: Final = "gpushare.dev/watchdog"
WATCHDOG_POLICIES: Final = ("off", "report", "evict", "kill")  # from the most lenient on

# What the webhook writes on a pod.
LABEL_MANAGED: Final = "gpushare.dev/managed"
ANNOTATION_TOTALS: Final = "gpushare.dev/limits-are-totals"  # the per-GPU form was multiplied already
ANNOTATION_OVERRIDDEN: Final = "gpushare.dev/overridden"  # containers, comma-separated, that chose devices themselves
ANNOTATION_HAND_OVER: Final = "gpushare.dev/hand-over"  # "cdi": without a RuntimeClass, so for such nodes alone
WEBHOOK_ANNOTATIONS: Final = (ANNOTATION_TOTALS, ANNOTATION_OVERRIDDEN, ANNOTATION_HAND_OVER)
# Of a pod that claims what it asked for by gpu-mem: annotation, the spec of its claim; label, its template's name.
CLAIM_TEMPLATE: Final = "gpushare.dev/claim-template"

# What the controller writes on a pod that waits although it fits; kube-scheduler looks again when a label changes.
LABEL_RETRY: Final = "gpushare.dev/retry"

# What the controller writes on a placeholder: the pod that it stands for, and how often a node was asked for.
ANNOTATION_PLACEHOLDER_FOR: Final = "gpushare.dev/placeholder-for"
ANNOTATION_ATTEMPT: Final = "gpushare.dev/placeholder-attempt"

LABEL_APP: Final = "app.kubernetes.io/name"  # on all objects of this project

# What the controller that leads writes on its own pod, "true", and takes from others: its Service selects it.
LABEL_LEADER: Final = "gpushare.dev/leader"

# What only the controller writes on a pod, in the Binding. `{container}` forms are keyed by container name.
ANNOTATION_ALLOCATION: Final = "gpushare.dev/allocation"
PREFIX_DEVICES: Final = "devices.gpushare.dev/"  # comma-separated GPU UUIDs
PREFIX_MEMORY: Final = "memory.gpushare.dev/"  # MiB on each of these GPUs
PREFIX_INDEX: Final = "index.gpushare.dev/"  # comma-separated GPU indices, for ALIYUN_COM_GPU_MEM_IDX
PREFIX_CAPACITY: Final = "capacity.gpushare.dev/"  # units of one such GPU, for ALIYUN_COM_GPU_MEM_DEV
ANNOTATION_LATE: Final = "gpushare.dev/bound-late"  # "true": the GPUs were chosen after the pod had come to its node

# Aliyun gpushare and ACK, written in the Binding for their tools and read from pods that they bound.
ALIYUN_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ALIYUN_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
ALIYUN_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ALIYUN_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"  # a variable only
ALIYUN_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ALIYUN_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ACK_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ACK_ASSIGNED: Final = "scheduler.framework.gpushare.assigned"
ACK_ASSUME_TIME: Final = "scheduler.framework.gpushare.assume-time"

# nano-gpu, written in the Binding of pods that ask by its resource. The label is the webhook's: a Binding has none.
NANO_ASSUME: Final = "nano-gpu/assume"
PREFIX_NANO_CONTAINER: Final = "nano-gpu/container-"  # index of the container's GPU, -1 for none

_ALIYUN: Final = {ALIYUN_IDX, ALIYUN_DEV, ALIYUN_POD, ALIYUN_ASSIGNED, ALIYUN_ASSUME_TIME}
_ACK: Final = {ACK_ALLOCATION, ACK_ASSIGNED, ACK_ASSUME_TIME}
RESERVED_ANNOTATIONS: Final = frozenset({ANNOTATION_ALLOCATION, ANNOTATION_LATE, NANO_ASSUME, *_ALIYUN, *_ACK})
RESERVED_PREFIXES: Final = (PREFIX_DEVICES, PREFIX_MEMORY, PREFIX_INDEX, PREFIX_CAPACITY, PREFIX_NANO_CONTAINER)

# Of the Container Device Interface: runtimes and NVIDIA's NRI plugin take devices from annotations of a pod in this
# domain and in its subdomains.
CDI_DOMAIN: Final = "cdi.k8s.io"
CDI_KIND: Final = "gpushare.dev/share"  # of the devices that the device plugin makes, one for each container

# Namespaces of GPU add-ons whose pods need every GPU: NVIDIA's GPU Operator (now, before 1.9, on OpenShift), NVIDIA's
# device plugin and DRA driver as their documents install them, AKS.
ADDON_NAMESPACES: Final = (
    *("gpu-operator", "gpu-operator-resources", "nvidia-gpu-operator"),
    *("nvidia-device-plugin", "nvidia-dra-driver-gpu", "gpu-resources"),
)

# On namespaces.
LABEL_POLICY: Final = ANNOTATION_POLICY  # of their pods that name none
LABEL_LIMIT: Final = ANNOTATION_LIMIT
ENFORCED: Final = "enforced"  # the value of both
NEVER: Final = "never"  # the value of ANNOTATION_OVERSUBSCRIPTION
LABEL_SHARE_BY: Final = "gpushare.dev/share-by"  # "claims": pods that ask by gpu-mem get claims
CLAIMS: Final = "claims"
LABEL_DRA_ADMIN: Final = "gpushare.dev/dra-admin"  # "true": claims there may have adminAccess
LABEL_ISOLATION: Final = "gpushare.dev/isolation"  # "disabled": pods without GPUs are left as they are

# On nodes.
LABEL_SHARES: Final = "gpushare"  # "true": the device plugin runs there
LABEL_LIMITS: Final = "gpushare.dev/limits"  # an administrator's: auto, or back ends with dots between them
LABEL_OVERSUBSCRIPTION: Final = "gpushare.dev/oversubscription"  # an administrator's: a factor such as 1.5
LABEL_HAND_OVER: Final = "gpushare.dev/hand-over"  # an administrator's: cdi, envvar or volume-mounts
LABEL_NVIDIA_DEFAULT: Final = "gpushare.dev/nvidia-default-runtime"  # an administrator's: true or false
ANNOTATION_INVENTORY: Final = "gpushare.dev/inventory"
ANNOTATION_CORDON: Final = "gpushare.dev/cordoned-gpus"  # an administrator's: numbers or UUIDs, comma-separated
ANNOTATION_HELD: Final = "gpushare.dev/cordoned-by-defrag"  # those of them that it opens again when it ends

ANNOTATION_MODE: Final = "gpushare.dev/mode"  # an administrator's: which GPUs are shared by ResourceClaims

# Aliyun's ConfigMap of GPUs that must not be used: one for each node, in kube-system.
PREFIX_UNHEALTHY: Final = "unhealthy-gpu-"
UNHEALTHY_NAMESPACE: Final = "kube-system"
UNHEALTHY_KEY: Final = "gpus"  # numbers, comma-separated

# Variables of a container.
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_GRANTED_DEVICES: Final = "GPUSHARE_VISIBLE_DEVICES"  # the UUIDs, also where the variable above says void
ENV_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
ENV_MPS_MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_MPS_THREAD_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ENV_MEMORY_MIB: Final = "GPUSHARE_MEMORY_MIB"  # MiB that a container has on each of its GPUs, unless they are whole
VISIBLE_DEVICES_NONE: Final = "void"  # the NVIDIA runtime leaves such a container alone
DRIVER_CAPABILITIES_DEFAULT: Final = "compute,utility"

# Programs, and the Deployments and the DaemonSet that run them.
EVENT_PREFIX: Final = "GpuShare"  # of the reason of every event
OTHERS: Final = "_others"
"""In a label of a metric, for all that have no series of their own. No name of Kubernetes has an underscore; an empty
label is none, and Prometheus would write what it knows of the scraped pod there."""
WEBHOOK: Final = "gpushare-webhook"
CONTROLLER: Final = "gpushare-controller"
PLUGIN: Final = "gpushare-device-plugin"
MPS: Final = "gpushare-mps"
SCHEDULER: Final = "gpushare-scheduler"
DEFAULT_SCHEDULER: Final = "default-scheduler"  # the cluster's own

# Other objects of the installation.
NAMESPACE: Final = "gpushare-system"
PLACEHOLDERS: Final = "gpushare-placeholders"  # the namespace of pods that ask an autoscaler for a node, and never run
PRIORITY_PLACEHOLDER: Final = "gpushare-placeholder"  # their PriorityClass
CONFIG: Final = "gpushare-config"  # the ConfigMap of settings that all programs share
SERVICE_ACCOUNT_CONTROLLER: Final = CONTROLLER
RUNTIME_CLASS: Final = "nvidia"
HAND_OVER: Final = "gpushare-hand-over"  # the ConfigMap in which the controller says how nodes hand over GPUs
LEASE: Final = CONTROLLER
WEBHOOK_SERVICE: Final = WEBHOOK
WEBHOOK_SECRET: Final = "gpushare-webhook-tls"  # noqa: S105 - the name of a Secret
MUTATING_WEBHOOK: Final = WEBHOOK
VALIDATING_WEBHOOK: Final = WEBHOOK
CONTROLLER_SERVICE: Final = CONTROLLER
# ValidatingAdmissionPolicies, and their bindings.
ISOLATION_POLICY: Final = "gpushare-isolation"
AMOUNTS_POLICY: Final = "gpushare-amounts"
CDI_POLICY: Final = "gpushare-cdi"
RUNTIME_CLASS_POLICY: Final = "gpushare-runtime-class"  # and the ConfigMap that it reads
NODES_POLICY: Final = "gpushare-nodes"
# Those of dynamic resource allocation are there only where the chart's value dra.enabled is.
CLAIMS_POLICY: Final = "gpushare-claims"
CLAIM_PODS_POLICY: Final = "gpushare-claim-pods"
SLICES_POLICY: Final = "gpushare-slices"
POLICIES: Final = (ISOLATION_POLICY, AMOUNTS_POLICY, CDI_POLICY, RUNTIME_CLASS_POLICY, NODES_POLICY)

# The plugin's source of GPUs in the setting gpu_source, before the path of a profile.
SIMULATED: Final = "simulated:"

# Paths of the HTTP servers.
EXTENDER_PREFIX: Final = "/gpushare-scheduler"
NANO_PREFIX: Final = "/scheduler"
EXTENDER_TIMEOUT_S: Final = 5
"""After which kube-scheduler gives up on an extender, by the configuration that this project prints."""
OTHERS_VERB: Final = "prioritize-others"  # below EXTENDER_PREFIX; ranks nodes for pods without GPUs
OTHERS_TIMEOUT_S: Final = 0.5
"""After which kube-scheduler goes on without that ranking. It schedules one pod at a time."""


def is_known(key: str) -> bool:
    """Whether anybody reads this label or annotation of a pod; those of other domains are not judged."""
    if not _is_of(key, DOMAIN):
        return True
    known = {*REQUEST_ANNOTATIONS, *WEBHOOK_ANNOTATIONS, LABEL_MANAGED, LABEL_RETRY, LABEL_ISOLATION, WATCHDOG}
    known |= {ANNOTATION_FRAMEWORK_VARIABLES, ANNOTATION_PLACEHOLDER_FOR, ANNOTATION_ATTEMPT, CLAIM_TEMPLATE}
    return key in known or is_reserved(key)


def is_reserved(annotation: str) -> bool:
    """Whether only the controller may write this annotation of a pod."""
    return annotation in RESERVED_ANNOTATIONS or annotation.startswith(RESERVED_PREFIXES)


def is_cdi(annotation: str) -> bool:
    """Whether this annotation of a pod chooses devices past the scheduler."""
    return _is_of(annotation, CDI_DOMAIN)


def _is_of(key: str, domain: str) -> bool:
    """Whether a label or an annotation is in a domain or in one below it."""
    own, slash, _ = key.partition("/")
    return bool(slash) and (own == domain or own.endswith(f".{domain}"))
