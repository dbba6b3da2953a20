"""An explanation -> text for people, or JSON for programs. Pure."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from gpushare.cluster.reasons import NODES_NAMED
from gpushare.model.verdict import Placed
from gpushare_cli import answers, quantities, tabwriter, terminal
from gpushare_cli.answers import Answer
from gpushare_cli.explain import requested
from gpushare_cli.explain.model import Explanation, Fill, Neighbour, Share

_GROUPS: Final = 5
"""Most groups of equal pods that are shown."""


def text(found: Explanation) -> str:
    """What there is to say, the most important first."""
    blocks = [list(_head(found))]
    if found.shares:
        blocks.append(["CONTAINER\tGPU\tUUID\tMODEL\tMEMORY\tCOMPUTE", *map(_share, found.shares)])
    if found.fills:
        blocks.append(["GPU\tUSED\tSHARED WITH", *map(_fill, found.fills)])
    if found.answers:
        blocks.append(["NODE\tFITS\tWHY", *map(_answer, found.answers)])
    return "\n".join(tabwriter.layout("\n".join(map(terminal.one_line, lines))) + "\n" for lines in blocks)


def grouped(found: Sequence[Explanation]) -> str:
    """The pods of a workload: one of each group of equal ones, and the names of the others."""
    groups: dict[tuple[object, ...], list[Explanation]] = {}
    for each in found:
        groups.setdefault((each.state, each.good, each.headline, each.summary), []).append(each)
    blocks = []
    for same in itertools.islice(groups.values(), _GROUPS):
        others = [each.pod.name for each in same[1:]]
        named, more = ", ".join(others[:NODES_NAMED]), len(others) - NODES_NAMED
        told = f"The same holds for {named}{f' and {more} more' if more > 0 else ''}.\n" if others else ""
        blocks.append(text(same[0]) + told)
    if rest := sum(map(len, itertools.islice(groups.values(), _GROUPS, None))):
        blocks.append(f"Not shown: {rest} more pod{'s' if rest > 1 else ''}; name one to see it.\n")
    return "\n".join(blocks)


def all_as_json(found: Sequence[Explanation]) -> str:
    """The pods of a workload for programs."""
    return _dumped({"pods": [_value(each) for each in found]})


def as_json(found: Explanation) -> str:
    """The explanation for programs. All memory is in MiB."""
    return _dumped(_value(found))


def _dumped(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _value(found: Explanation) -> dict[str, Any]:
    return {
        "namespace": found.pod.namespace,
        "name": found.pod.name,
        "uid": found.pod.uid,
        "phase": found.phase,
        "state": found.state.value,
        "good": found.good,
        "headline": found.headline,
        "summary": found.summary,
        "asks": requested.lines(found.request.shape) if found.request else [],
        "policy": found.policy or None,
        "node": found.node,
        "scheduler": found.scheduler or None,
        "schedulerMessage": found.said or None,
        "nodes": [answers.as_json(answer) for answer in found.answers],
        "containers": [_json_share(share) for share in found.shares],
        "gpus": [_json_fill(fill) for fill in found.fills],
        "chosenBy": found.origin or None,
        "limitHeldBy": found.limit or None,
        "notes": found.notes,
    }


def _head(found: Explanation) -> Iterator[str]:
    yield f"POD:\t{found.pod}"
    yield f"STATE:\t{found.headline}"
    yield f"WHY:\t{found.summary}"
    if found.request is not None:
        for i, line in enumerate(requested.lines(found.request.shape)):
            yield f"{'' if i else 'ASKS FOR:'}\t{line}"
    if found.policy:
        yield f"POLICY:\t{found.policy}"
    if found.origin:
        yield f"CHOSEN BY:\t{found.origin}"
    if found.limit:
        yield f"LIMIT:\t{found.limit}"
    if found.scheduler:
        yield f"SCHEDULER:\t{found.scheduler}{': ' if found.said else ''}{found.said}"


def _share(share: Share) -> str:
    kind = "" if share.kind == "app" else f" ({share.kind})"
    index, model = (str(share.gpu.index), share.gpu.model) if share.gpu else ("?", "?")
    memory = "whole" if share.whole else quantities.memory(share.memory_mib)
    if share.memory_percent and not share.whole:
        memory += f" ({share.memory_percent}%)"
    compute = f"{share.compute_percent}%" if share.compute_percent else "shared"
    return f"{share.container}{kind}\t{index}\t{share.uuid}\t{model}\t{memory}\t{compute}"


def _fill(fill: Fill) -> str:
    used = f"{quantities.memory(fill.used_mib)} of {quantities.memory(fill.gpu.memory_mib)}"
    used += f" ({quantities.percent(fill.used_mib, fill.gpu.memory_mib)}%)"
    if fill.compute_percent:
        used += f", {fill.compute_percent}% of compute"
    return f"{fill.gpu.index}\t{used}\t{', '.join(map(_neighbour, fill.neighbours)) or 'none'}"


def _neighbour(other: Neighbour) -> str:
    return f"{other.pod} ({quantities.memory(other.memory_mib)})"


def _answer(answer: Answer) -> str:
    if isinstance(answer.verdict, Placed) and answer.fits:
        return f"{answer.node}\tyes\tscore {answer.verdict.score} of 10"
    return f"{answer.node}\tno\t{answer.why_not}"


def _json_share(share: Share) -> dict[str, Any]:
    return {
        "container": share.container,
        "kind": share.kind,
        "gpu": share.gpu.index if share.gpu else None,
        "uuid": share.uuid,
        "model": share.gpu.model if share.gpu else None,
        "memoryMiB": share.memory_mib,
        "memoryPercent": share.memory_percent,
        "computePercent": share.compute_percent,
        "whole": share.whole,
        "trouble": share.trouble or None,
    }


def _json_fill(fill: Fill) -> dict[str, Any]:
    return {
        "index": fill.gpu.index,
        "uuid": fill.gpu.uuid,
        "model": fill.gpu.model,
        "totalMiB": fill.gpu.memory_mib,
        "usedMiB": fill.used_mib,
        "computePercent": fill.compute_percent,
        "sharedWith": [
            {
                "namespace": other.pod.namespace,
                "name": other.pod.name,
                "usedMiB": other.memory_mib,
                "computePercent": other.compute_percent,
            }
            for other in fill.neighbours
        ],
    }
