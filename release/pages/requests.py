"""Every way to ask, once: docs/request.md has its tables from this list, and the end-to-end tests run each of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import names
from gpushare.model.request import ContainerRequest, PodRequest, RequestShape
from gpushare.units import ResourceConfig
from gpushare.wire import requests

Json = dict[str, Any]
RESOURCE_CONFIG: Final = ResourceConfig(whole_gpus=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One spelling."""

    name: str
    limits: Mapping[str, str | int]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    def pod(self) -> Json:
        """The manifest that its author would write."""
        metadata: Json = {"name": self.name, "namespace": "default"}
        if self.labels:
            metadata["labels"] = dict(self.labels)
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        container = {"name": "main", "image": "busybox", "resources": {"limits": dict(self.limits)}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}

    def request(self) -> PodRequest:
        """What it means."""
        found = requests.of_pod(self.pod(), RESOURCE_CONFIG)
        assert found is not None, self.name
        return found


EXAMPLES: Final = (
    Example(name="share", limits={names.GPU_MEM: 3}),
    Example(
        name="total",
        limits={names.GPU_MEM: 8},
        labels={names.LABEL_GPU_COUNT: "2"},
        remark="the amount is the container's total, split evenly; it must divide",
    ),
    Example(
        name="each",
        limits={names.GPU_MEM: 3},
        annotations={names.ANNOTATION_GPUS: "4"},
        remark="the amount is for each GPU; the webhook multiplies the limit to 12, so that the node's sum is right,"
        " and marks the pod with `gpushare.dev/limits-are-totals`",
    ),
    Example(name="percent", limits={names.GPU_PERCENT: "20"}, remark="up to 100"),
    Example(
        name="core",
        limits={names.GPU_MEM: 4, names.GPU_CORE: 30},
        remark="compute is set aside beside the memory; on one GPU only",
    ),
    Example(
        name="whole",
        limits={names.GPU: 2},
        remark="if the administrator has [switched it on](operate.md#whole-gpus); otherwise the resource is another"
        " plugin's",
    ),
    Example(
        name="model",
        limits={names.GPU_MEM: 20},
        annotations={names.ANNOTATION_MODEL: "A100,H100"},
        remark="whole words of the model's name: `A10` does not mean `A100`; `!T4` excludes one",
    ),
    Example(
        name="uuid",
        limits={names.GPU_MEM: 1},
        annotations={names.ANNOTATION_UUID: "!GPU-11111111-2222-3333-4444-555555555555"},
        remark="UUIDs as `nvidia-smi -L` prints them; `!` excludes one",
    ),
    Example(
        name="memory",
        limits={names.GPU_MEM: 1},
        annotations={names.ANNOTATION_MIN_MEMORY: "40Gi"},
        remark="a number alone counts units",
    ),
    Example(
        name="limit",
        limits={names.GPU_MEM: 8},
        annotations={names.ANNOTATION_LIMIT: "enforced"},
        remark="no container there can take more memory than its share: by the driver's limits on cgroups, or by MIG"
        " for a container that asks for all of an instance; of no effect on pods that ask for whole GPUs alone",
    ),
    Example(
        name="mig",
        limits={names.GPU_MEM: 1},
        annotations={names.ANNOTATION_MIG: "never"},
        remark="`only` takes nothing but MIG instances, also for whole GPUs, which are never instances otherwise. A"
        " container that asks for several GPUs gets no instances",
    ),
    Example(
        name="binpack",
        limits={names.GPU_MEM: 2},
        annotations={names.ANNOTATION_POLICY: "binpack"},
        remark="the fullest GPU that fits",
    ),
    Example(
        name="spread",
        limits={names.GPU_MEM: 2},
        annotations={names.ANNOTATION_POLICY: "spread"},
        remark="the emptiest GPU that fits",
    ),
    Example(
        name="dense",
        limits={names.GPU_MEM: 2},
        annotations={names.ANNOTATION_POLICY: "dense"},
        remark="the GPU where the pods to come lose the least",
    ),
    Example(
        name="fgd",
        limits={names.GPU_MEM: 2},
        annotations={names.ANNOTATION_POLICY: "fgd"},
        remark="the GPU where the least becomes a fragment",
    ),
    Example(
        name="same",
        limits={names.GPU_MEM: 1},
        labels={"app": "pair"},
        annotations={names.ANNOTATION_SAME_GPU: "app=pair"},
        remark="a label selector, in the pod's own namespace; the first pod of a group goes anywhere",
    ),
    Example(
        name="other",
        limits={names.GPU_MEM: 1},
        labels={"app": "apart"},
        annotations={names.ANNOTATION_OTHER_GPU: "app=apart"},
        remark="keeps away from GPUs that such pods hold",
    ),
)


def tables() -> Mapping[str, str]:
    """Marker in docs/request.md -> the table that follows it. Policies have a table of the page's own."""
    asked = [example for example in EXAMPLES if example.request().shape.policy is None]
    choices = [each for each in asked if str(each.request().shape.gpus) or each.request().shape.affinity]
    return {
        "ways": "| On the pod | In the container's limits | Meaning |\n|---|---|---|\n"
        + "".join(map(_way, (each for each in asked if each not in choices))),
        "choices": "| On the pod | Meaning |\n|---|---|\n" + "".join(map(_choice, choices)),
    }


def filled(page: str) -> str:
    """The page with its tables as they should be."""
    for marker, table in tables().items():
        before, begin, rest = page.partition(f"<!-- {marker} -->\n")
        page = before + begin + table + rest[rest.index("<!-- end -->") :]
    return page


def _way(example: Example) -> str:
    limits = ", ".join(f"`{resource}: {amount}`" for resource, amount in example.limits.items())
    means = meaning(example.request().shape) + (f"; {example.remark}" if example.remark else "")
    return f"| {_on_the_pod(example)} | {limits} | {means} |\n"


def _choice(example: Example) -> str:
    where = meaning(example.request().shape).partition(", ")[2]
    return f"| {_on_the_pod(example)} | {where}; {example.remark} |\n"


def _on_the_pod(example: Example) -> str:
    written = [f'label `{key}: "{value}"`' for key, value in example.labels.items()]
    written += [f'annotation `{key}: "{value}"`' for key, value in example.annotations.items()]
    return ", ".join(written)


def meaning(shape: RequestShape) -> str:
    """One line for people."""
    text = " + ".join(map(_container, shape.containers))
    if str(shape.gpus):
        text += f", only GPUs with {shape.gpus}"
    if shape.policy is not None:
        text += f", chosen by {shape.policy.value}"
    if shape.affinity is not None and shape.affinity.same is not None:
        text += f", only GPUs with pods {shape.affinity.same}"
    if shape.affinity is not None and shape.affinity.other is not None:
        text += f", only GPUs without pods {shape.affinity.other}"
    return text


def _container(request: ContainerRequest) -> str:
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    if request.whole:
        return f"{request.gpu_count} whole GPUs that no one else is on"
    if request.memory_percent:
        return f"{request.memory_percent} % of the memory and {request.compute_percent} % of the compute of {where}"
    compute = f" and {request.compute_percent} % of the compute" if request.compute_percent else ""
    return f"{request.memory_mib} MiB{compute} on {where}"
