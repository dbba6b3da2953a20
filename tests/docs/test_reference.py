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

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]+)?\)")


def anchors(page: str) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), target, anchor


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


@pytest.mark.parametrize(("page", "target", "anchor"), sorted(links()))
def test_every_link_leads_somewhere(page: str, target: str, anchor: str) -> None:
    path = (ROOT / page).parent / target if target else ROOT / page

    assert path.exists()
    if anchor:
        assert anchor.removeprefix("#") in anchors(path.read_text(encoding="utf-8"))


def test_every_command_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", text("Makefile"), flags=re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z0-9]+)", page.read_text(encoding="utf-8"))}

    assert named <= targets
