"""The project uses the words of its field, each for one thing: docs/architecture.md has the table of terms."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("gpushare", "certs", "controller", "deviceplugin", "gpushare_cli", "webhook")
PACKAGES: Final = (*PRODUCT, "localcluster", "testing", "bench", "release", "tests")
OTHER_WORDS: Final = {
    "books": "ledger",
    "dialect": "resource configuration",
    "holdings": "held",
    "keeper": "manager",
    "latecomer": "bypassed pod",
    "stray": "bypassed pod",
    "stranger": "foreign pod",
    "wish": "request, options, or selector",
    "anew": "again",
    "clear away": "delete",
    "cleared away": "delete",
    "dear": "expensive",
    "heed": "obey",
    "mend": "fix",
    "nobody": "no one, none, or the passive",
    "whoever": "anyone who, or who it is",
}
"""Words that were used for things that have a name in the field, or at which readers stumble: what to say instead."""
_FORMS: Final = "|".join(OTHER_WORDS)
BANNED: Final = re.compile(rf"(?<![A-Za-z])(?i:{_FORMS})(?:e?s|ed|ing)?(?![a-z])")


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("Makefile", "Dockerfile", "pyproject.toml"))
    yield from (path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")
    yield from ROOT.glob("docs/**/*.md")
    yield from ROOT.glob("manifests/**/*.yaml")
    yield from ROOT.glob("manifests/**/*.md")
    for package in PACKAGES:
        yield from (path for path in (ROOT / package).rglob("*.py") if path != Path(__file__))


def test_words_of_the_field_are_used_in_texts_and_names_of_files() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in BANNED.finditer(line)
    ]
    found += [str(path.relative_to(ROOT)) for path in files() if BANNED.search(path.stem)]
    assert not found, f"say it otherwise: {OTHER_WORDS}"


def test_a_word_is_found_in_prose_and_in_names() -> None:
    prose, code = ["a node's books", "Nobody knows", "what is mended"], ["def add_stray(pod):", "class StrayPods:"]
    assert all(map(BANNED.search, [*prose, *code, "test_nobody_x"]))
    assert not BANNED.search("recommend, amend, endear, keyboard")


def test_the_table_of_terms_names_what_the_code_has() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Terms")[1].split("\n## ")[0]
    code = "\n".join(path.read_text(encoding="utf-8") for name in PRODUCT for path in (ROOT / name).rglob("*.py"))
    classes = {name for row in table.splitlines() for name in re.findall(r"`([A-Z][A-Za-z]+)`", row)}
    assert {name for name in classes if f"class {name}" not in code} <= {"PreStartContainer"}
    paths = [name for row in table.splitlines() for name in re.findall(r"`(\w+/[\w/]+\.py)`", row)]
    assert paths
    assert [name for name in paths if not (ROOT / name).exists()] == []
