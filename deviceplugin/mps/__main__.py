"""Composition root of the supervisor of the MPS daemon."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.mps.daemon import DIRECTORY, MpsControl, Supervisor
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.runtime import logs, options, process
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Run NVIDIA's MPS control daemon, for the limit mps."""

    mps_dir: Path = option(
        DIRECTORY, "directory of the daemon's pipes; the same on the node, here and in containers", parse=Path
    )
    log_level: str = options.log_level()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until a signal: 0 after one, 1 if a part failed, 2 if it was started wrongly."""
    try:
        settings = options.load(Settings, sys.argv[1:] if argv is None else argv, prog=names.MPS)
    except SettingsError as error:
        sys.stderr.write(f"{names.MPS}: {error}\n")
        return 2
    logs.configure(level=settings.log_level)
    supervisor = Supervisor(control=MpsControl(settings.mps_dir), clock=SystemClock())
    return process.run({"daemon": supervisor.run, "socket": supervisor.serve}, grace_s=15.0)


if __name__ == "__main__":
    sys.exit(main())
