"""Commands and files that the pages name exist, and have the flags that are shown."""

import dataclasses
import re
from pathlib import Path

import jsonpatch

from controller.settings import Settings as ControllerSettings
from deviceplugin.settings import Settings as PluginSettings
from gpushare import names
from gpushare.runtime import options
from webhook.settings import Settings as WebhookSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "manifests" / "README.md"]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
OF_OTHERS = {
    "--config",
    "--default-runtime",
    "--enable-admission-plugins",
    "--enable-provisioning-requests",
    "--expendable-pods-priority-cutoff",
    "--extender-ca",
    "--extender-client-cert",
    "--extender-client-key",
    "--force",
    "--gpu-memory-utilization",
    "--grace-period",
    "--kube-scheduler-arg",
    "--kv-cache-memory-bytes",
    "--policy-config-file",
    "--root-dir",
    "--runtime",
    "--scale-down-unneeded-time",
    "--reset-then-reuse-values",
    "--reuse-values",
    "--server-side",
    "--take-ownership",
    "--wait",
    "--tensor-parallel-size",
    "--type",
}
"""Flags of other programs that pages name: Kubernetes' own, Cluster Autoscaler, Helm and vLLM."""


def test_every_flag_in_the_text_exists() -> None:
    settings = (WebhookSettings, ControllerSettings, PluginSettings)
    known = {options.flag_names(field.name)[0] for cls in settings for field in dataclasses.fields(cls)} | OF_OTHERS
    known |= {"--check", *re.findall(r"`(--[a-z-]+)", (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"))}
    sources = [
        path.read_text(encoding="utf-8") for name in ("bench", "release") for path in (ROOT / name).rglob("*.py")
    ]
    known |= {flag for source in sources for flag in re.findall(r'add_argument\("(--[a-z-]+)"', source)}
    code = [found for text in TEXTS.values() for found in re.findall(r"`([^`\n]+)`", text) if "kubectl" not in found]
    named = {flag for found in code for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", found)}
    assert named - known == set()


def test_every_file_of_the_manifests_exists() -> None:
    written = re.compile(r"(?<![\w/])manifests/[\w./-]+(?![\w./-])(?<!\.py)")
    named = {(path.rstrip("/."), page) for page, text in TEXTS.items() for path in written.findall(text)}
    assert {path for path, _ in named if not (ROOT / path).exists()} == {"manifests/overlays/OVERLAY"}


def test_the_patch_takes_away_what_the_plugin_wrote_into_the_status_of_a_node() -> None:
    [patch] = re.findall(r"--subresource=status --type=json --patch '(.+)'", TEXTS["docs/operate.md"])
    node = {"status": {"capacity": {"cpu": "4", names.GPU_COUNT: "2", names.GPU_CORE: "200"}}}
    assert jsonpatch.apply_patch(node, patch) == {"status": {"capacity": {"cpu": "4"}}}


def test_what_administrators_write_on_nodes_is_removed_with_everything_else() -> None:
    section = TEXTS["docs/operate.md"].partition("### Remove: what is left on nodes\n")[2].partition("```\n")[0]
    removed = {word[:-1] for word in section.split() if word.endswith("-")}
    assert removed == {
        names.LABEL_SHARES,
        names.LABEL_LIMITS,
        names.LABEL_HAND_OVER,
        names.LABEL_NVIDIA_DEFAULT,
        names.LABEL_OVERSUBSCRIPTION,
        names.ANNOTATION_INVENTORY,
        names.ANNOTATION_CORDON,
        names.ANNOTATION_HELD,
    }
