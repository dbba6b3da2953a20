"""What a tenant tries on the node: volumes, rights, namespaces, other containers, limits. No I/O.

What only Pod Security or a setting of the node stops is tried too, so that the table tells the truth.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import names
from localcluster import images
from testing.tenant import attempts
from testing.tenant.attempts import GUESSED, HOOK, NVIDIA, Attempt, Ends, Json, container, first, pod

BASELINE: Final = "Pod Security `baseline`"
CGROUP: Final = "the device cgroup"
BY_MOUNTS: Final = (
    f"the webhook; `{names.ISOLATION_POLICY}`; {BASELINE}; on the node"
    " `accept-nvidia-visible-devices-as-volume-mounts = false`"
)
CHOICES: Final = "/var/run/nvidia-container-devices"
GPU_NODES: Final = "/run/gpus-of-the-node"
"""Where the test makes device nodes of all simulated GPUs on each node."""
EVERY_GPU: Final = ",".join(map(str, images.MINORS))
"""Minor numbers that the image tries to open."""
SHARE: Final = {names.GPU_MEM: 1}
ROOTS, NODE_ROOT = "/proc/[0-9]*/root", "/proc/1/root"
"""As procfs shows the file systems of all processes that a container sees, and of the node's first one."""
TRY: Final = """\
opened=no found=no
for node in {nodes}; do
    [ -c "$node" ] || continue
    found=yes
    case $( (: <"$node") 2>&1 ) in *"not permitted"*) ;; *) [ -c "$node" ] && opened="$node" ;; esac
done
echo "FOUND=$found"; echo "OPENED=$opened"
"""
"""Who has no right to a device is told so; who has, that no driver answers. A process may end with its file system."""
CLOSED: Final = {"FOUND": "yes", "OPENED": "no"}
ESCAPED: Final = {"ESCAPED": "yes"}


def run(script: str, name: str = "c0", **fields: Any) -> Json:
    """A container that runs a script before it prints what it sees."""
    return container(name, command=["/bin/sh", "-c", f"{script}\n/print-devices; env | sort; exec /wait"], **fields)


def told(condition: str) -> str:
    """A script that tells whether it got where it may not."""
    return f"if {condition}; then echo ESCAPED=yes; else echo ESCAPED=no; fi"


def host(path: str, **more: str) -> Json:
    """A volume."""
    return {"name": "host", "hostPath": {"path": path, **more}}


def mounted(path: str = "/host", **more: object) -> Json:
    """Its mount."""
    return {"name": "host", "mountPath": path, **more}


def node_attempts() -> Iterator[Attempt]:
    """Every one; names are unique, also among those of `attempts`."""
    yield from _choices()
    yield from _directories()
    yield from _devices()
    yield from _rights()
    yield from _namespaces()
    yield from _shared()
    yield from _marks()
    yield from _variables()
    yield from _limits()


def _choices() -> Iterator[Attempt]:
    paths = (
        *("", "/all", "all", "/0", "/cdi/nvidia.com/gpu/all", "/cdi/management.nvidia.com/gpu=all"),
        f"/cdi/{names.CDI_KIND}/{GUESSED}",
    )
    null = host("/dev/null", type="CharDevice")
    for number, path in enumerate(paths):
        yield Attempt(
            name=f"mount-{number}",
            what=f"a mount of `/dev/null` on `{CHOICES}{path}`",
            by=BY_MOUNTS,
            pod=pod(container(volumeMounts=[mounted(CHOICES + path)]), volumes=[null], **NVIDIA),
            ends=Ends.REFUSED,
            says="choose devices past the scheduler",
            without_webhook="gpushare-isolation",
            is_baseline=False,
        )
    odd = f"/var/run/./{CHOICES.rpartition('/')[2]}//all"
    kinds: Mapping[str, tuple[str, Json]] = {
        "odd": ("that mount, its path spelt otherwise", pod(container(volumeMounts=[mounted(odd)]), volumes=[null])),
        "share": (
            "that mount in a container with a share",
            pod(container(limits=SHARE, volumeMounts=[mounted(f"{CHOICES}/all")]), volumes=[null]),
        ),
        "init": (
            "that mount in an init container",
            pod(container(), initContainers=[first(volumeMounts=[mounted(f"{CHOICES}/all")])], volumes=[null]),
        ),
    }
    for name, (what, made) in kinds.items():
        yield Attempt(
            name=f"mount-{name}",
            what=what,
            by=BY_MOUNTS,
            pod=made,
            ends=Ends.REFUSED,
            says="choose devices past the scheduler",
            is_baseline=False,
        )
    yield Attempt(
        name="mount-message",
        what="`terminationMessagePath` there, which is a mount as well",
        by="NVIDIA's runtime, as it is no mount of `/dev/null`",
        pod=pod(container(terminationMessagePath=f"{CHOICES}/all"), **NVIDIA),
        ends=Ends.NOTHING,
    )
    settings = {"name": "host", "emptyDir": {}}
    yield Attempt(
        name="mount-settings",
        what="a volume over `/etc/nvidia-container-runtime` of the container",
        by="NVIDIA's runtime, which reads the node's",
        pod=pod(container(volumeMounts=[mounted("/etc/nvidia-container-runtime")]), volumes=[settings], **NVIDIA),
        ends=Ends.NOTHING,
    )


DIRECTORIES: Final[Mapping[str, tuple[str, str]]] = {
    "cdi": ("/var/run/cdi", "[ -w /host ] && touch /host/.e2e && rm /host/.e2e"),
    "cdi-static": ("/etc/cdi", "[ -w /host ] && touch /host/.e2e && rm /host/.e2e"),
    "plugins": ("/var/lib/kubelet/device-plugins", "[ -w /host/kubelet.sock ]"),
    "runtime": ("/run/containerd", "[ -w /host/containerd.sock ]"),
    "root": ("/", "[ -w /host/run/cdi ]"),
    "proc": ("/proc", "[ -w /host/sys/kernel/core_pattern ]"),
    "cgroup": ("/sys/fs/cgroup", "[ -w /host/cgroup.procs ] || [ -w /host/devices/cgroup.procs ]"),
}
"""A directory of the node and a sign that the container can write there what rules the node."""


def _directories() -> Iterator[Attempt]:
    more = {"root": ", as `kubectl debug node/…` mounts it", "runtime": ", with the container runtime's socket"}
    for name, (path, condition) in DIRECTORIES.items():
        yield Attempt(
            name=f"directory-{name}",
            what=f"a hostPath of `{path}`{more.get(name, '')}",
            by=BASELINE,
            pod=pod(run(told(condition), volumeMounts=[mounted()]), volumes=[host(path)]),
            ends=Ends.ESCAPES,
            prints=ESCAPED,
            is_baseline=False,
            everywhere=False,
        )


def _devices() -> Iterator[Attempt]:
    script = TRY.format(nodes="/host/*")
    yield Attempt(
        name="host-devices",
        what="a hostPath of the directory with the GPUs' device nodes",
        by=f"{CGROUP}; {BASELINE}",
        pod=pod(run(script, volumeMounts=[mounted()]), volumes=[host(GPU_NODES)]),
        ends=Ends.NOTHING,
        prints=CLOSED,
        is_baseline=False,
    )
    yield Attempt(
        name="host-devices-share",
        what="the directory with the GPUs' device nodes in a container with a share",
        by=f"{CGROUP}; {BASELINE}",
        pod=pod(run("", limits=SHARE, volumeMounts=[mounted()]), volumes=[host(GPU_NODES)]),
        ends=Ends.GRANTED,
        is_baseline=False,
    )
    yield Attempt(
        name="host-device",
        what="a hostPath of one device node (`CharDevice`)",
        by=f"{CGROUP}; {BASELINE}",
        pod=pod(
            run(TRY.format(nodes="/host-gpu"), volumeMounts=[mounted("/host-gpu")]),
            volumes=[host(f"{GPU_NODES}/nvidia0", type="CharDevice")],
        ),
        ends=Ends.NOTHING,
        prints=CLOSED,
        is_baseline=False,
    )
    made = "for i in 0 1 2 3; do mknod /tmp/gpu$i c 60 $i; done\n"
    yield Attempt(
        name="mknod",
        what="`mknod` of every GPU",
        by=CGROUP,
        pod=pod(run(made + TRY.format(nodes="/tmp/gpu*"))),
        ends=Ends.NOTHING,
        prints=CLOSED,
    )
    yield Attempt(
        name="mknod-share",
        what="`mknod` of every GPU beside a share",
        by=CGROUP,
        pod=pod(run(made, limits=SHARE)),
        ends=Ends.GRANTED,
    )
    yield Attempt(
        name="mknod-init",
        what="`mknod` in an init container with a share, opened by the next container",
        by=CGROUP,
        pod=pod(
            run(TRY.format(nodes="/shared/*"), volumeMounts=[{"name": "shared", "mountPath": "/shared"}]),
            initContainers=[
                first(
                    limits=SHARE,
                    volumeMounts=[{"name": "shared", "mountPath": "/shared"}],
                    args=["cp -a /dev/nvidia* /shared/; /print-devices; env | sort"],
                )
                | {"command": ["/bin/sh", "-c"]}
            ],
            volumes=[{"name": "shared", "emptyDir": {}}],
        ),
        ends=Ends.GRANTED,
        prints=CLOSED,
    )


def _rights() -> Iterator[Attempt]:
    privileged = {"privileged": True}
    yield Attempt(
        name="privileged",
        what="a privileged container",
        by=BASELINE,
        pod=pod(container(securityContext=privileged)),
        ends=Ends.ESCAPES,
        prints={"OPENABLE": EVERY_GPU},
        is_baseline=False,
        everywhere=False,
    )
    yield Attempt(
        name="privileged-share",
        what="a privileged container with a share",
        by=BASELINE,
        pod=pod(container(limits=SHARE, securityContext=privileged)),
        ends=Ends.ESCAPES,
        prints={"OPENABLE": EVERY_GPU},
        is_baseline=False,
        everywhere=False,
    )
    groups = "mkdir /tmp/g; mount -t cgroup -o devices g /tmp/g || mount -t cgroup2 g /tmp/g"
    yield Attempt(
        name="sys-admin",
        what="`CAP_SYS_ADMIN`, to mount the cgroups",
        by=f"{BASELINE}; AppArmor or SELinux, where the node has it",
        pod=pod(run(told(groups), securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})),
        ends=Ends.ESCAPES,
        prints=ESCAPED,
        is_baseline=False,
        everywhere=False,
    )
    rights: Mapping[str, tuple[str, Json, bool]] = {
        "sys-admin-all": (
            "`CAP_SYS_ADMIN`, which NVIDIA's runtime takes for privileged, and `all`",
            {"capabilities": {"add": ["SYS_ADMIN"]}},
            False,
        ),
        "mknod": ("`CAP_MKNOD`", {"capabilities": {"add": ["MKNOD"]}}, True),
        "capabilities": (
            "`CAP_SYS_RAWIO`, `CAP_SYS_PTRACE`, `CAP_IPC_OWNER`",
            {"capabilities": {"add": ["SYS_RAWIO", "SYS_PTRACE", "IPC_OWNER"]}},
            False,
        ),
        "seccomp": ("no seccomp profile", {"seccompProfile": {"type": "Unconfined"}}, False),
        "user": ("another user and group", {"runAsUser": 65532, "runAsGroup": 44}, True),
    }
    for name, (what, context, is_baseline) in rights.items():
        yield Attempt(
            name=f"right-{name}",
            what=what,
            by=HOOK if name == "sys-admin-all" else CGROUP,
            pod=pod(container(securityContext=context), **NVIDIA),
            ends=Ends.NOTHING,
            is_baseline=is_baseline,
        )
    yield Attempt(
        name="right-groups",
        what="supplementary groups, also that of the device nodes",
        by=CGROUP,
        pod=pod(securityContext={"supplementalGroups": [0, 39, 44, 104], "fsGroup": 0}),
        ends=Ends.NOTHING,
    )


def _namespaces() -> Iterator[Attempt]:
    everyone = TRY.format(nodes=f"{ROOTS}/dev/nvidia*")
    yield Attempt(
        name="host-pid",
        what="`hostPID`, and the device nodes of other pods below `/proc/PID/root`",
        by=f"{CGROUP}; {BASELINE}",
        pod=pod(run(everyone), hostPID=True),
        ends=Ends.NOTHING,
        prints={"OPENED": "no"},
        is_baseline=False,
    )
    trace = {"capabilities": {"add": ["SYS_PTRACE"]}}
    yield Attempt(
        name="host-pid-trace",
        what="`hostPID` with `CAP_SYS_PTRACE`, and the node's files below `/proc/1/root`",
        by=BASELINE,
        pod=pod(run(told(f"[ -w {NODE_ROOT}/run/cdi ]"), securityContext=trace), hostPID=True),
        ends=Ends.ESCAPES,
        prints=ESCAPED,
        is_baseline=False,
        everywhere=False,
    )
    for made, field in ((pod(hostIPC=True), "hostIPC"), (pod(hostNetwork=True), "hostNetwork")):
        yield Attempt(
            name=field.lower(),
            what=f"`{field}`",
            by=f"{CGROUP}; {BASELINE}",
            pod=made,
            ends=Ends.NOTHING,
            is_baseline=False,
            everywhere=False,
        )
    patient = f"for i in $(seq 60); do ls {ROOTS}/dev/nvidia* >/dev/null 2>&1 && break; sleep 1; done\n{everyone}"
    yield Attempt(
        name="shared-processes",
        what="`shareProcessNamespace`, and the device nodes of the container with a share",
        by=CGROUP,
        pod=pod(container("share", SHARE), run(patient), shareProcessNamespace=True),
        ends=Ends.GRANTED,
        prints=CLOSED,
    )


def _shared() -> Iterator[Attempt]:
    shared = {"name": "shared", "mountPath": "/shared"}
    wait = "for i in $(seq 60); do [ -e /shared/done ] && break; sleep 1; done\n"
    yield Attempt(
        name="shared-volume",
        what="a copy of the device node in a volume that containers of the pod share",
        by=CGROUP,
        pod=pod(
            run("cp -a /dev/nvidia* /shared/; touch /shared/done", "share", limits=SHARE, volumeMounts=[shared]),
            run(wait + TRY.format(nodes="/shared/nvidia*"), volumeMounts=[shared]),
            volumes=[{"name": "shared", "emptyDir": {}}],
        ),
        ends=Ends.GRANTED,
        prints=CLOSED,
    )
    yield Attempt(
        name="claim",
        what="a ResourceClaim that no one has allocated",
        by="kube-scheduler; NVIDIA's DRA driver must not serve GPUs that are shared",
        pod=pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]),
        ends=Ends.WAITS,
        old_ends=Ends.NOTHING,  # the field is dropped
        same_as=attempts.IMAGE_PLAIN,
    )


def _marks() -> Iterator[Attempt]:
    for value in ("cdi", "envvar"):
        yield Attempt(
            name=f"mark-hand-over-{value}",
            what=f"forged: `{names.ANNOTATION_HAND_OVER}: {value}`, beside a share",
            by="the webhook removes it",
            pod=pod(container(limits=SHARE), marks={names.ANNOTATION_HAND_OVER: value}),
            ends=Ends.GRANTED,
            same_as=attempts.SHARE,
        )
    yield Attempt(
        name="mark-source",
        what="the annotation of static pods (`kubernetes.io/config.source: file`)",
        by="the kubelet writes it itself",
        pod=pod(container(limits=SHARE), marks={"kubernetes.io/config.source": "file"}),
        ends=Ends.GRANTED,
    )
    long = "c" + "0" * 62
    yield Attempt(
        name="mark-names",
        what="containers with the longest and the shortest names",
        by="both have their own annotation",
        pod=pod(container("0", SHARE), container(long, SHARE), container("c0")),
        ends=Ends.GRANTED,
    )


OTHERS: Final[Mapping[str, str]] = {
    "NVIDIA_DRIVER_CAPABILITIES": "all",
    "NVIDIA_DISABLE_REQUIRE": "true",
    "NVIDIA_REQUIRE_CUDA": "cuda>=1",
    "NVIDIA_MIG_CONFIG_DEVICES": "all",
    "NVIDIA_MIG_MONITOR_DEVICES": "all",
    "NVIDIA_IMEX_CHANNELS": "0",
    "NVIDIA_GDS": "enabled",
    "NVIDIA_MOFED": "enabled",
    "NVIDIA_NVSWITCH": "enabled",
    "CUDA_VERSION": "9.0",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "DOCKER_RESOURCE_GPU": "all",
}
"""By which NVIDIA's software chooses something."""
SETTINGS: Final = {
    "DOCKER_RESOURCE_GPU": "NVIDIA's runtime, unless the node names this variable in `swarm-resource`: leave that empty"
}


def _env(variables: Mapping[str, str]) -> Sequence[Json]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _variables() -> Iterator[Attempt]:
    for number, (name, value) in enumerate(OTHERS.items()):
        yield Attempt(
            name=f"other-variable-{number}",
            what=f"`{name}={value}`",
            by=SETTINGS.get(name, "NVIDIA's runtime: it means nothing beside `void`"),
            pod=pod(container(env=_env({name: value})), **NVIDIA),
            ends=Ends.NOTHING,
        )
    yield Attempt(
        name="other-variables-share",
        what="all these variables in a container with a share",
        by="NVIDIA's runtime: they choose no GPU",
        pod=pod(container(limits=SHARE, env=_env(OTHERS))),
        ends=Ends.GRANTED,
    )
    refers = _env({"X": "all", names.ENV_VISIBLE_DEVICES: "$(X)"})
    yield Attempt(
        name="variable-by-reference",
        what="`NVIDIA_VISIBLE_DEVICES=$(X)`",
        by=HOOK,
        pod=pod(container(env=refers), **NVIDIA),
        ends=Ends.NOTHING,
    )
    yield Attempt(
        name="variable-by-command",
        what="the variable set by the container's own command",
        by="NVIDIA's runtime, which has looked already",
        pod=pod(run(f"export {names.ENV_VISIBLE_DEVICES}=all"), **NVIDIA),
        ends=Ends.NOTHING,
        lies=True,
    )
    yield Attempt(
        name="variable-of-ours",
        what=f"`{names.ENV_GRANTED_DEVICES}=all` beside a share",
        by="it tells programs only",
        pod=pod(container(limits=SHARE, env=_env({names.ENV_GRANTED_DEVICES: "all"}))),
        ends=Ends.GRANTED,
        lies=True,
    )


BY_ITSELF: Final = "a program that sets it for itself is held by `mig` and `cgroup` only"
LIMITS: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "xla": ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "advisory"),
    "tensorflow": ({"TF_FORCE_GPU_ALLOW_GROWTH": "true", "PYTORCH_ALLOC_CONF": "x"}, "advisory"),
    "hami": (
        {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DISABLE_CONTROL": "true", "LD_PRELOAD": "/tmp/none.so"},
        "hami-core",
    ),
    "mps-pipe": ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/other", "CUDA_MPS_LOG_DIRECTORY": "/tmp/other"}, "mps"),
}


def _limits() -> Iterator[Attempt]:
    for name, (variables, limit) in LIMITS.items():
        yield Attempt(
            name=f"limit-{name}",
            what=f"its limit lifted by {', '.join(f'`{key}`' for key in variables)}",
            by=f"nothing where GPUs have the limit `{limit}`; `mig` and `cgroup` hold"
            if limit == "advisory"
            else f"values from the CDI spec where GPUs have the limit `{limit}`; {BY_ITSELF}",
            pod=pod(container(limits=SHARE, env=_env(variables))),
            ends=Ends.GRANTED,
            prints=variables,
            everywhere=False,
        )
    raised = {names.ENV_MPS_MEMORY_LIMIT: "0=999G", names.ENV_MPS_THREAD_PERCENTAGE: "100"}
    yield Attempt(
        name="limit-mps",
        what=f"`{names.ENV_MPS_MEMORY_LIMIT}` raised in `env`",
        by=f"{HOOK}; {BY_ITSELF}",
        pod=pod(container(limits=SHARE, env=_env(raised))),
        ends=Ends.GRANTED,
        prints={names.ENV_MPS_MEMORY_LIMIT: "0=1024M"},
    )
