"""Whether the commands of a block can be typed: each program with its own parser, or with the flags that it has."""

import argparse
import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpushare.errors import SettingsError
from gpushare_cli.__main__ import command_line
from testing.manifests import helm_cli
from testing.pages import Block

ROOT: Final = Path(__file__).parents[2]
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
OF_OTHERS: Final = {
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


def commands(block: Block) -> Iterator[list[str]]:
    """Each simple command of a block as its words; a console's output is left out."""
    text = re.sub(r" *\\\n *", " ", block.text)
    for line in text.splitlines():
        if block.language == "console":
            if not re.match(r"[$#] ", line):
                continue
            typed = line[2:]
        else:
            typed = line
        yield from _simple(typed)


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
    if program in OF_OTHERS:
        rest = rest[2:] if rest[0] in {"-n", "--namespace"} else rest
        return "" if rest[0] in OF_OTHERS[program] else f"{program} {rest[0]} is not known here"
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
