"""Every fenced block of the documents is right by its form: commands can be typed, objects have Kubernetes' fields.

Output is checked by the test of its page. A block that cannot be checked has a line above it that says so:
`<!-- not run: REASON -->`.
"""

import argparse
import ast
import contextlib
import io
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import helm_python
import kubernetes.client
import pytest
import yaml

from gpushare.errors import SettingsError
from gpushare_cli.__main__ import command_line
from release.pages import chart
from testing.manifests import helm, helm_cli
from testing.pages import ROOT, Block, fenced

PAGES: Final = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "manifests" / "README.md"]
BLOCKS: Final = [
    block
    for page in sorted(PAGES)
    # Blocks of Chinese pages are those of the English ones.
    if not page.name.endswith(".zh.md") and page.parent.name != "reference"
    for block in fenced(str(page.relative_to(ROOT)))
]
TYPED: Final = re.compile("(ACK|Aliyun|Finish|Go back|Helm|nano-gpu|Prepare|Real GPUs|Remove): ")
"""Headings of the steps whose `sh` blocks an administrator of the end-to-end tests types on a real cluster."""
CHECKED: Final = ("console", "python", "sh", "yaml")
OF_OTHERS: Final = (
    ("docs/jupyterhub.md", "  profileList:"),
    ("docs/monitoring.md", "scrape_configs:"),
    ("docs/neighbours.md", "spawnerFormDefaults"),
)
"""YAML that is neither an object nor part of one: settings of other programs."""
KUSTOMIZATION: Final = {"bases", "components", "images", "patches", "resources"} | {
    "patchesJson6902",
    "patchesStrategicMerge",
}
OVERLAY: Final = ROOT / "manifests" / "overlays" / "production"
VALUES: Final = {value.path.partition(".")[0] for value in chart.values()}
FRAGMENTS: Final = ("V1Pod", "V1PodSpec", "V1Container", "V1ObjectMeta")
"""Of which a part may be shown, without what is around it."""


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and not block.mark]


def test_every_block_is_in_a_language_that_is_checked_or_says_why_not() -> None:
    shown = {"mermaid", "promql", "text"}  # pictures, and what tests of single pages compare
    assert [
        str(each) for each in BLOCKS if each not in of(*CHECKED) and not each.mark and each.language not in shown
    ] == []


_EVERY: Final = {"--namespace", "-n", "--context", "--kubeconfig"}
_CHOOSE: Final = {"--selector", "-l", "--field-selector", "--all-namespaces", "-A"}
_FILES: Final = {"--filename", "-f", "-k"}
_DELETE: Final = {*_CHOOSE, *_FILES, "--ignore-not-found", "--all", "--wait", "--timeout"}
KUBECTL: Final[Mapping[str, set[str]]] = {
    "config": {"--raw", "--output", "-o", "--minify"},
    "annotate": {*_CHOOSE, "--all", "--overwrite"},
    "api-resources": {"--verbs", "-o"},
    "apply": {*_FILES, "--server-side"},
    "create": {*_FILES, "--dry-run", "--output", "-o", "--image", "--clusterrole", "--serviceaccount", "--from-file"},
    "delete": _DELETE,
    "describe": _CHOOSE,
    "drain": {"--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector", "--timeout", "--force"},
    "exec": {"-c", "--"},
    "get": {*_CHOOSE, *_FILES, "--output", "-o", "--watch", "--show-labels", "--no-headers", "--ignore-not-found"},
    "kustomize": set(),
    "label": {*_CHOOSE, "--all", "--overwrite"},
    "logs": {*_CHOOSE, "-c", "--previous"},
    "patch": {"--type", "--patch", "-p", "--subresource"},
    "port-forward": set(),
    "rollout": {"--timeout"},
    "scale": {"--replicas"},
    "taint": {"--overwrite"},
    "uncordon": _CHOOSE,
    "wait": {*_CHOOSE, *_FILES, "--for", "--all", "--timeout"},
}
"""Verbs of kubectl that the documents use, and their flags."""
BUILTINS: Final = {"cd", "echo", "export", "set", "umask", "done"}
"""Of the shell; other programs without a parser here are those that every machine has."""
PROGRAMS: Final = {
    "apt-get": {"install", "remove", "update"},
    "dnf": {"reinstall"},
    "ctr": {"images"},
    "docker": {"build", "push", "save", "pull", "tag"},
    "kind": {"create", "load"},
    "dpkg": {"--verify"},
    "nvidia-ctk": {"runtime", "cdi"},
    "nvidia-smi": {"-q", "-L"},
    "pip": {"install"},
    "oc": {"adm", "annotate", "apply", "create", "get", "label", "new-build", "patch", "start-build"},
    "python3": {"-m", "-c"},
    "skopeo": {"copy"},
    "systemctl": {"restart", "daemon-reload", "status"},
}
"""Programs that no test of this project has, with their subcommands."""


def simple_commands(block: Block) -> Iterator[list[str]]:
    """Each simple command of a block as its words; a console's output is left out."""
    for line in re.sub(r" *\\\n *", " ", block.text).splitlines():
        if block.language != "console":
            yield from _simple(line)
        elif re.match(r"[$#] ", line):
            yield from _simple(line[2:])


def _simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in lexer:
        if word and set(word) <= set("|&;"):
            yield from ([words] if words else [])
            words, redirected = [], False
        elif word and set(word) <= set("<>"):
            redirected = True
        elif redirected:
            redirected = False
        else:
            words.append(word)
    yield from ([words] if words else [])


def fault(words: list[str]) -> str:
    """What is wrong with a command; empty if nothing is."""
    while words and re.match(r"[A-Za-z_]+=", words[0]):
        words = words[1:]
    if not words:
        return ""
    program, *rest = words
    program = program.rpartition("/")[2]
    if program == "kubectl" and rest[:2] == ["inspect", "gpushare"]:
        program, rest = "gpushare", ["inspect", *rest[2:]]
    if program in PARSERS:
        return PARSERS[program](rest)
    if program in PROGRAMS:
        rest = rest[2:] if rest[0] in {"-n", "--namespace"} else rest
        return "" if rest[0] in PROGRAMS[program] else f"{program} {rest[0]} is not known here"
    return "" if program in BUILTINS or shutil.which(program) else f"{program} is not known here"


def _of_make(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    missing = [word for word in words if "=" not in word and f"\n{word}:" not in makefile]
    return f"make has no {missing}" if missing else ""


def _of_kubectl(words: list[str]) -> str:
    while words and words[0] in {"-n", "--namespace"}:
        words = words[2:]
    verb = words[0] if words else ""
    if verb not in KUBECTL:
        return f"kubectl {verb} is not known here"
    known = KUBECTL[verb] | _EVERY
    before = words[: words.index("--")] if "--" in words else words
    flags = {word.partition("=")[0] for word in before if re.match(r"--?[a-z]", word)}
    return f"kubectl {verb} has no {sorted(flags - known)}" if flags - known else ""


def _refused(parse: Callable[[], argparse.Namespace]) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse()
    except SystemExit as ended:
        return said.getvalue() if ended.code else ""
    except SettingsError as error:  # a file that a former command of the block has written
        return "" if isinstance(error.__cause__, FileNotFoundError) else str(error)
    return ""


PARSERS: Final[Mapping[str, Callable[[list[str]], str]]] = {
    "gpushare": lambda words: _refused(lambda: command_line().parse_args(words)),
    "helm": lambda words: _refused(lambda: helm_cli.parser().parse_args(words)),
    "kubectl": _of_kubectl,
    "make": _of_make,
}
"""Programs whose arguments are understood here."""


@pytest.mark.parametrize("block", [each for each in of("console", "sh") if not TYPED.match(each.heading)], ids=str)
def test_every_command_can_be_typed(block: Block) -> None:
    typed = list(simple_commands(block))
    assert typed
    assert [said for words in typed if (said := fault(words))] == []


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_every_shell_block_is_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


AMOUNTS: Final = {"limits", "requests", "hard", "default", "defaultRequest", "max", "min"}
"""Fields with quantities, which may be written as numbers; the client's models say strings."""
NOT_IN_MODELS: Final = (".config.k8s.io", "scheduling.k8s.io")
"""Ends of Kubernetes' groups that are for files of its programs, or newer than the client."""
TYPES: Final[Mapping[str, tuple[type, str]]] = {
    **{"str": (str, "a string"), "int": (int, "a number"), "bool": (bool, "true or false")},
    **{"list": (list, "a list"), "dict": (dict, "an object")},
}
"""What a type of the models is in Python, and what it is called."""
_GROUP: Final = re.compile(r"^(?:.*/)?v(\d)((?:alpha|beta)\d)?$")


def model_of(document: dict[str, Any]) -> str:
    """The client's name for an object's kind, or an empty string if the client has none."""
    found = _GROUP.match(str(document.get("apiVersion", "")))
    name = f"V{found[1]}{(found[2] or '').capitalize()}{document.get('kind', '')}" if found else ""
    return name if hasattr(kubernetes.client, name or "-") else ""


def is_own(document: dict[str, Any]) -> bool:
    """Whether an object says that it is of one of Kubernetes' own groups."""
    group = str(document.get("apiVersion", "-/")).rpartition("/")[0]
    is_known = "." not in group or (group.endswith(".k8s.io") and not group.endswith(NOT_IN_MODELS))
    return "apiVersion" in document and is_known


def unknown(value: Any, model: str, path: str = "") -> Iterator[str]:
    """Paths of the fields that the API does not have, or that have another type.

    Args:
        value: as read from YAML.
        model: a type as the client writes it, such as `V1PodSpec`, `List[V1Container]` or `str`.
        path: of the value.
    """
    of_list, of_dict = re.fullmatch(r"List\[(.+)\]", model), re.fullmatch(r"Dict\[str, (.+)\]", model)
    cls: Any = getattr(kubernetes.client, model, None)
    is_object = hasattr(cls, "attribute_map")
    expected, called = TYPES.get("list" if of_list else "dict" if of_dict or is_object else model, (None, ""))
    if expected and type(value) is not expected:
        yield f"{path}: {called} is expected"
    elif of_list:
        for i, each in enumerate(value):
            yield from unknown(each, of_list[1], f"{path}[{i}]")
    elif of_dict:
        for key, each in value.items():
            is_amount = path.rpartition(".")[2] in AMOUNTS and isinstance(each, int)
            yield from () if is_amount else unknown(each, of_dict[1], f"{path}.{key}")
    elif is_object:
        types = {written: cls.openapi_types[name] for name, written in cls.attribute_map.items()}
        for key, each in value.items():
            known = key in types
            yield from unknown(each, types[key], f"{path}.{key}") if known else [f"{path}.{key}: no such field"]


def faults(document: dict[str, Any]) -> list[str]:
    """Of an object of Kubernetes, or of a part of one."""
    if document.get("kind") == "Kustomization" or {*document} <= KUSTOMIZATION:
        paths = [path for key in ("bases", "components", "resources") for path in document.get(key, ())]
        return [f"{path}: no such directory" for path in paths if not (OVERLAY / path).exists()]
    if (model := model_of(document)) or is_own(document):
        if not model:
            return [f".kind: Kubernetes has no {document.get('kind')} in {document['apiVersion']}"]
        return list(unknown(document, model))
    if "apiVersion" in document:
        return [] if document.get("kind") else ["an object without a kind"]
    if {*document} <= VALUES:
        try:
            helm.objects(**document)
        except helm_python.HelmError as error:
            return [str(error)]
        return []
    found = ([*unknown(document, part)] for part in FRAGMENTS)
    return min(found, key=lambda said: sum(f".{key}: no such field" in said for key in document))


def is_of_others(block: Block) -> bool:
    return any(page == block.page and piece in block.text for page, piece in OF_OTHERS)


@pytest.mark.parametrize("block", [each for each in of("yaml") if not is_of_others(each)], ids=str)
def test_every_object_has_the_fields_of_kubernetes(block: Block) -> None:
    documents = list(yaml.safe_load_all(block.text))
    assert documents
    assert [fault for document in documents for fault in faults(document)] == []


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_every_piece_of_python_is_python(block: Block) -> None:
    assert ast.parse(block.text).body


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("apiVersion: v1\nkind: ConfigMap\ndata: {a: 1}", [".data.a: a string is expected"]),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: {}}", [".spec.containers: a list is expected"]),
        ("apiVersion: v1\nkind: Pod\nspec: {priority: 1q}", [".spec.priority: a number is expected"]),
        ("apiVersion: v1\nkind: Pod\nspec: {hostPID: 1}", [".spec.hostPID: true or false is expected"]),
        ("apiVersion: v1\nkind: Pod\nmetadata: [a]", [".metadata: an object is expected"]),
        ("apiVersion: example.com/v1\nspec: {}", ["an object without a kind"]),
        ("apiVersion: apps/v1\nkind: Deploymnt", [".kind: Kubernetes has no Deploymnt in apps/v1"]),
        ("components: [../../usages]", ["../../usages: no such directory"]),
        ("image: {registri: a}", ["gpushare:\n- at '/image': additional properties 'registri' not allowed\n"]),
        ("tolerations: [{key: a, operators: Exists}]", [".tolerations[0].operators: no such field"]),
    ],
)
def test_a_wrong_object_is_noticed(written: str, expected: list[str]) -> None:
    assert faults(yaml.safe_load(written)) == expected


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("kubectl labels node a b=c", "kubectl labels is not known here"),
        ("kubectl get pods --namespaces a", "kubectl get has no ['--namespaces']"),
        ("echo a && gpushare explains pod", "invalid choice: 'explains'"),
        ("make demos", "make has no ['demos']"),
        ("oc -n a start-bild gpushare", "oc start-bild is not known here"),
        ("KUBECONFIG=x kubectl -n a get pods > b | grep c", ""),
    ],
)
def test_a_wrong_command_is_noticed(typed: str, said: str) -> None:
    block = Block("page.md", 1, "", "sh", typed, "")
    found = " ".join(fault(words) for words in simple_commands(block)).strip()
    assert said in found
    assert bool(said) == bool(found)
