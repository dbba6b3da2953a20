"""`gpushare explain`: reads pods and their cluster, and prints why they wait, or where they are."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import units
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.request import Policy, RequestShape
from gpushare.placement.explain import some
from gpushare.units import MemoryUnit
from gpushare.wire import pods as pods_wire
from gpushare_cli import arguments, console, holders, reading, usage, world
from gpushare_cli.arguments import Command, argument
from gpushare_cli.console import BAD, FAILED, OK, Streams
from gpushare_cli.explain import decide, place
from gpushare_cli.explain.decide import Explanation, State
from gpushare_cli.explain.place import Fill, NodeChoice
from gpushare_cli.holders import Share
from gpushare_cli.reading import Objects, Target
from gpushare_cli.usage import Use
from gpushare_cli.world import NodeAnswer

_GROUPS: Final = 5  # most groups of equal pods that are shown
_HINDSIGHT: Final = "as the cluster is now, without this pod: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pod: Target = argument(
        type=Target.parse,
        metavar="POD",
        help="its name, NAMESPACE/NAME, or KIND/NAME for the pods of a workload: deployment/web",
    )
    namespace: str = arguments.namespace()
    installation: str = arguments.installation("gpushare's own settings")
    memory_unit: MemoryUnit | None = arguments.memory_unit(
        "the one of the settings, else the one in which the nodes count"
    )
    output: str = arguments.output()


def run(api: KubeApi, streams: Streams, options: Options, namespace: Callable[[], str]) -> int:
    """Print all about a pod, or about the pods of a workload. The exit code."""
    target = options.pod
    where = target.namespace_or(options.namespace, namespace)
    what = f"{target.kind} {target.name} in namespace {where}"
    try:
        pods = reading.pods_of(api, target.kind, where, target.name)
        cluster = _cluster(api)
        known = reading.settings(api, options.installation, where, options.memory_unit)
        events = reading.events_on if cluster.forbidden else lambda _api, _pod: ()
        state = world.of(cluster, known)
        claims = reading.claim_records(api) if any(map(pods_wire.has_claims, pods)) else None
        explained = [decide.explain(pod, state, events(api, pod), claims) for pod in pods]
        if not cluster.forbidden:
            explained = _with_use(api, explained, options.installation)
    except kube.NotFoundError:
        return streams.error(f"there is no {what}")
    except kube.ForbiddenError as error:
        return streams.error(f"not allowed: {error}")
    if not explained:
        streams.err.write(f"{what} has no pods; see kubectl describe {target.kind} {target.name} -n {where}\n")
        return FAILED
    explained.sort(key=lambda each: (each.good, each.pod.name))
    streams.note(*dict.fromkeys(note for each in explained for note in each.notes))
    alone = target.kind == reading.POD
    streams.answer(
        options.output,
        lambda: as_json(explained[0]) if alone else {"pods": [as_json(each) for each in explained]},
        lambda: _grouped(explained, streams.width),
    )
    return OK if all(each.good for each in explained) else BAD


def _cluster(api: KubeApi) -> Objects:
    """What may be read of it: users without rights on nodes still learn what their own pods tell."""
    try:
        return reading.everything(api)
    except kube.ForbiddenError as error:
        return Objects(nodes=(), pods=(), forbidden=str(error))


def _with_use(api: KubeApi, explained: Sequence[Explanation], installation: str) -> list[Explanation]:
    nodes = {each.node for each in explained if each.node is not None and each.state is State.HOLDS}
    uses = usage.read(api, nodes, installation) if nodes else {}
    return [replace(each, use=uses[each.node]) if each.node and each.node in uses else each for each in explained]


def text(explained: Explanation, width: int) -> str:
    blocks = [list(_head(explained))]
    if explained.shares:
        header = ("CONTAINER", "GPU", "UUID", "MODEL", "MEMORY", "COMPUTE")
        blocks.append([header, *map(_share, explained.shares)])
    if explained.shares and explained.state is State.HOLDS:
        header = ("CONTAINER", "GPU", "LIMIT", "GRANTED", "USED", "PEAK")
        blocks.append([header, *_limits(explained)])
    if explained.fills:
        blocks.append([("GPU", "GRANTED", "SHARED WITH"), *map(_fill, explained.fills)])
    if explained.answers:
        blocks.append([("NODE", "FITS", "WHY"), *map(_answer, explained.answers)])
    return "\n".join(console.table(rows, width) for rows in blocks)


def _grouped(explained: Sequence[Explanation], width: int) -> str:
    """One pod, or the pods of a workload: one of each group of equal ones, and the names of the others."""
    groups: dict[tuple[object, ...], list[Explanation]] = {}
    for each in explained:
        groups.setdefault((each.state, each.good, each.headline, each.summary), []).append(each)
    blocks = []
    for same in itertools.islice(groups.values(), _GROUPS):
        others = [each.pod.name for each in same[1:]]
        told = f"The same holds for {some(others)}."
        blocks.append(text(same[0], width) + (console.table([(told,)], width) if others else ""))
    if rest := sum(map(len, itertools.islice(groups.values(), _GROUPS, None))):
        blocks.append(f"Not shown: {rest} more pod{'s' if rest > 1 else ''}; name one to see it.\n")
    return "\n".join(blocks)


def as_json(explained: Explanation) -> dict[str, Any]:
    """The explanation for programs. All memory is in MiB."""
    return {
        "namespace": explained.pod.namespace,
        "name": explained.pod.name,
        "uid": explained.pod.uid,
        "phase": explained.phase,
        "state": explained.state.value,
        "good": explained.good,
        "headline": explained.headline,
        "summary": explained.summary,
        "asks": world.asked_for(explained.request.shape) if explained.request else [],
        "policy": _policy(explained.request.shape, explained.policy) if explained.request else None,
        "node": explained.node,
        "scheduler": explained.scheduler or None,
        "schedulerMessage": explained.said or None,
        "choice": explained.choice and _json_choice(explained.choice),
        "nodes": [world.as_json(answer) for answer in explained.answers],
        "containers": [
            _json_share(share, explained.used(share.grant.container, share.uuid)) for share in explained.shares
        ],
        "gpus": [_json_fill(fill) for fill in explained.fills],
        "chosenBy": explained.origin or None,
        "limitHeldBy": explained.limit or None,
        "useProblem": explained.use.problem or None,
        "notes": explained.notes,
    }


def _head(explained: Explanation) -> Iterator[tuple[str, ...]]:
    yield "POD:", str(explained.pod)
    yield "STATE:", explained.headline
    yield "WHY:", explained.summary
    if explained.request is not None:
        for i, line in enumerate(world.asked_for(explained.request.shape)):
            yield "" if i else "ASKS FOR:", line
        yield "POLICY:", _policy(explained.request.shape, explained.policy)
    if choice := explained.choice:
        yield "CHOICE:", f"{_HINDSIGHT if choice.in_hindsight else ''}{choice.node}, {choice.why}"
        yield "", choice.lack
    if explained.origin:
        yield "CHOSEN BY:", explained.origin
    if explained.limit:
        yield "LIMIT:", explained.limit
    if explained.use.problem:
        yield "USE:", f"not known: {explained.use.problem}"
    if explained.scheduler:
        yield "SCHEDULER:", f"{explained.scheduler}{': ' if explained.said else ''}{explained.said}"


def _policy(shape: RequestShape, default: Policy) -> str:
    chosen = shape.policy or default
    whose = "named by the pod" if shape.policy else "the default of its namespace or cluster"
    return f"{chosen.value}: {place.WORDS[chosen][0]} ({whose})"


def _share(share: Share) -> tuple[str, ...]:
    grant = share.grant
    index, model = (share.gpu.label, share.gpu.model) if share.gpu else ("?", "?")
    memory = "whole" if grant.whole else units.memory(share.memory_mib)
    if share.memory_percent and not grant.whole:
        memory += f" ({share.memory_percent}%)"
    compute = f"{grant.compute_percent}%" if grant.compute_percent else "shared"
    return world.named(grant), index, share.uuid, model, memory, compute


def _limits(explained: Explanation) -> Sequence[tuple[str, ...]]:
    rows: list[tuple[tuple[str, ...], tuple[int, Use]]] = []
    gpus = {share.uuid: share.gpu for share in explained.shares if share.gpu}
    for share in explained.shares:
        gpu = share.gpu.label if share.gpu else "?"
        kind = share.limit.value if share.limit else "?"
        used = explained.used(share.grant.container, share.uuid)
        rows.append(((world.named(share.grant), gpu, kind), (share.memory_mib, used)))
    nameless = (explained.pod.namespace, explained.pod.name, "")
    for uuid in sorted(key[3] for key in explained.use.uses if key[:3] == nameless):
        other = gpus.get(uuid)
        where = (other.label, other.limit_of(0).value) if other else (uuid, "?")
        rows.append(((usage.OTHERS, *where), (0, explained.used("", uuid))))
    told = usage.amounts(amounts for _, amounts in rows)
    return [(*where, *mib) for (where, _), mib in zip(rows, told, strict=True)]


def _fill(fill: Fill) -> tuple[str, ...]:
    unit, (some, every, most) = units.in_one_unit(fill.granted_mib, fill.gpu.memory_mib, fill.gpu.grantable_mib)
    granted = f"{some} of {every} {unit} ({units.percent(fill.granted_mib, fill.gpu.memory_mib)}%)"
    if fill.gpu.extra_mib:
        granted += f", oversubscribed up to {most} {unit}"
    if fill.compute_percent:
        granted += f", {fill.compute_percent}% of compute"
    beside = [f"{pod} ({units.memory(held.memory_mib)})" for pod, held in fill.neighbours]
    return fill.gpu.label, granted, ", ".join(beside) or "none"


def _answer(answer: NodeAnswer) -> tuple[str, ...]:
    if answer.fits:
        return answer.node, "yes", f"score {answer.score} of 10"
    return answer.node, "no", answer.why_not


def _json_choice(choice: NodeChoice) -> dict[str, Any]:
    return {
        "node": choice.node,
        "why": choice.why,
        "next": choice.next,
        "lack": choice.lack,
        "inHindsight": choice.in_hindsight,
    }


def _json_share(share: Share, use: Use) -> dict[str, Any]:
    return {
        "container": share.grant.container,
        "kind": share.grant.kind.value,
        "gpu": share.gpu.index if share.gpu else None,
        "uuid": share.uuid,
        "model": share.gpu.model if share.gpu else None,
        "memoryMiB": share.memory_mib,
        "memoryPercent": share.memory_percent,
        "computePercent": share.grant.compute_percent,
        "whole": share.grant.whole,
        "limit": share.limit.value if share.limit else None,
        "usedMiB": use.used_mib,
        "peakMiB": use.peak_mib,
        "trouble": share.trouble or None,
    }


def _json_fill(fill: Fill) -> dict[str, Any]:
    return {
        "index": fill.gpu.index,
        "uuid": fill.gpu.uuid,
        "model": fill.gpu.model,
        "totalMiB": fill.gpu.memory_mib,
        **({"grantableMiB": fill.gpu.grantable_mib} if fill.gpu.extra_mib else {}),
        **holders.granted_json(fill.granted_mib),
        "computePercent": fill.compute_percent,
        "sharedWith": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                **holders.granted_json(held.memory_mib),
                "computePercent": held.compute_percent,
            }
            for pod, held in fill.neighbours
        ],
    }


COMMAND: Final = Command(
    name="explain",
    what="why a pod waits, or where it is",
    exit_codes="the pod has its GPUs, needs none (or no longer), or fits somewhere; 1 it or the cluster cannot be read;"
    " 2 wrong arguments; 3 it waits and fits nowhere.",
    examples=(
        ("Why a pod waits, or where it is and why", "gpushare explain train"),
        ("All pods of a Deployment in another namespace", "gpushare explain deployment/web -n ml"),
    ),
    description="Say why a pod waits, node by node, or where it is and what holds it to its share there.",
    options=Options,
    run=lambda call: run(call.api(), call.streams, call.options(Options), call.namespace),
)
