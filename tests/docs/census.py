"""Every fenced block of the documents, and what makes sure that it is right: exactly one kind of check for each.

A block that cannot be checked has a line above it that says so: `<!-- not run: REASON -->`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs import generate

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = {"docs/architecture-imports.md", *(f"docs/reference/{name}" for name in generate.pages())}
"""Pages that are compared with what the code makes, as a whole."""
TYPED: Final[Mapping[tuple[str, str], str]] = {
    ("docs/install.md", "Helm"): "tests/e2e/test_lifecycle.py",
    ("docs/migrate.md", "Aliyun"): "tests/e2e/test_migrate.py",
    ("docs/migrate.md", "ACK"): "tests/e2e/test_migrate.py",
    ("docs/migrate.md", "nano-gpu"): "tests/e2e/test_migrate.py",
    ("docs/operate.md", "Remove"): "tests/e2e/test_lifecycle.py",
    ("docs/operate.md", "Real GPUs"): "tests/e2e/test_lifecycle.py",
    ("docs/operate.md", "Go back"): "tests/e2e/test_lifecycle.py",
    ("docs/quickstart.md", "Prepare"): "tests/e2e/first_gpu.py",
    ("docs/quickstart.md", "Finish"): "tests/e2e/first_gpu.py",
}
"""Page and title of the steps whose `sh` blocks an administrator types on a real cluster, and where that is done."""
OWN: Final[Mapping[tuple[str, str], str]] = {
    ("README.md", "46/120 (38%)"): "tests/docs/test_shown_output.py",
    ("docs/autoscalers.md", "suffices as a sum"): "tests/docs/test_autoscalers_page.py",
    ("docs/jupyterhub.md", "needs 64 GiB on one GPU"): "tests/docs/test_shown_output.py",
    ("docs/quickstart.md", "3/60 (5%)"): "tests/docs/test_shown_output.py",
    ("docs/gpu-operator.md", "kind: DaemonSet"): "tests/docs/test_gpu_operator_page.py",
    ("docs/gpu-operator.md", "patchesJson6902:"): "tests/docs/test_gpu_operator_page.py",
    ("docs/install.md", "imagePullSecrets:"): "tests/docs/test_chart_page.py",
    ("docs/inference.md", "kind: ConfigMap"): "tests/docs/test_inference_page.py",
    ("docs/inference.md", "{app: embed, models: shared}"): "tests/docs/test_inference_page.py",
    ("docs/jupyterhub.md", "c.KubeSpawner.profile_list"): "tests/notebooks.py",
    ("docs/jupyterhub.md", "  profileList:"): "tests/notebooks.py",
    ("docs/jupyterhub.md", "kind: KubeSchedulerConfiguration"): "tests/notebooks.py",
    ("docs/monitoring.md", "scrape_configs:"): "tests/e2e/scraper.py",
    ("docs/monitoring.md", "gpushare.rules.yaml"): "tests/manifests/test_monitoring.py",
    ("docs/monitoring.md", "DCGM_FI_DEV_GPU_UTIL"): "tests/manifests/test_monitoring.py",
    ("docs/monitoring.md", "DCGM_FI_DEV_FB_USED"): "tests/manifests/test_monitoring.py",
    ("docs/monitoring.md", "kube_pod_labels"): "tests/manifests/test_monitoring.py",
    ("docs/neighbours/workflows.md", "spawnerFormDefaults"): "tests/docs/test_neighbours_pages.py",
    ("docs/operate.md", "resources: [namespaces]"): "tests/docs/test_upgrade_page.py",
    ("docs/quota.md", "kind: ResourceQuota"): "tests/docs/test_manifests_in_pages.py",
    ("docs/quota.md", "kind: LimitRange"): "tests/docs/test_manifests_in_pages.py",
}
"""Page and a piece of a block that only this block of the page has, and the test that reads it there."""
KINDS: Final = ("generated", "not run", "typed on a cluster", "by a test of the page", "by its form")
FORMS: Final = ("console", "python", "sh", "yaml")
"""Languages for which `tests/docs/test_blocks.py` checks every block, also where a test of the page claims it."""


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
    """All but the Chinese ones, whose blocks are those of the English ones by a test of theirs."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "manifests" / "README.md"]
    return sorted(page for page in found if not page.name.endswith(".zh.md"))


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


def kinds(block: Block) -> list[str]:
    """Of the checks that claim a block; where it is right, there is one."""
    claims = (
        block.page in GENERATED,
        bool(block.mark),
        block.language == "sh" and (block.page, block.heading.partition(": ")[0]) in TYPED and ": " in block.heading,
        any(block.page == page and piece in block.text for page, piece in OWN),
    )
    found = [kind for kind, claimed in zip(KINDS, claims, strict=False) if claimed]
    return found or (["by its form"] if block.language in FORMS else [])
