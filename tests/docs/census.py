"""Every fenced block of the documents.

What is typed nowhere is checked by its form in `test_blocks.py`, and output by the test of its page.
A block that cannot be checked has a line above it that says so: `<!-- not run: REASON -->`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TYPED: Final = re.compile("(ACK|Aliyun|Finish|Go back|Helm|nano-gpu|Prepare|Real GPUs|Remove): ")
"""Headings of the steps whose `sh` blocks an administrator of the end-to-end tests types on a real cluster."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: path from the root.
        line: its number, from 1.
        heading: the nearest one above.
        language: after the fence; empty if there is none.
        text: without the indentation of the fence.
        mark: the reason in the line above it, if it is not run.
    """

    page: str
    line: int
    heading: str
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All but the Chinese ones, whose blocks are those of the English ones, and the generated ones."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "manifests" / "README.md"]
    return sorted(page for page in found if not page.name.endswith(".zh.md") and page.parent.name != "reference")


def blocks(page: Path) -> Iterator[Block]:
    """Of one page, in order."""
    name, heading, mark = str(page.relative_to(ROOT)), "", ""
    fence: re.Match[str] | None = None
    begun, lines = 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if fence is not None:
            if line.strip() == "```":
                yield Block(name, begun, heading, fence[2], "\n".join(lines), mark)
                fence, mark = None, ""
            else:
                lines.append(line.removeprefix(fence[1]))
        elif fence := re.fullmatch(r"( *)```(\w*)", line):
            begun, lines = number, []
        elif line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.strip():
            reason = re.fullmatch(r" *<!-- not run: (.+) -->", line)
            mark = reason[1] if reason else ""
