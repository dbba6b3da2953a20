"""`helm`, as far as the documents use it, through Helm's own library, which comes without the program."""

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import helm_python
import yaml
from helm_python import config as sdk


def main(argv: list[str]) -> int:
    """Run one command."""
    given = parser().parse_args(argv)
    with helm_python.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=given.namespace) as config:
        try:
            _run(config, given)
        except helm_python.HelmError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("install", "upgrade", "rollback", "uninstall"):
        command = commands.add_parser(name, allow_abbrev=False)
        command.add_argument("release")
        command.add_argument("--namespace", default="default")
        command.add_argument("--wait", action="store_true")
        if name in {"install", "upgrade"}:
            command.add_argument("chart")
            command.add_argument("--values")
            command.add_argument("--set", action="append", default=[], dest="changes")
        if name == "install":
            command.add_argument("--create-namespace", action="store_true")
            command.add_argument("--take-ownership", action="store_true")
            command.add_argument("--server-side", choices=("true", "false"), default="true")
    return parser


def _run(config: helm_python.Config, given: argparse.Namespace) -> None:
    wait = "watcher" if given.wait else None
    match given.command:
        case "install":
            # Helm's library takes more options than the methods of its Python module name.
            more = {"take_ownership": given.take_ownership, "server_side_apply": given.server_side == "true"}
            with mock.patch.object(sdk, "_opts", functools.partial(sdk._opts, **more)):
                values, create = _values(given), given.create_namespace
                config.install(given.chart, given.release, values, wait=wait, create_namespace=create)
        case "upgrade":
            config.upgrade(given.chart, given.release, _values(given), wait=wait)
        case "rollback":
            config.rollback(given.release, wait=wait)
        case _:
            config.uninstall(given.release, wait=wait)


def _values(given: argparse.Namespace) -> dict[str, Any]:
    values = helm_python.values_from_yaml(Path(given.values).read_text(encoding="utf-8")) if given.values else {}
    for change in given.changes:
        path, _, value = change.partition("=")
        *parents, key = path.split(".")
        at = values
        for parent in parents:
            at = at.setdefault(parent, {})
        at[key] = yaml.safe_load(value)
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
