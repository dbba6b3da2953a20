"""The pages of the documents, as tests read and follow them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
QUICK_START: Final = "install.md"
FOLLOWED: Final = (("Prepare", "the image"), ("Install", "kubeadm"), ("Finish", "share a GPU"))
"""Title and step of the way to the first shared GPU, in the page's order."""


def text(name: str) -> str:
    """Of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """What is below a heading, such as `## Install`, up to the next of its level."""
    found = text(name).split(f"\n{heading}\n")[1]
    return found.split(f"\n{heading.partition(' ')[0]} ")[0]


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


@cache
def fenced(name: str) -> Sequence[Block]:
    """All of a page, in order."""
    heading, mark, found = "", "", list[Block]()
    fence: re.Match[str] | None = None
    begun, lines = 0, list[str]()
    for number, line in enumerate(text(name).splitlines(), 1):
        if fence is not None:
            if line.strip() == "```":
                found.append(Block(name, begun, heading, fence[2], "\n".join(lines), mark))
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
    return found


def blocks(name: str, language: str) -> list[str]:
    """The code of a page in one language."""
    return [block.text for block in fenced(name) if block.language == language]


def steps(page: str, title: str) -> Mapping[str, Sequence[str]]:
    """The page's headings that begin with a title and a colon, without it, and the commands under each."""
    found: dict[str, list[str]] = {}
    for block in fenced(f"docs/{page}"):
        name, colon, rest = block.heading.partition(": ")
        if colon and name == title and block.language == "sh":
            found.setdefault(rest, []).append(block.text)
    return found


def commands(block: str) -> list[str]:
    """One for each command; a line that ends in a backslash goes on in the next."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def quick_start() -> list[str]:
    """All commands of the quick start with kubeadm, in the page's order."""
    blocks = (block for title, step in FOLLOWED for block in steps(QUICK_START, title)[step])
    return [command for block in blocks for command in commands(block)]


def memory_fraction() -> Callable[[Mapping[str, str], int], float]:
    """The function that the page on inference defines."""
    [block] = [each for each in blocks("docs/inference.md", "python") if "def usable_mib" in each]
    defined: dict[str, Any] = {}
    exec(block, defined)
    found: Callable[[Mapping[str, str], int], float] = defined["memory_fraction"]
    return found


def fraction_of(variables: Mapping[str, str], total_mib: int) -> float:
    """What that function says to a container with these variables."""
    return memory_fraction()(variables, total_mib)
