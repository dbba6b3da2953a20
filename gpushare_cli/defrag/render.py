"""The answer of `gpushare defrag` -> text and JSON. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.defrag import Plan
from gpushare.identity import PodUid
from gpushare_cli import console
from gpushare_cli.defrag.question import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a plan."""

    moved: Mapping[PodUid, str]
    """Pods that were evicted -> the node where the successor is; empty while it has none."""
    node: str
    """Where the pod is for which room was made; empty if it is on none."""
    problem: str
    """Why the plan was not carried out to its end."""


def as_json(name: str, answer: Answer, outcome: Outcome | None) -> Mapping[str, Any]:
    """For programs."""
    return {
        "version": 1,
        "pod": name,
        "fits": answer.fits,
        "fitsSoon": answer.soon,
        "plan": _plan(answer.plan) if answer.plan else None,
        "stay": answer.prepared.stay,
        "why": answer.why_not or None,
        "moved": {uid: node or None for uid, node in outcome.moved.items()} if outcome else {},
        "node": (outcome and outcome.node) or None,
        "stopped": (outcome and outcome.problem) or None,
    }


def _plan(plan: Plan) -> Mapping[str, Any]:
    return {
        "node": plan.node,
        "gpus": sorted({gpu for grant in plan.grants for gpu in grant.gpus}),
        "cordonedMeanwhile": sorted(plan.kept_free),
        "evictions": [
            {"namespace": move.pod.namespace, "name": move.pod.name, "from": move.source, "to": move.target}
            for move in plan.moves
        ],
    }


def text(name: str, answer: Answer, outcome: Outcome | None, width: int) -> str:
    """For people."""
    plan = answer.plan
    if answer.fits:
        return f"{name} fits on {', '.join(answer.fits[:3])} as it is; no pod has to move\n"
    if answer.soon:
        where = ", ".join(answer.soon[:3])
        return f"{name} fits on {where} as soon as pods have ended that are being deleted; no pod has to move\n"
    if plan is None:
        stay = [f"{count} pods {why}" if count != 1 else f"1 pod {why}" for why, count in answer.prepared.stay.items()]
        told = "; ".join([f"{name}: no evictions make room: {answer.why_not}", *stay])
        return console.table([(told,)], width)
    return _planned(name, plan, width) if outcome is None else _done(name, plan, outcome, width)


def _planned(name: str, plan: Plan, width: int) -> str:
    to = [move.target or "would wait: it fits nowhere else" for move in plan.moves]
    moves = [(str(move.pod), move.source, where) for move, where in zip(plan.moves, to, strict=True)]
    if plan.waiting:
        last = f"{name}: this would make room on {plan.node}, and take their place from others; not done\n"
    else:
        count = len(plan.moves)
        evictions = "1 eviction makes" if count == 1 else f"{count} evictions make"
        last = f"{evictions} room for {name} on {plan.node}\n"
    return console.table([("EVICT", "FROM", "TO"), *moves], width) + last


def _done(name: str, plan: Plan, outcome: Outcome, width: int) -> str:
    rows = [("POD", "FROM", "NOW ON")]
    for move in plan.moves:
        evicted = move.pod.uid in outcome.moved
        now = (outcome.moved[move.pod.uid] or "evicted; its successor waits") if evicted else "not evicted"
        rows.append((str(move.pod), move.source, now))
    if outcome.node:
        last = f"{name} is on {outcome.node}\n"
    elif outcome.problem:
        last = f"{len(outcome.moved)} of {len(plan.moves)} pods evicted for {name}, which has no place\n"
    else:
        last = f"there is room for {name} on {plan.node}\n"
    return console.table(rows, width) + last
