"""Chinese pages say what the English ones say, as far as a program can tell: commands, names, links, tables, order."""

import re
from collections import Counter
from pathlib import Path

import pytest

from localcluster.installation import ROOT

PAGES = sorted([*ROOT.glob("*.zh.md"), *ROOT.glob("docs/**/*.zh.md")])
BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
CONTENTS = re.compile(r"^## (?:Documents|文档)\n.*?(?=^## |^\[|\Z)", re.DOTALL | re.MULTILINE)
"""Of the README: the Chinese one names Chinese pages only."""
END = "<!-- Chinese ends here -->"
"""What is below it on an English page is not translated."""


def english(page: Path) -> Path:
    return page.with_name(page.name.replace(".zh.", "."))


def read(page: Path) -> str:
    return CONTENTS.sub("", page.read_text(encoding="utf-8").partition(END)[0])


def prose(page: Path) -> str:
    return BLOCK.sub("", read(page))


def shape(line: str) -> str:
    """What a line begins with: the level of a heading, a row and its cells, an item, a number, or nothing."""
    if line.startswith("|"):
        return f"row of {line.count('|')}"
    found = re.match(r"#+ |- |\d+\. ", line.lstrip())
    return found[0] if found else ""


def target(link: str) -> str:
    """The page that a link leads to; anchors are made of headings, which are translated."""
    return link.partition("#")[0].replace(".zh.md", ".md")


def counted(pattern: str, page: Path) -> Counter[str]:
    own = english(page).name
    return Counter(target(each) or own for each in re.findall(pattern, prose(page)))


def test_there_are_pages() -> None:
    assert {page.name for page in PAGES} >= {"README.zh.md", "install.zh.md", "migrate.zh.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_headings_rows_items_links_and_names_are_those_of_the_english_page(page: Path) -> None:
    original = english(page)
    assert BLOCK.findall(read(page)) == BLOCK.findall(read(original))
    ours, theirs = ([*filter(None, map(shape, prose(each).splitlines()))] for each in (page, original))
    assert ours == theirs
    for pattern in (r"\]\(([^)\s]+)\)", r"`([^`\n]+)`"):
        assert counted(pattern, page) == counted(pattern, original)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_chinese_page_is_in_chinese(page: Path) -> None:
    lines = prose(page).splitlines()
    long = [line for line in lines if len(re.sub(r"`[^`]*`|\]\([^)]*\)|[^A-Za-z]", "", line)) > 60]
    chinese = [line for line in lines if re.search(r"[\u4e00-\u9fff]", line)]
    assert chinese
    assert [line for line in long if line not in chinese] == []
