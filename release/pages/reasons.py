"""What docs/reference/cli.md says of the summary of `gpushare simulate`: reasons, and GPUs that are left."""

TEXT = """### What keeps pods away
`NOT PLACED BECAUSE OF` in the summary, and `refused` of its JSON, count pods by what the node lacks that comes \
closest;
several things may be in its way. The details, and `-o json`, have all nodes with numbers.

| reason | what is lacking | what to do |
|---|---|---|
| `InsufficientGpuMemory` | a GPU with as much free memory as the pod asks for on one | more GPUs, or pods that \
ask for less; if much is free and little of it `TOO SMALL`, other shares fit: compare policies |
| `InsufficientGpuCompute` | compute on a GPU that has the memory | ask for less \
`aliyun.com/gpu-core.percentage` or `nano-gpu/gpu-percent`, or for none beside memory |
| `NoUntouchedGpu` | as many GPUs on which no pod holds anything | more GPUs; compare policies: `dense` keeps \
GPUs and nodes free for such pods |
| `TooFewGpus` | a node with as many healthy GPUs as the pod asks for | ask for fewer, or add larger nodes |
| `NoMatchingGpu` | a GPU that the pod accepts: model, UUID, size, MIG, an enforced limit, other pods on it | \
change the [annotations](../request.md#choose-gpus), or add such GPUs |
| `NoHealthyGpu` | any GPU of the node that is healthy and not cordoned, or a pod's allocation there cannot be \
read | see [a faulty GPU](../operate.md#a-faulty-gpu) |
| `NoInventory` | GPUs: no node that comes into question has an inventory | add nodes with \
`gpushare.dev/inventory`, or `--profile`; on a cluster, see whether the [device \
plugin](../troubleshoot.md#the-node-shows-no-aliyuncomgpu-mem) runs |
| `UnitMismatch` | the memory unit in which the node counts | give the cluster's `--memory-unit`, which must be \
[the same everywhere](../operate.md#memory-unit) |
| `OtherHandOver` | a node that hands GPUs over as the pod was created for | create the pod again; the \
controller does so for pods of workloads |
| `SearchTooLong` | a fit for all containers that was found in time | ask for equal amounts, or have fewer GPU \
containers in a pod |
| `Insufficient cpu`, `Insufficient memory` | CPU or memory of the node's host, where the GPUs are free | \
requests that fit the nodes; `--rank-others`, or a [taint](../scheduling.md#keep-gpu-nodes-for-gpu-pods), keeps \
it free from pods without GPUs |
| `Insufficient RESOURCE`, for example `Insufficient aliyun.com/gpu-mem` | the node's sum of that resource, as \
kube-scheduler counts it | as `InsufficientGpuMemory`; nodes must have it in `status.allocatable` |
| `Too many pods` | a place: the node has as many pods as its `status.allocatable.pods` | more nodes, or a \
larger `maxPods` of the kubelet |
| `cordoned (spec.unschedulable)` | a node that takes new pods | `kubectl uncordon` |
| `taint KEY=VALUE`, `taint KEY` | a toleration of that taint | add it to the pod, or take the taint away |
| `spec.nodeSelector wants KEY=VALUE, ...` | a node with that label | label nodes, or change the selector |
| `no term of the required node affinity matches` | a node that the pod's required affinity means | label nodes, \
or change the affinity |
| `spec.nodeName` | the very node that the pod or its DaemonSet names | leave the choice to kube-scheduler |
| `pod affinity or topology spread, ...` | a node that the constraints of this pod, or of pods there, leave | \
more nodes or zones, or `ScheduleAnyway` and preferred terms |
| `RefusedByWebhook` | a request that is right: the pod would not be created | the details say what is wrong and \
how to write it |
| `NotReady` | something beside room: the pod has scheduling gates, cannot be read, or is on a node without its \
GPUs | the details say which |
| `Unknown` | nothing that the closest node says | report it, with the input |

### Which GPUs are left
All numbers are GPUs; parts are added up. In JSON they are `gpus`, `allocated`, `free`, `freeTooSmall`, \
`freeWithoutHost`.

| column | meaning | what to do |
|---|---|---|
| `FREE` | memory that no pod holds; not all of it is lost | |
| `TOO SMALL` | of it in remainders in which no pod of the input fits | sizes that add up to a GPU (a half, a \
third); compare policies; `dense` learns which remainders pods fit in |
| `NO CPU OR MEMORY` | of it where a pod of the input would fit, had the node CPU and memory for one | \
`--rank-others`; smaller requests for CPU and memory; nodes with more of it for each GPU |
"""
