"""Pages, samples and helps that name the default policy name the one that is."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.settings import Settings
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare_cli.__main__ import command_line
from gpushare_cli.simulate.arguments import Options

ROOT = Path(__file__).parents[2]
NAMES = "|".join(policy.value for policy in Policy)
SAYS = re.compile(
    rf"`?\b({NAMES})\b`?, the default\b|\bdefault policy,? (?:is )?`?({NAMES})\b|\(default: ({NAMES})\)"
    rf"|`GPUSHARE_GPU_POLICY` \| `({NAMES})`|instead of the (fullest)"
)


def said() -> Iterator[tuple[str, str]]:
    """Where something is called the default, and what."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/*.*")]:
        if path.suffix in {".md", ".yaml"} and path.name != "CHANGELOG.md":
            for found in SAYS.finditer(path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), next(filter(None, found.groups()))


@pytest.mark.parametrize(("path", "policy"), sorted(set(said())))
def test_the_default_that_is_named_is_the_one_that_is(path: str, policy: str) -> None:
    assert (path, policy) == (path, DEFAULT_POLICY.value)


def test_programs_have_the_same_default() -> None:
    assert Settings.__dataclass_fields__["gpu_policy"].default is DEFAULT_POLICY
    assert Options(files=()).policies == (DEFAULT_POLICY.value,)
    assert command_line().parse_args(["simulate", "-f", "-"]).policies == (DEFAULT_POLICY.value,)
