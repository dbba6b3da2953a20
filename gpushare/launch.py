"""The installed commands. Each names the extra to install where its libraries are missing.

The four components never import each other, and this module imports none of them until its command runs.
"""

import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable

from gpushare import names

_DISTRIBUTION = "gpushare"


def _run(command: str, module: str, function: str, *, extra: str) -> int:
    # The first process of a container has no default handler: until `main` has its own, SIGTERM would be lost.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    try:
        main: Callable[[], int] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {_DISTRIBUTION, module.partition(".")[0]}:
            raise
        sys.stderr.write(
            f"{command}: the library {error.name} is missing; run: pip install '{_DISTRIBUTION}[{extra}]'\n"
        )
        return 2
    return main()


cli = functools.partial(_run, "gpushare", "gpushare_cli.__main__", "main", extra="cli")
inspect = functools.partial(_run, "kubectl-inspect-gpushare", "gpushare_cli.__main__", "inspect_main", extra="cli")
webhook = functools.partial(_run, names.WEBHOOK, "webhook.main", "main", extra="webhook")
controller = functools.partial(_run, names.CONTROLLER, "controller.main", "main", extra="controller")
device_plugin = functools.partial(_run, names.PLUGIN, "deviceplugin.main", "main", extra="device-plugin")
