"""Composition root of the device plugin."""

import sys
from collections.abc import Sequence
from typing import Final

from deviceplugin import ports
from deviceplugin.settings import Settings
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.runtime import logs, options, process
from gpushare.runtime.clock import SystemClock

_CHECK: Final = "--check"
_PUBLISH_FIRST_S: Final = 0.7
"""How long the first registration waits for the inventory to be on the Node: all in all it should come in a second."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plugin, or with --check ask for one: 0 after a signal or a good check, 1 if a part failed, else 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        flags = [argument for argument in arguments if argument != _CHECK]
        settings = options.load(Settings, flags, prog=names.PLUGIN)
        if _CHECK not in arguments:
            return _run(settings)
    except SettingsError as error:
        print(f"{names.PLUGIN}: {error}", file=sys.stderr)
        return 2
    if problem := ports.problem(settings.probe_port):
        print(problem, file=sys.stderr)
    return int(bool(problem))


def _run(settings: Settings) -> int:
    if not settings.node_name:
        raise SettingsError(
            "the node's name is missing: set --node-name or GPUSHARE_NODE_NAME; in a pod take it from spec.nodeName"
        )
    clock = SystemClock()
    publish_until = clock.monotonic() + _PUBLISH_FIRST_S
    logs.configure(level=settings.log_level)
    # Late: a check needs none of this.
    from deviceplugin import parts
    from gpushare.kube import client

    return process.run(parts.of(settings, client.connect(settings.kubeconfig), clock, publish_until=publish_until))
