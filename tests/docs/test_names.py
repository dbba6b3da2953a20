"""Names that pages use exist, and names that the code has are on the pages that explain them."""

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pytest

from controller.settings import Settings as ControllerSettings
from deviceplugin import decide
from deviceplugin.settings import Settings as PluginSettings
from gpushare import names
from gpushare.model.ledger import RefusalReason
from gpushare.runtime import options
from gpushare_cli.doctor.command import CHECKS
from release.pages import chart, generate, metrics
from testing import pages
from testing.pages import ROOT, section, text
from webhook.settings import Settings as WebhookSettings

EVERY: Final = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CURRENT: Final = [page for page in EVERY if page != "CHANGELOG.md"]
GUIDES: Final = ["README.md", "manifests/README.md", *(page for page in EVERY if re.fullmatch(r"docs/[^/]+", page))]
COVERED: Final = re.compile(r"`([a-z_/0-9]+\.py)::(test_\w+)`")
OF_OTHERS: Final = {
    *("--config", "--root-dir", "--policy-config-file", "--enable-admission-plugins", "--kube-scheduler-arg"),
    *("--force", "--grace-period", "--server-side", "--type", "--wait", "--runtime", "--default-runtime"),
    *("--reset-then-reuse-values", "--reuse-values", "--take-ownership"),
    *("--enable-provisioning-requests", "--expendable-pods-priority-cutoff", "--scale-down-unneeded-time"),
    *("--extender-ca", "--extender-client-cert", "--extender-client-key"),
    *("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--tensor-parallel-size"),
    *("--feature-gates", "--gang-scheduler-name"),
}
"""Flags of other programs that pages name: Kubernetes' own, Helm, Cluster Autoscaler, vLLM and training operator."""
HELM: Final = section("docs/install.md", "## Install with Helm").split("\n### What is often set\n")[1]


def sources(*folders: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")]


def found(pattern: str, on: Iterable[str], flags: re.RegexFlag = re.NOFLAG) -> set[Any]:
    return {name for page in on for name in re.findall(pattern, text(page), flags)}


def flags_named() -> set[str]:
    code = {span for span in found(r"`([^`\n]+)`", GUIDES) if "kubectl" not in span}
    return {flag for span in code for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)}


def flags_known() -> set[str]:
    settings = (WebhookSettings, ControllerSettings, PluginSettings)
    own = {options.flag_names(field.name)[0] for cls in settings for field in dataclasses.fields(cls)}
    own |= found(r'add_argument\("(--[a-z-]+)"', sources("bench", "release")) | found(
        r"`(--[a-z-]+)", ["docs/reference/cli.md"]
    )
    return own | OF_OTHERS | {"--check"}


def metrics_named() -> set[str]:
    exist = metrics.families()
    named = found(r"\bgpushare_(?!cli\b)[a-z_]+", CURRENT)
    return {name if name in exist else re.sub(r"_(total|bucket|sum|count)$", "", name) for name in named}


def values_set() -> Iterator[str]:
    for step, blocks in pages.steps(pages.QUICK_START, "Install").items():
        typed = (each for block in blocks for each in pages.commands(block))
        [words] = [shlex.split(each) for each in typed if each.startswith("helm install gpushare ")]
        given = [words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--set"]
        assert given, step
        yield from given


def is_there(page: str, anchor: str) -> bool:
    """Whether a page exists, and has a heading with this anchor."""
    if not (ROOT / page).is_file():
        return False
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return not anchor or anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


VALUES: Final = {value.path for value in chart.values()}
SETTINGS: Final = {options.flag_names(name)[i] for name in PluginSettings.__dataclass_fields__ for i in (0, 1)}
COVERS: Final = {each for page in EVERY for each in COVERED.findall(text(page))}
FILES: Final = {path.rstrip("/.") for path in found(r"(?<![\w/])manifests/[\w./-]+(?![\w./-])(?<!\.py)", GUIDES)} - {
    "manifests/overlays/OVERLAY"
}
PRODUCT: Final = ("gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli")
PAGES_NAMED: Final = found(r"\b(docs/[\w./-]+\.md)(?:#([\w-]+))?", sources(*PRODUCT))
ALERTS: Final = found(r"- alert: (\w+)", ["manifests/chart/files/rules.yaml"])
NAMED: Final[Mapping[str, tuple[set[Any], Callable[[], set[Any]]]]] = {
    "flag": (flags_named(), flags_known),
    "flag of the plugin": (found(r"`(--[\w-]+|GPUSHARE_\w+)`", ["docs/limits.md"]), lambda: SETTINGS),
    "file of the manifests": (FILES, lambda: {path for path in FILES if (ROOT / path).exists()}),
    "metric": (metrics_named(), lambda: {*metrics.families()}),
    "alert": (found(r"`(GpuShare\w+)`", ["docs/monitoring.md"]), lambda: ALERTS),
    "command of make": (
        found(r"`make ([a-z0-9-]+)", EVERY),
        lambda: found(r"^([a-z0-9-]+):", ["Makefile"], re.MULTILINE),
    ),
    "value of the chart": (
        {*re.findall(r"`([a-z][A-Za-z]+(?:\.[A-Za-z]+)+|watchdog|kubeVersion)[:`]", HELM)},
        lambda: VALUES | {each.path for component in chart.SETTINGS for each in chart.settings(component)},
    ),
    "value that is set": ({*values_set()}, lambda: VALUES),
    "check of the doctor": (
        {*re.findall(r"^\| `([a-z-]+)` \|", section("docs/gpu-operator.md", "## What to check"), re.MULTILINE)},
        lambda: {each.id for each in CHECKS},
    ),
    "page that a program names": (PAGES_NAMED, lambda: {name for name in PAGES_NAMED if is_there(*name)}),
    "test": (COVERS, lambda: {(path, name) for path, name in COVERS if f"\ndef {name}(" in text(f"tests/{path}")}),
}


@pytest.mark.parametrize("kind", NAMED)
def test_every_name_in_the_pages_exists(kind: str) -> None:
    named, known = NAMED[kind]
    assert named
    assert named - known() == set()


def test_every_complaint_has_a_test_or_says_why_there_is_none() -> None:
    lines = [line for line in text("docs/contributing/complaints.md").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in rows if "Complaint" not in row[-3]]
    assert [int(first) for first, *_ in rows if first.isdigit()] == list(range(1, 31))
    covers = {first: last for first, *_, last in rows if not last.startswith("not covered: ")}
    assert [first for first, last in covers.items() if {*re.sub(COVERED, "-", last).split("<br>")} != {"-"}] == []


def test_the_age_of_every_watch_is_a_metric_and_their_number_is_on_the_page() -> None:
    watches = found(r"self\.(\w+) = (?:watches\.\w+|Reflector)\(", ["controller/leadership.py"])
    assert {name for name in watches if f".{name}.stale_for" not in text("controller/main.py")} == set()
    assert len(watches) == 5
    assert "each of five watches" in text("docs/operate.md")


def events() -> set[str]:
    """Reasons of all of them."""
    return found(r'^REASON\w*: Final = "(\w+)"$', sources("controller", "deviceplugin"), re.MULTILINE)


PHRASES: Final = {
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
VARIABLES: Final = [value for name, value in vars(names).items() if name.startswith("ENV_")]
KEPT_AWAY: Final = section("docs/reference/cli.md", "### What keeps pods away")
TROUBLESHOOT, SECURITY = (text(f"docs/{name}.md") for name in ("troubleshoot", "security"))
TOLD: Final[list[tuple[str, Iterable[str], tuple[str, ...]]]] = [
    ("| `{}` |", [each.value for each in decide.Reason], (TROUBLESHOOT,)),
    ("{}", PHRASES.values(), (TROUBLESHOOT,)),
    ("\n| `{}` |", [each.value for each in RefusalReason], (KEPT_AWAY,)),
    ("`{}`", sorted(events()), (TROUBLESHOOT,)),
    ("`{}`", [*names.POLICIES, *names.PLUGIN_RESOURCES], (SECURITY,)),
    ("ValidatingAdmissionPolicy '{}' ... denied request`", names.POLICIES, (TROUBLESHOOT,)),
    (
        "`{}`",
        [*VARIABLES, names.ALIYUN_CONTAINER, names.ALIYUN_POD, names.ALIYUN_DEV],
        (section("docs/request.md", "## What a container gets"),),
    ),
    (
        "{}",
        [names.LABEL_LIMITS, names.ANNOTATION_LIMIT, names.ANNOTATION_FRAMEWORK_VARIABLES, names.MPS],
        (text("docs/limits.md"),),
    ),
    ("With kubeadm these are {} commands.", [str(len(pages.quick_start()))], (text("docs/install.md"),)),
]


@pytest.mark.parametrize(("pattern", "name", "on"), [(one, name, on) for one, many, on in TOLD for name in many])
def test_every_name_of_the_code_is_explained(pattern: str, name: str, on: tuple[str, ...]) -> None:
    assert all(pattern.format(name) in page for page in on)


@pytest.mark.parametrize("reason", RefusalReason)
def test_a_refusal_has_the_words_that_are_explained(reason: RefusalReason) -> None:
    said_by = [ROOT / "gpushare/placement/explain.py", *(ROOT / "gpushare/cluster").glob("*.py")]
    assert any(PHRASES[reason] in source.read_text(encoding="utf-8") for source in said_by)


@pytest.mark.parametrize(
    "field",
    [each for _, cls in generate.COMPONENTS for each in dataclasses.fields(cls) if "help" in each.metadata],
    ids=lambda field: field.name,
)
def test_every_default_is_shown_as_it_is_written(field: dataclasses.Field[Any]) -> None:
    shown = options.written(field.default)
    assert (field.metadata["parse"](shown) == field.default) if shown else not field.default
