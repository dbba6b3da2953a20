"""What docs/reference/cli.md says: every command with its arguments, and examples that are run to make the page."""

import argparse
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpushare import names
from gpushare.kube.api import Reply
from gpushare_cli import __main__ as cli
from gpushare_cli.console import Streams
from gpushare_cli.explain import command as explain
from gpushare_cli.simulate import command as simulate
from gpushare_cli.simulate.command import Options
from gpushare_cli.targets import Target
from release.pages import reasons
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli import defragging, draining
from testing.cli.podding import bound, mutated
from testing.fakes.kube import FakeKube

HEAD = """# Commands

Tables are for people, `-o json` and `-o yaml` are for programs; all memory there is in MiB.
Results go to the standard output; `note:` and `error:` lines, and how far `simulate` is, to the error stream.
On a terminal, the tables of `explain`, `simulate` and `doctor` are as wide as it is.
What does not fit goes to indented lines, and nothing is cut.
Elsewhere they are not folded, so that `grep` finds whole lines; the variable `COLUMNS` gives a width.
This page is written by `make docs` from the code, and its examples are what the commands print; do not edit it.
"""

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
It also checks cordons, taints, node selectors, required node affinity, and what is left of CPU, memory and GPUs.
What else a pod demands, such as pod affinity or volumes, is not evaluated; a note names it.

### Why this node
`CHOICE` says what the pod does to the GPUs of its node, and what the next node lacks, as the pod's policy sees it:
how full nodes are (`binpack`, `spread`); what is left over that few pods ask for, room for usual pods, and GPUs of a
model that others need (`dense`); fragments (`fgd`).
For a pod that is on a node it is about the cluster as it is now, without this pod: no past state is stored.
So another node may be better by now.
kube-scheduler may still prefer another node: see [its scores](../scheduling.md#the-weight).

### Rights
It reads the pod, all nodes and all pods.
It also reads the ConfigMaps of `kube-system`, which may call GPUs unhealthy.
From `gpushare-config` of the installation it takes memory unit, policy, and whose whole GPUs are.
What containers use comes from `/metrics` of the device plugins, through the API server.
That needs the right to get `pods/proxy` in the namespace of the installation.
Without the last three it goes on, and says what it does not know.
"""

SIMULATE = """### What it reads
`-f` takes what `kubectl get nodes,pods -A -o yaml` prints, JSON, manifests of several documents, and `-`.
Without `-A` the pods of other namespaces are missing from the ledger; a note says so if it looks like it.

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

A workload whose pods are in the input makes no others.
New pods have names as Kubernetes would give them, the same in every run.
Pods without GPUs count as well: those on nodes take CPU, memory and a place, and those that wait or are new are placed.

### How it decides
A pod is refused as by the webhook if its request is wrong.
Else kube-scheduler is followed: a node must have the CPU, memory, GPU resources and places for pods that are asked for;
preset and cordoned nodes, taints, node selectors, required node affinity, pod affinity and anti-affinity, and topology
spread constraints count; then the controller says on which nodes the GPUs are enough.
Of these nodes the one with the most points takes the pod, and chance decides among equal ones, the same in every run
with the same seed. Points are those of kube-scheduler's default plugins as of `--server-version`, and the controller's:

| Points | Of |
|---|---|
| NodeResourcesFit | free CPU and memory; with `--most-allocated` the other way round |
| NodeResourcesBalancedAllocation | CPU and memory used to the same part; from 1.36 whether the pod makes that better |
| PodTopologySpread | the pod's constraints, or replicas of a Deployment or the like on different nodes and zones |
| TaintToleration, NodeAffinity | taints with `PreferNoSchedule`, preferred node affinity |
| InterPodAffinity | pods that this one likes or avoids, and that like or avoid it |
| the controller | the pod's policy, times `--weight`; for pods without GPUs only with `--rank-others` |

With the weight that `scheduler-config` prints, which is the default, the controller's best node wins for GPU pods.
Nodes have the same images, and all nodes are scored. Services, volumes, host ports and resource claims are
not evaluated, and a note says so; nor are `matchLabelKeys`, selectors of namespaces by label, and other policies of
topology spread constraints than the defaults. Nothing is preempted.

The summary comes first: how many pods are placed and how much of the GPU memory they have, for each policy the mean of
all seeds, with the standard deviation; [what the closest node lacks](#what-keeps-pods-away) for the pods that are not
placed; and for each model [what is free](#which-gpus-are-left), in GPUs.
What a part of a GPU or a whole one comes to is known when it is placed: in `ASKED FOR` it counts as of a GPU of mean
size, so pods can get more than that.
The rest is of the first policy with the first seed.

`--policy dense,binpack,none --seeds 1-5 --order shuffled` compares policies; `none` does not rank nodes, as Aliyun's
extender.
`--replay` takes a list of a cluster's pods as a record: it places them again, when they were created and for as long as
they ran, and pods that wait get what others leave.
`--plot` writes how much is allocated over what was asked for, or over time if pods end.
100,000 pods on 1,000 nodes take one to two minutes of a processor and 460 MiB; `--summary` leaves out the tables.

`--profile` makes up nodes from a profile, the file that [simulated GPUs](../install.md) have.
A GPU of it may have `mig: [{profile: 1g.5gb, memoryMiB: 4864, count: 2}]`: only these instances are shared then; and
`reservedMiB`, which its driver keeps for itself.
`--nodes` says how many; those that the profile names are among them, and with `-f` they join the nodes of the list.
"""

DASHBOARD = """[A page of its own](../dashboard.md) shows it.

### What it shows
Every GPU as a bar with a block for each pod, by node or by model; what pods use, where the device plugins measure it;
what holds limits, and why GPUs are out of use.
Pods that wait, with the reason that `gpushare explain` gives.
What happened in the last hour: who got and gave back GPU memory, Events of gpushare, GPUs that failed.
The page follows the cluster by itself. It searches and filters, and its address keeps the filters.

### Rights
It lists and watches nodes, pods and Events, and the ConfigMaps of `kube-system`, which may call GPUs unhealthy.
What is used comes from `/metrics` of the device plugins: that needs the right to get `pods/proxy` in the namespace of
the installation.
Users who may not read all of that see less, and the page says what is missing: without nodes the GPUs that readable
pods hold, without the pods of all namespaces those of their own, or of the namespaces that `-n` names.
For pods that wait they see what the scheduler wrote.

### Who can see it
It listens on the loopback address, and answers only requests for a name of that address: pages of other sites cannot
read it through a name of their own (DNS rebinding).
The address that it prints has a key, because other users of the machine reach the loopback address too.
It changes nothing: only `GET` and `HEAD` are answered.
Whatever pods are called, their names are text: the page runs no script but its own files and asks no other server, and
its `Content-Security-Policy` keeps it so.
"""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for name, parser in _commands().items():
        parts += [f"\n## gpushare {name}\n\n", *_command(parser), *_more(name)]
    return "".join(parts)


def _commands() -> Mapping[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in cli.command_line()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"{parser.description}\n\n| argument | meaning |\n|---|---|\n"
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            yield f"| {_usage(action)} | {_meaning(action)} |\n"
    examples, _, exit_codes = str(parser.epilog).partition("\n\n")
    yield f"\n{exit_codes}\n"
    lines = [line.strip() for line in examples.splitlines()[1:]]
    yield "\n```console\n"
    yield from (f"{line}\n" if line.startswith("#") else f"$ {line}\n" for line in lines)
    yield "```\n"


def _usage(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or ()))}"
    usages = [f"`{option}{value}`" for option in action.option_strings] or [f"`{action.metavar}`"]
    return ", ".join(usages).replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("%(default)s", f"`{action.default}`").replace("|", "\\|")
    return f"{text} (required)" if action.required and action.option_strings else text


def _more(name: str) -> list[str]:
    match name:
        case "inspect":
            return ["\n`kubectl inspect gpushare` is the same command, for scripts that call Aliyun's plug-in.\n"]
        case "explain":
            return [f"\n{EXPLAIN}", *_explained("Why a pod waits", 20), *_explained("Where a pod is", None)]
        case "simulate":
            return [f"\n{SIMULATE}\n{reasons.TEXT}", *_simulated()]
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
    message = "0/3 nodes are available: 1 node(s) had untolerated taint {team: ml}, 2 Insufficient aliyun.com/gpu-mem."
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
