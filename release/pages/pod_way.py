"""Draws docs/pictures/pod-way.svg: a pod's way through the system, from the table in docs/architecture.md.

`make docs` runs it.
"""

import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs" / "pictures" / "pod-way.svg"
SHORT: Final[Mapping[str, str]] = {
    "create": "completes the pod, or refuses it and says why",
    "schedule": "counts the resource, asks the extender",
    "filter": "which nodes have GPUs on which it fits?",
    "prioritize": "which of them is best, by the policy?",
    "preempt": "if none: which pods are worth evicting?",
    "bind": "one request: node and GPUs, together",
    "admit": "chooses device IDs, starts the sandbox",
    "start": "makes a CDI device of the granted GPUs only",
    "run": "injects the device into the container",
    "end": "gives the memory back",
}
"""What a box says; steps of the table that are not here are not drawn."""
_COLUMN: Final = 156
_ROW: Final = 74
_WIDE, _HIGH = 146, 58
_TOP: Final = 52
_STYLE: Final = """<style>
text{font:11px system-ui,sans-serif;fill:#24292f;text-anchor:middle}
.who{font-weight:600;font-size:13px}.step{font-weight:600;font-size:13px}
.ground{fill:#fff}.lane{stroke:#d0d7de;stroke-dasharray:3 4}.way{fill:none;stroke:#57606a;stroke-width:1.5}
.head{fill:#57606a}.box{fill:#f6f8fa;stroke:#57606a}.ours{fill:#e3f1c8;stroke:#4d7a00}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.lane{stroke:#3d444d}
.way{stroke:#9198a1}.head{fill:#9198a1}.box{fill:#151b23;stroke:#9198a1}.ours{fill:#26380a;stroke:#8fce27}}
</style>"""


def table() -> list[tuple[str, str, str]]:
    """Step, who does it, and what, from the page."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## The life of a pod\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z-]+) \| ([^|]+) \| (.+) \|$", section, flags=re.MULTILINE)
    return [(step, who, what) for step, who, what in rows if step != "---"]


def svg(rows: Sequence[tuple[str, str, str]]) -> str:
    """The picture: a column for each component, in the order in which they come, and a box for each step."""
    drawn = [(step, who) for step, who, _ in rows if step in SHORT]
    components = [*dict.fromkeys(who for _, who in drawn)]
    places = [(_COLUMN // 2 + _COLUMN * components.index(who), _TOP + _ROW * i) for i, (_, who) in enumerate(drawn)]
    width, height = _COLUMN * len(components), _TOP + _ROW * len(drawn)
    told = "; ".join(f"{step}, {who}: {SHORT[step]}" for step, who in drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-labelledby="title desc">',
        '<title id="title">A pod\'s way through the system</title>',
        f'<desc id="desc">{escape(told)}.</desc>',
        _STYLE,
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>',
        *_lanes(components, height),
        *(_arrow(here, there) for here, there in itertools.pairwise(places)),
        *(part for (step, who), at in zip(drawn, places, strict=True) for part in _box(step, who, at)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lanes(components: Sequence[str], height: int) -> Iterator[str]:
    for i, who in enumerate(components):
        x = _COLUMN // 2 + _COLUMN * i
        yield f'<text class="who" x="{x}" y="26">{escape(who)}</text>'
        yield f'<path class="lane" d="M{x} 38V{height - 8}"/>'


def _arrow(here: tuple[int, int], there: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = here, there
    if x == to_x:
        way = f"M{x} {y + _HIGH}V{to_y - 6}"
    else:
        side = _WIDE // 2 if to_x > x else -_WIDE // 2
        way = f"M{x + side} {y + _HIGH // 2}H{to_x}V{to_y - 6}"
    return f'<path class="way" d="{way}"/><path class="head" d="M{to_x} {to_y}l-4 -7h8z"/>'


def _box(step: str, who: str, at: tuple[int, int]) -> Iterator[str]:
    x, y = at
    kind = "ours" if who in {"webhook", "controller", "device plugin"} else "box"
    yield f'<rect class="{kind}" x="{x - _WIDE // 2}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="5"/>'
    yield f'<text class="step" x="{x}" y="{y + 17}">{escape(step)}</text>'
    for i, line in enumerate(textwrap.wrap(SHORT[step], 23)):
        yield f'<text x="{x}" y="{y + 34 + 15 * i}">{escape(line)}</text>'
