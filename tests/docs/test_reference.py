"""The documents say what the code says."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deviceplugin import decision
from gpushare.model.verdict import RefusalReason
from gpushare.runtime import options
from release.pages import generate
from testing.pages import ROOT, text
from tests.docs.test_pains import NAMED, functions

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", list(generate.pages()))
def test_the_reference_pages_are_those_that_the_code_makes(name: str) -> None:
    assert text(f"docs/reference/{name}") == generate.pages()[name], "run `make docs`"


def fields() -> Iterator[dataclasses.Field[Any]]:
    """Of all settings."""
    for _, settings in generate.COMPONENTS:
        yield from (field for field in dataclasses.fields(settings) if "help" in field.metadata)


@pytest.mark.parametrize("field", list(fields()), ids=lambda field: field.name)
def test_every_default_is_shown_as_it_is_written(field: dataclasses.Field[Any]) -> None:
    shown = options.written(field.default)

    if shown:
        assert field.metadata["parse"](shown) == field.default
    else:
        assert not field.default


@pytest.mark.parametrize("reason", [*decision.Reason], ids=lambda reason: reason.value)
def test_every_reason_of_the_plugin_has_its_line_in_the_troubleshooting_page(reason: decision.Reason) -> None:
    assert f"\n| `{reason.value}` |" in text("docs/troubleshoot.md")


PHRASES = {
    RefusalReason.INSUFFICIENT_GPU_MEMORY: "; free per GPU on ",
    RefusalReason.INSUFFICIENT_GPU_COMPUTE: " % of compute",
    RefusalReason.NO_UNTOUCHED_GPU: " whole GPU",
    RefusalReason.NO_MATCHING_GPU: "; GPUs of ",
    RefusalReason.TOO_FEW_GPUS: " GPUs; ",
    RefusalReason.NO_HEALTHY_GPU: " has no healthy GPU (",
    RefusalReason.NO_INVENTORY: " has no GPU inventory",
    RefusalReason.UNIT_MISMATCH: " counts ",
    RefusalReason.OTHER_HAND_OVER: "the pod was created without the RuntimeClass",
    RefusalReason.SEARCH_TOO_LONG: "; no fit on ",
}


@pytest.mark.parametrize("reason", [*RefusalReason], ids=lambda reason: reason.value)
def test_every_refusal_is_explained_in_the_words_that_users_see(reason: RefusalReason) -> None:
    phrase = PHRASES[reason]
    said_by = [ROOT / "gpushare/placement/explain.py", *(ROOT / "gpushare/cluster").glob("*.py")]
    assert any(phrase in source.read_text(encoding="utf-8") for source in said_by)
    assert phrase in text("docs/troubleshoot.md")


def reasons() -> list[str]:
    """Of all Events."""
    sources = [source for package in ("controller", "deviceplugin") for source in (ROOT / package).rglob("*.py")]
    constant = re.compile(r'^REASON\w*: Final = "(\w+)"$', flags=re.MULTILINE)
    return sorted({name for source in sources for name in constant.findall(source.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("reason", reasons())
def test_every_event_is_in_the_operating_and_the_troubleshooting_page(reason: str) -> None:
    assert f"`{reason}`" in text("docs/operate.md")
    assert f"`{reason}`" in text("docs/troubleshoot.md")


def test_every_command_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text("Makefile"), flags=re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text(encoding="utf-8"))}

    assert named <= targets


def test_every_test_that_a_page_names_exists() -> None:
    named = {found for page in PAGES for found in NAMED.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert {(path, name) for path, name in named if name not in functions(path)} == set()
