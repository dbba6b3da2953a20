"""GPUs as bars of characters, for terminals and for what is no terminal. Pure.

Text that tenants write never reaches the terminal's own commands: `Look.line` escapes it before it adds colours.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import units
from gpushare.runtime.options import environment
from gpushare_cli import console
from gpushare_cli.dashboard.model import Block, Card, NodeView, Overview, Waiting

WIDTH: Final = 80
_BAR: Final = 24
_MARKS: Final = {True: (("█", "▓"), "░"), False: (("#", "="), ".")}
"""With Unicode or without: blocks of neighbouring pods in turn, and what is free."""
_RESET: Final = "\x1b[0m"
_BOLD, _DIM, _RED, _YELLOW = "1", "2", "31", "33"
_COLOURS: Final = ("34", "36", "35", "32", "33", "94")
"""Of pods; neighbours differ by their marks too."""
_WAITING: Final = 5
_CUT: Final = {True: "…", False: ">"}
_GAP: Final = "  "
_ENDS: Final = re.compile("[\t\n]+")

Span = tuple[str, str]
"""Text, and its colour as the number of an ANSI command; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the reader's terminal can show."""

    colour: bool = False
    unicode: bool = False
    width: int = WIDTH

    @classmethod
    def of_output(cls, width: int) -> "Look":
        """What standard output can show: https://no-color.org, and no colours where it is no terminal."""
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        return cls(colour=obeys() and not environment("NO_COLOR"), unicode=utf8, width=width)

    def line(self, *spans: Span) -> str:
        """One line; if it is longer than the width, it ends in a mark."""
        whole = [(console.printable(_ENDS.sub(" ", text)), colour) for text, colour in spans]
        left, parts = self.width, []
        cut = len("".join(text for text, _ in whole).rstrip(" ")) > left
        left -= cut
        for text, colour in whole:
            shown = text[:left]
            left -= len(shown)
            parts.append(f"\x1b[{colour}m{shown}{_RESET}" if colour and self.colour and shown.strip() else shown)
        return f"{''.join(parts).rstrip(' ')}{_CUT[self.unicode] if cut else ''}\n"


def obeys() -> bool:
    """Whether standard output is a terminal that takes commands."""
    return sys.stdout.isatty() and environment("TERM", "dumb") != "dumb"


def of_nodes(nodes: Sequence[NodeView], look: Look, *, with_pods: bool = False) -> Iterator[str]:
    """Lines for all nodes: a heading, a bar for each GPU, what is wrong with it, and its pods if they are wanted."""
    for node in nodes:
        held = sum(card.granted_mib for card in node.cards)
        has = sum(card.total_mib for card in node.cards)
        about = _GAP.join(filter(None, (_model(node), "" if node.address == "unknown" else node.address)))
        yield look.line((node.name, _BOLD), (f"{_GAP}{_of(held, has)}{_GAP}{about}", ""))
        for card in node.cards:
            yield from _of_card(card, node, look)
            yield from (_of_block(block, look) for block in card.blocks if with_pods)
        for pod in node.floating:
            yield look.line((f"  ?   {_gib(pod.mib)} GiB on no known GPU: {pod.namespace}/{pod.name}", _YELLOW))
        for reason in node.left_out:
            yield look.line((f"  not shared: {reason}", _YELLOW))


def legend(look: Look) -> str:
    """What the marks mean."""
    (one, other), free = _MARKS[look.unicode]
    return look.line((f"{one} {other} pods in turn  {free} free; USED where it is measured", _DIM))


def head(overview: Overview, look: Look) -> Iterator[str]:
    """The cluster in one or two lines, and what is missing."""
    sums = overview.totals
    spans: list[Span] = [(f"{_count(sums.gpus, 'GPU')} on {_count(sums.nodes, 'node')}", _BOLD)]
    spans += [(f"{_GAP}{_of(sums.granted_mib, sums.total_mib)}", ""), (f"{_GAP}{_count(sums.pods, 'pod')}", "")]
    if sums.used_mib is not None:
        spans.append((f"{_GAP}{_gib(sums.used_mib)} GiB used", ""))
    if sums.waiting:
        spans.append((f"{_GAP}{sums.waiting} waiting", _YELLOW))
    if sums.unhealthy:
        spans.append((f"{_GAP}{sums.unhealthy} out of use", _RED))
    yield look.line(*spans)
    if overview.stale:
        yield look.line((overview.stale, _RED))


def of_waiting(waiting: Sequence[Waiting], total: int, look: Look) -> Iterator[str]:
    """Pods that wait, the first ones with the reason, of so many."""
    if waiting:
        yield look.line(("Waiting", _BOLD))
    for pod in waiting[:_WAITING]:
        more = f" and {pod.others} more" if pod.others else ""
        yield look.line((f"  {pod.namespace}/{pod.name}{more}", _YELLOW))
        yield look.line((f"    {pod.reason}", ""))
    others = total - sum(1 + pod.others for pod in waiting[:_WAITING])
    if others > 0:
        yield look.line((f"  and {_count(others, 'more pod')}; see gpushare dashboard", ""))


def _of_card(card: Card, node: NodeView, look: Look) -> Iterator[str]:
    used = "" if card.used_mib is None else f"used {_gib(card.used_mib)}"
    over = any(map(_is_over, card.blocks))
    strength = card.strength.value.replace(" the ", " ") if node.known else ""
    pods = _count(len(card.blocks), "pod") if card.blocks else ""
    yield look.line(
        (f"  {card.label:<5}", ""),
        *_bar(card, look),
        (f"{_GAP}{_of(card.granted_mib, card.total_mib):<15}", ""),
        (f"{used:<11}", _RED if over else ""),
        (f"{strength:<11}", ""),
        (pods, ""),
    )
    if card.grantable_mib:
        most, held = _gib(card.grantable_mib), units.percent(card.granted_mib, card.total_mib)
        yield look.line(
            (f"        oversubscribed: up to {most} GiB may be granted; {held} % of its memory is", _YELLOW)
        )
    if card.why:
        yield look.line((f"        {card.why}", _RED))


def _of_block(block: Block, look: Look) -> str:
    granted = "all of it" if block.whole else f"{_gib(block.granted_mib)} GiB"
    used = "" if block.used_mib is None else f"used {_gib(block.used_mib)}"
    colour = _RED if _is_over(block) else ""
    return look.line((f"        {granted:<10}", ""), (f"{used:<11}", colour), (f"{block.namespace}/{block.name}", ""))


def _is_over(block: Block) -> bool:
    return block.used_mib is not None and block.used_mib > block.granted_mib


def _bar(card: Card, look: Look) -> Iterator[Span]:
    marks, free = _MARKS[look.unicode]
    scale = max(card.total_mib, card.grantable_mib, card.granted_mib, 1)
    yield "[", ""
    drawn = held = 0
    for i, block in enumerate(card.blocks):
        held += block.granted_mib
        until = max(_cells(held, scale), min(drawn + 1, _BAR))
        yield marks[i % len(marks)] * (until - drawn), _colour(block, i)
        drawn = until
    yield free * (_BAR - drawn), _DIM
    yield "]", ""


def _cells(mib: int, scale: int) -> int:
    return min(_BAR, (2 * mib * _BAR + scale) // (2 * scale))


def _colour(block: Block, i: int) -> str:
    return _RED if _is_over(block) else _COLOURS[i % len(_COLOURS)]


def _model(node: NodeView) -> str:
    models = list(dict.fromkeys(card.model for card in node.cards))
    return models[0] if len(models) == 1 else f"{len(models)} models" if models else ""


def _of(held_mib: int, has_mib: int) -> str:
    return f"{_gib(held_mib)}/{_gib(has_mib) if has_mib else '?'} GiB"


def _gib(mib: int) -> str:
    return f"{mib // 1024}" if mib % 1024 == 0 else f"{mib / 1024:.1f}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
