"""GPUs of which pods hold more than there is: sums of two annotations, with nothing of the code that is tested."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = Mapping[str, Any]
NO_GPUS: Final = '{"gpus": []}'
NO_GRANTS: Final = '{"containers": []}'


def over_memory(nodes: Iterable[Json], pods: Iterable[Json]) -> list[str]:
    """One line for each such GPU. What is oversubscribed may hold as much as its node says."""
    sizes = {
        (node["metadata"]["name"], gpu["uuid"]): gpu.get("grantableMiB", gpu["memoryMiB"])
        for node in nodes
        for gpu in json.loads(_annotation(node, "gpushare.dev/inventory", NO_GPUS))["gpus"]
    }
    held: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if pod["status"].get("phase") in {"Succeeded", "Failed"}:
            continue
        most: Counter[tuple[str, str]] = Counter()
        running: Counter[tuple[str, str]] = Counter()
        for grant in json.loads(_annotation(pod, "gpushare.dev/allocation", NO_GRANTS))["containers"]:
            for gpu in ((pod["spec"]["nodeName"], uuid) for uuid in grant["gpus"]):
                mib = sizes.get(gpu, 0) if grant.get("whole") else grant["memoryMiB"]
                most[gpu] = max(most[gpu], running[gpu] + mib)
                running[gpu] += 0 if grant["kind"] == "init" else mib  # an init container ends before the next starts
        held.update(most)
    return [
        f"{gpu} of {node}: {mib} of {sizes.get((node, gpu), 0)} MiB"
        for (node, gpu), mib in held.items()
        if mib > sizes.get((node, gpu), 0)
    ]


def _annotation(of: Json, name: str, default: str) -> str:
    value: str = of["metadata"].get("annotations", {}).get(name, default)
    return value
