"""GPUs as bars of characters, for terminals and for what is no terminal. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare import units
from gpushare_cli.console import Line, Span, count
from gpushare_cli.dashboard.views import Block, Card, NodeView, Overview, Waiting

Marks = tuple[str, str, str, str]  # of pods in turn, of the rest, and what that is
_BAR: Final = 24
MARKS: Final = {True: ("█", "▓", "░", "free"), False: ("#", "=", ".", "free")}  # with Unicode or without
UNSURE: Final = ("?", "may be held by pods that are not shown")
_COLOURS: Final = ("blue", "cyan", "magenta", "green", "yellow", "bright_blue")  # of pods
_WAITING: Final = 5
_GAP: Final = "  "


def of_nodes(nodes: Sequence[NodeView], marks: Marks, *, with_pods: bool = False) -> Iterator[Line]:
    for node in nodes:
        held = sum(card.granted_mib for card in node.cards)
        has = sum(card.total_mib for card in node.cards)
        models = list(dict.fromkeys(card.model for card in node.cards))
        model = f"{len(models)} models" if len(models) > 1 else "".join(models)
        about = _GAP.join(filter(None, (model, "" if node.address == "unknown" else node.address)))
        yield [(node.name, "bold"), (f"{_GAP}{_of(held, has)}{_GAP}{about}", "")]
        for card in node.cards:
            yield from _of_card(card, node, marks)
            yield from (_of_block(block) for block in card.blocks if with_pods)
        for pod in node.floating:
            yield [(f"  ?   {_gib(pod.mib)} GiB on no known GPU: {pod.namespace}/{pod.name}", "yellow")]
        for reason in node.left_out:
            yield [(f"  not shared: {reason}", "yellow")]
        if node.claimed:
            yield [(f"  {count(len(node.claimed), 'GPU')} shared by ResourceClaims; see gpushare inspect", "")]


def legend(marks: Marks) -> Line:
    return [("{} {} pods in turn  {} {}; USED where it is measured".format(*marks), "dim")]


def head(overview: Overview) -> Iterator[Line]:
    sums = overview.totals
    spans: list[Span] = [(f"{count(sums.gpus, 'GPU')} on {count(sums.nodes, 'node')}", "bold")]
    spans += [(f"{_GAP}{_of(sums.granted_mib, sums.total_mib)}", ""), (f"{_GAP}{count(sums.pods, 'pod')}", "")]
    if sums.used_mib is not None:
        spans.append((f"{_GAP}{_gib(sums.used_mib)} GiB used", ""))
    if sums.waiting:
        spans.append((f"{_GAP}{sums.waiting} waiting", "yellow"))
    if sums.unhealthy:
        spans.append((f"{_GAP}{sums.unhealthy} out of use", "red"))
    yield spans
    if overview.stale:
        yield [(overview.stale, "red")]


def of_waiting(waiting: Sequence[Waiting], total: int) -> Iterator[Line]:
    if waiting:
        yield [("Waiting", "bold")]
    for pod in waiting[:_WAITING]:
        more = f" and {pod.others} more" if pod.others else ""
        yield [(f"  {pod.namespace}/{pod.name}{more}", "yellow")]
        yield [(f"    {pod.reason}", "")]
    others = total - sum(1 + pod.others for pod in waiting[:_WAITING])
    if others > 0:
        yield [(f"  and {count(others, 'more pod')}; see gpushare dashboard", "")]


def _of_card(card: Card, node: NodeView, marks: Marks) -> Iterator[Line]:
    used = "" if card.used_mib is None else f"used {_gib(card.used_mib)}"
    over = any(map(_is_over, card.blocks))
    strength = card.strength.value.replace(" the ", " ") if node.known else ""
    pods = count(len(card.blocks), "pod") if card.blocks else ""
    yield [
        (f"  {card.label:<5}", ""),
        *_bar(card, marks),
        (f"{_GAP}{_of(card.granted_mib, card.total_mib):<15}", ""),
        (f"{used:<11}", "red" if over else ""),
        (f"{strength:<11}", ""),
        (pods, ""),
    ]
    if card.grantable_mib:
        most, held = _gib(card.grantable_mib), units.percent(card.granted_mib, card.total_mib)
        yield [(f"        oversubscribed: up to {most} GiB may be granted; {held} % of its memory is", "yellow")]
    if card.why:
        yield [(f"        {card.why}", "red")]


def _of_block(block: Block) -> Line:
    granted = "all of it" if block.whole else f"{_gib(block.granted_mib)} GiB"
    used = "" if block.used_mib is None else f"used {_gib(block.used_mib)}"
    colour = "red" if _is_over(block) else ""
    return [(f"        {granted:<10}", ""), (f"{used:<11}", colour), (f"{block.namespace}/{block.name}", "")]


def _is_over(block: Block) -> bool:
    return block.used_mib is not None and block.used_mib > block.granted_mib


def _bar(card: Card, marks: Marks) -> Iterator[Span]:
    scale = max(card.total_mib, card.grantable_mib, card.granted_mib, 1)
    yield "[", ""
    drawn = held = 0
    for i, block in enumerate(card.blocks):
        held += block.granted_mib
        cells = min(_BAR, (2 * held * _BAR + scale) // (2 * scale))
        until = max(cells, min(drawn + 1, _BAR))
        yield marks[i % 2] * (until - drawn), "red" if _is_over(block) else _COLOURS[i % len(_COLOURS)]
        drawn = until
    yield marks[2] * (_BAR - drawn), "dim"
    yield "]", ""


def _of(held_mib: int, has_mib: int) -> str:
    return f"{_gib(held_mib)}/{_gib(has_mib) if has_mib else '?'} GiB"


def _gib(mib: int) -> str:
    return f"{mib // 1024}" if mib % 1024 == 0 else f"{mib / 1024:.1f}"
