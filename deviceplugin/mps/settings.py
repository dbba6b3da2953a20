"""What an administrator can set of the MPS daemon."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.runtime import options
from gpushare.runtime.options import option

DIRECTORY: Final = Path("/run/gpushare/mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Run NVIDIA's MPS control daemon, for the limit mps."""

    mps_dir: Path = option(
        DIRECTORY, "directory of the daemon's pipes; the same on the node, here and in containers", parse=Path
    )
    log_level: str = option(
        "info", "debug, info, warning or error", parse=options.choice("debug", "info", "warning", "error")
    )
