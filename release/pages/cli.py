"""What docs/reference/cli.md says: every command with its arguments, and examples that are run to make the page."""

import argparse
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpushare import names
from gpushare.kube.api import Reply
from gpushare_cli import __main__ as cli
from gpushare_cli.console import Streams
from gpushare_cli.explain import command as explain
from gpushare_cli.reading import Target
from gpushare_cli.simulate import command as simulate
from gpushare_cli.simulate.command import Options
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli import defragging, draining
from testing.cli.podding import bound, mutated
from testing.fakes.kube import FakeKube

HEAD = """# Commands

Tables are for people, `-o json` and `-o yaml` for programs, with all memory in MiB.
Results go to the standard output; `note:` and `error:` lines, and how far `simulate` is, to the error stream.
On a terminal, the tables of `explain`, `simulate` and `doctor` are folded to its width, and nothing is cut; \
elsewhere only if `COLUMNS` gives a width, so that `grep` finds whole lines.
This page is written by `make docs` from the code, and its examples are what the commands print.

## Options of several commands

"""
COMMON = ("output", "kubeconfig", "context", "installation")
"""Arguments that are told once for all commands."""
_EXAMPLES = 2
"""Of each command, of those in its help."""

PROFILE = """gpus:
  - {model: Tesla T4, memoryMiB: 15360, count: 2}
nodes:
  big: {gpus: [{model: NVIDIA A100-SXM4-80GB, memoryMiB: 81920}]}
"""

WORKLOAD = """apiVersion: apps/v1
kind: StatefulSet
metadata: {name: notebook}
spec:
  replicas: 3
  template:
    spec:
      containers:
        - name: main
          resources: {limits: {aliyun.com/gpu-mem: 6}}
---
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {gpushare.dev/gpus: "2"}}
spec:
  containers:
    - name: main
      resources: {limits: {aliyun.com/gpu-mem: 12}}
"""

EXPLAIN = """### Which nodes count
The answers come from the controller's own code, on the ledger that it would have.
Cordons, taints, node selectors, required node affinity, and what is left of CPU, memory and GPUs count too. A note \
names what is not evaluated, such as pod affinity or volumes.

### Why this node
`CHOICE` says what the pod does to the GPUs of its node, and what the next node lacks, as the pod's policy sees it: \
how full nodes are (`binpack`, `spread`); what is left over that few pods ask for, room for usual pods, and GPUs of \
a model that others need (`dense`); fragments (`fgd`).
For a pod on a node it is about the cluster as it is now, without this pod; kube-scheduler may still [prefer another \
node](../scheduling.md#the-weight).

### Rights
It reads the pod, all nodes and all pods. Without the right to read what follows, it says what it does not know: \
the ConfigMaps of `kube-system`, which may call GPUs unhealthy; the installation's `gpushare-config`, for memory \
unit, policy, and whose whole GPUs are; and `pods/proxy` in the installation's namespace (`get`), for what \
containers use.
"""

SIMULATE = """### What it reads
`-f` takes what `kubectl get nodes,pods -A -o yaml` prints, JSON, manifests of several documents, and `-`.
Without `-A` the pods of other namespaces are missing; a note says so if it looks like it.

| object | what becomes of it |
|---|---|
| Node with `gpushare.dev/inventory` | its GPUs, with what `gpushare.dev/cordoned-gpus` says of them |
| Node of Aliyun's plugin | its memory, split evenly over its `aliyun.com/gpu-count` |
| Pod on a node | holds what its annotations say; without any it gets GPUs of that node before all others |
| Pod that waits | placed next, by priority and then by age |
| Pod without a `uid` | new: placed in the order of the files |
| Deployment, ReplicaSet, StatefulSet, ReplicationController | `replicas` new pods |
| DaemonSet | a new pod for each node that it selects and tolerates |
| Job, CronJob | the new pods of one run that run at the same time |
| Namespace with the label `gpushare.dev/gpu-policy` | the policy of its pods that name none |
| ConfigMap `unhealthy-gpu-NODE` of `kube-system` | GPUs that take nothing new |
| anything else | left out, with a note |

A workload whose pods are in the input makes no others. New pods have the same names in every run.
Pods without GPUs count as well.

`--profile` makes up nodes from a profile, the file that [simulated GPUs](../install.md) have; with `-f` they join \
the nodes of the list.
A GPU of it may have `mig: [{profile: 1g.5gb, memoryMiB: 4864, count: 2}]`: only these instances are shared then; \
and `reservedMiB`, which its driver keeps for itself.

### How it decides
A pod is refused as by the webhook if its request is wrong.
Else kube-scheduler is followed: resources and places for pods, preset and cordoned nodes, taints, node selectors, \
required node affinity, pod affinity and anti-affinity, and topology spread constraints count; then the controller \
says on which nodes the GPUs are enough.
Of these nodes the one with the most points takes the pod; chance decides among equal ones, in the same way with \
the same seed. Points are those of kube-scheduler's default plugins as of `--server-version`, and the controller's:

| Points | Of |
|---|---|
| NodeResourcesFit | free CPU and memory; with `--most-allocated` the other way round |
| NodeResourcesBalancedAllocation | CPU and memory used to the same part; from 1.36 whether the pod makes that \
better |
| PodTopologySpread | the pod's constraints, or replicas of a Deployment or the like on different nodes and zones |
| TaintToleration, NodeAffinity | taints with `PreferNoSchedule`, preferred node affinity |
| InterPodAffinity | pods that this one likes or avoids, and that like or avoid it |
| the controller | the pod's policy, times `--weight`; for pods without GPUs only with `--rank-others` |

All nodes are scored, and have the same images. Nothing is preempted.
Not evaluated: Services, volumes, host ports and resource claims, which a note names; `matchLabelKeys`, selectors \
of namespaces by label, and other policies of topology spread constraints than the defaults.

### What it prints
The summary comes first: for each policy how many pods are placed and how much of the GPU memory they have, as the \
mean of all seeds with the standard deviation; [what the closest node lacks](#what-keeps-pods-away) for the pods \
that are not placed; and for each model [what is free](#which-gpus-are-left).
In `ASKED FOR`, a part of a GPU or a whole one counts as of a GPU of mean size, so pods can get more than that.
The rest is of the first policy with the first seed.

`--policy dense,binpack,none --seeds 1-5 --order shuffled` compares policies; `none` does not rank nodes, as \
Aliyun's extender.
With `--replay`, pods that wait get what others leave. `--plot` draws how much is allocated over what was asked for, \
or over time if pods end.
100,000 pods on 1,000 nodes take one to two minutes of a processor and 460 MiB.
"""

REASONS = """### What keeps pods away
`NOT PLACED BECAUSE OF` in the summary, and `refused` of its JSON, count pods by what the closest node lacks; \
several things may be in a pod's way. The details, and `-o json`, have all nodes with numbers.

| reason | what is lacking | what to do |
|---|---|---|
| `InsufficientGpuMemory` | a GPU with as much free memory as the pod asks for on one | more GPUs, or smaller pods; \
if little of what is free is `TOO SMALL`, compare policies |
| `InsufficientGpuCompute` | compute on a GPU that has the memory | ask for less `aliyun.com/gpu-core.percentage` \
or `nano-gpu/gpu-percent`, or for memory alone |
| `NoUntouchedGpu` | as many GPUs on which no pod holds anything | more GPUs; `dense`, which keeps GPUs free for \
such pods |
| `TooFewGpus` | a node with as many healthy GPUs as the pod asks for | ask for fewer, or add larger nodes |
| `NoMatchingGpu` | a GPU that the pod accepts: model, UUID, size, MIG, an enforced limit, other pods on it | \
change the [annotations](../request.md#choose-gpus), or add such GPUs |
| `NoHealthyGpu` | a GPU that is healthy and not cordoned, or a pod's allocation there cannot be read | see [a \
faulty GPU](../operate.md#a-faulty-gpu) |
| `NoInventory` | GPUs: no node that comes into question has an inventory | add nodes with \
`gpushare.dev/inventory`, or `--profile`; on a cluster, see whether the [device \
plugin](../troubleshoot.md#the-node-shows-no-aliyuncomgpu-mem) runs |
| `UnitMismatch` | the memory unit in which the node counts | `--memory-unit`, which must be [the same \
everywhere](../operate.md#memory-unit) |
| `OtherHandOver` | a node that hands GPUs over as the pod was created for | create the pod again; the controller \
does so for workloads |
| `SearchTooLong` | a fit for all containers that was found in time | ask for equal amounts, or have fewer GPU \
containers in a pod |
| `Insufficient cpu`, `Insufficient memory` | CPU or memory of the node, where GPUs are free | smaller requests; \
`--rank-others`, or a [taint](../scheduling.md#keep-gpu-nodes-for-gpu-pods), against pods without GPUs |
| `Insufficient RESOURCE`, for example `Insufficient aliyun.com/gpu-mem` | the node's sum of that resource, as \
kube-scheduler counts it | as `InsufficientGpuMemory`; nodes must have it in `status.allocatable` |
| `Too many pods` | a place among the node's `status.allocatable.pods` | more nodes, or a larger `maxPods` of the \
kubelet |
| `cordoned (spec.unschedulable)`, `taint KEY=VALUE`, `taint KEY`, `spec.nodeSelector wants KEY=VALUE, ...`, \
`no term of the required node affinity matches`, `spec.nodeName` | a node that takes the pod by Kubernetes' own rules \
| change the pod, or uncordon, label or untaint nodes |
| `pod affinity or topology spread, ...` | a node that the constraints of this pod, or of pods there, leave | more \
nodes or zones, or `ScheduleAnyway` and preferred terms |
| `RefusedByWebhook` | a request that is right: the pod would not be created | the details say what is wrong |
| `NotReady` | something beside room: scheduling gates, a pod that cannot be read or is on a node without its GPUs \
| the details say which |
| `Unknown` | nothing that the closest node says | report it, with the input |

### Which GPUs are left
In GPUs, parts added up; in JSON `gpus`, `allocated`, `free`, `freeTooSmall`, `freeWithoutHost`.

| column | meaning | what to do |
|---|---|---|
| `FREE` | memory that no pod holds; not all of it is lost | |
| `TOO SMALL` | of it in remainders in which no pod of the input fits | sizes that add up to a GPU (a half, a \
third); `dense` learns which remainders pods fit in |
| `NO CPU OR MEMORY` | of it where a pod of the input would fit, had the node CPU and memory for one | \
`--rank-others`; smaller requests for CPU and memory; nodes with more of it for each GPU |
"""

DASHBOARD = """[A page of its own](../dashboard.md) shows it, and what users with fewer rights see.

### Rights
It lists and watches nodes, pods and Events, and the ConfigMaps of `kube-system`, which may call GPUs unhealthy.
What is used needs the right to get `pods/proxy` in the namespace of the installation.

### Who can see it
It listens on the loopback address, and answers only `GET` and `HEAD` requests for a name of that address that have \
the key: no other users of the machine, and no pages of other sites (DNS rebinding). The page runs no script but \
its own files (`Content-Security-Policy`).
With `--sign-in` each user sees [what that user may list](../dashboard.md#each-user-sees-what-that-user-may-list).
"""


def page() -> str:
    """The page as it should be."""
    commands = _commands()
    parts = [HEAD, *_arguments(each for each in commands["inspect"]._actions if each.dest in COMMON)]
    for name, parser in commands.items():
        parts += [f"\n## gpushare {name}\n\n", *_command(parser), *_more(name)]
    return "".join(parts)


def _commands() -> Mapping[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in cli.command_line()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
    yield f"{parser.description}\n\n"
    yield from _arguments(each for each in actions if each.dest not in COMMON)
    examples, _, exit_codes = str(parser.epilog).partition("\n\n")
    common = ", ".join(f"`{each.option_strings[0]}`" for each in actions if each.dest in COMMON)
    yield f"\nAlso {common}. {exit_codes}\n" if common else f"\n{exit_codes}\n"
    lines = [line.strip() for line in examples.splitlines()[1 : 1 + 2 * _EXAMPLES]]
    yield "\n```console\n"
    yield from (f"{line}\n" if line.startswith("#") else f"$ {line}\n" for line in lines)
    yield "```\n"


def _arguments(actions: Iterable[argparse.Action]) -> Iterator[str]:
    yield "| argument | meaning |\n|---|---|\n"
    yield from (f"| {_usage(each)} | {_meaning(each)} |\n" for each in actions)


def _usage(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or ()))}"
    usages = [f"`{option}{value}`" for option in action.option_strings] or [f"`{action.metavar}`"]
    return ", ".join(usages).replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    told = "namespace of gpushare (default: %(default)s)" if action.dest == "installation" else action.help or ""
    text = told.replace("%(default)s", f"`{action.default}`").replace("|", "\\|")
    return f"{text} (required)" if action.required and action.option_strings else text


def _more(name: str) -> list[str]:
    match name:
        case "inspect":
            return ["\n`kubectl inspect gpushare` is the same command, for scripts that call Aliyun's plug-in.\n"]
        case "explain":
            return [f"\n{EXPLAIN}", *_explained("Why a pod waits", 20), *_explained("Where a pod is", None)]
        case "simulate":
            return [f"\n{SIMULATE}\n{REASONS}", *_simulated()]
        case "top":
            return ["\nIt reads what [the dashboard](#gpushare-dashboard) reads.\n"]
        case "dashboard":
            return [f"\n{DASHBOARD}"]
        case "drain" | "defrag":
            return ["\n### Example\n", *_planned(name)]
        case "doctor":
            return ["\nThe checks are listed on [a page of their own](doctor.md).\n"]
        case _:
            return []


def _planned(name: str) -> list[str]:
    if name == "drain":
        found = draining.drain(_shared(), dry_run=True, width=80)
        return _console("gpushare drain node-a/0 --dry-run", found.out, found.code)
    found = defragging.defrag(_shared(), pod="train", dry_run=True, width=80)
    return _console("gpushare defrag train", found.out, found.code)


def _shared() -> FakeKube:
    """Two nodes with a workload that has a budget, a pod of its own, and a large pod that waits."""
    replicas = [
        draining.owned(bound(f"web-{i}", make_grant(0, gib=gib), labels={"app": "web"})) for i, gib in enumerate((3, 2))
    ]
    others = [bound("notebook", make_grant(1, gib=9)), bound("batch", make_grant(0, gib=8), node="node-b")]
    kube = draining.seeded(FakeKube(), draining.budget("web", 1, app="web"))
    nodes = [make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b"))]
    waiting = mutated(make_pod(make_container(gpu_mem=13), name="train"))
    for one in [*nodes, *replicas, *others, waiting]:
        kube.seed(f"/api/v1/{'nodes' if one['kind'] == 'Node' else 'namespaces/default/pods'}", one)
    return kube


def _explained(title: str, gpu_mem: int | None) -> list[str]:
    pod = _running() if gpu_mem is None else _waiting(gpu_mem)
    tainted = make_node(make_inventory(24, node="node-b"))
    tainted["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    nodes = [make_node(make_inventory(15, 15)), tainted, make_node(name="node-c")]
    kube = FakeKube()
    for one in [*nodes, bound("web-0", make_grant(0, gib=9)), pod]:
        where = "nodes" if one["kind"] == "Node" else "namespaces/default/pods"
        kube.seed(f"/api/v1/{where}", one)
    _answer(kube)
    out = io.StringIO()
    options = explain.Options(pod=Target(name="train"))
    code = explain.run(kube, Streams(out=out, err=out, width=80), options, lambda: "default")
    return [f"\n### {title}\n", *_console("gpushare explain train", out.getvalue(), code)]


def _answer(kube: FakeKube) -> None:
    """Have a device plugin that tells what containers use."""
    labels = {"app.kubernetes.io/name": names.PLUGIN}
    pod = make_pod(make_container(ports=[{"name": "metrics", "containerPort": 12347}]), node="node-a")
    pod["metadata"] |= {"name": "plugin", "namespace": names.NAMESPACE, "labels": labels}
    kube.seed(f"/api/v1/namespaces/{names.NAMESPACE}/pods", pod)
    where = 'UUID="GPU-0",container="main",namespace="default",pod="train"'
    metrics = {"used": 2100, "peak": 2700}
    page = [f"gpushare_plugin_container_{name}_bytes{{{where}}} {mib * 1024 * 1024}" for name, mib in metrics.items()]
    path = f"/api/v1/namespaces/{names.NAMESPACE}/pods/plugin:12347/proxy/metrics"
    kube.replies[path] = Reply(status=200, text="\n".join(['gpushare_plugin_gpu_foreign_bytes{UUID="GPU-0"} 0', *page]))


def _running() -> Json:
    pod = bound("train", make_grant(0, gib=3))
    variables = {names.ENV_MPS_MEMORY_LIMIT: "0=3072M", names.ALIYUN_CONTAINER: "3"}
    pod["spec"]["containers"][0]["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    return pod


def _waiting(gpu_mem: int) -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gpu_mem), name="train"))
    message = "0/3 nodes are available: 1 node(s) had untolerated taint {team: ml}, 2 Insufficient \
aliyun.com/gpu-mem."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod["status"]["conditions"] = [condition]
    return pod


def _simulated() -> list[str]:
    out = io.StringIO()
    texts = {"gpus.yaml": PROFILE, "workload.yaml": WORKLOAD}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in texts}
        for name, path in paths.items():
            path.write_text(texts[name], encoding="utf-8")
        options = Options(files=(str(paths["workload.yaml"]),), profile=str(paths["gpus.yaml"]), nodes=2)
        code = simulate.run(options, Streams(out=out, err=out, width=80), io.StringIO())
    files = [f"\n`{name}`:\n\n```yaml\n{text}```\n" for name, text in texts.items()]
    command = "gpushare simulate -f workload.yaml --profile gpus.yaml --nodes 2"
    return ["\n### Example\n", *files, *_console(command, out.getvalue(), code)]


def _console(command: str, output: str, code: int) -> list[str]:
    lines = [line.rstrip() for line in output.splitlines()]
    return ["\n```console\n", f"$ {command}; echo $?\n", *(f"{line}\n" for line in [*lines, str(code)]), "```\n"]
