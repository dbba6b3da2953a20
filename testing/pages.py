"""The pages of the documents, as tests read and follow them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
QUICK_START: Final = "quickstart.md"
FOLLOWED: Final = (("Prepare", "the image"), ("Install", "kubeadm"), ("Finish", "share a GPU"))
"""Title and step of the quick start, in its order."""


def text(name: str) -> str:
    """Of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """What is below a heading, such as `## Install`, up to the next of its level."""
    found = text(name).split(f"\n{heading}\n")[1]
    return found.split(f"\n{heading.partition(' ')[0]} ")[0]


@cache
def steps(page: str, title: str) -> Mapping[str, Sequence[str]]:
    """The page's headings that begin with a title and a colon, without it, and the commands under each."""
    found: dict[str, list[str]] = {}
    heading = ""
    block: list[str] | None = None
    is_shell = False
    for line in text(f"docs/{page}").splitlines():
        if block is not None:
            if line == "```":
                if heading and is_shell:
                    found.setdefault(heading, []).append("\n".join(block))
                block = None
            else:
                block.append(line)
        elif line.startswith("#"):
            name, colon, rest = line.lstrip("# ").partition(": ")
            heading = rest if colon and name == title else ""
        elif line.startswith("```"):
            block, is_shell = [], line == "```sh"
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


def blocks(name: str, language: str) -> list[str]:
    """The code of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", text(name), re.DOTALL)
