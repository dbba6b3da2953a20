"""An administrator who types what a page of the documents says, word for word."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster import installation
from testing.pages import steps
from tests.e2e.system import System


@dataclass
class Administrator:
    """Follows the steps of one title on a page."""

    system: System
    page: str
    title: str
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further ones that the page names."""
    followed: set[str] = field(default_factory=set)

    def follows(self, step: str, node: str = "", leaving_out: str = "\n") -> str:
        """Type all commands under a heading but those that begin so; what they print."""
        self.followed.add(step)
        blocks = [block.splitlines() for block in steps(self.page, self.title)[step]]
        kept = ["\n".join(line for line in lines if not line.startswith(leaving_out)) for lines in blocks]
        return "".join(self._types(block, node) for block in kept)

    def followed_everything(self) -> bool:
        """Whether no step of the title was left out."""
        return self.followed == set(steps(self.page, self.title))

    def _types(self, commands: str, node: str) -> str:
        own = self.directory / "bin"
        programs = f"{own}:{self.system.cluster.program('kubectl').parent}:{Path(sys.executable).parent}:{os.defpath}"
        [simulated] = installation.bases(self.system.cluster)
        environment = {
            "PATH": programs,
            "HOME": str(self.directory),
            "KUBECONFIG": str(self.system.cluster.kubeconfig),
            "OVERLAY": str(self.system.cluster.workdir / "kustomization"),
            "PRODUCTION": str(simulated.with_name(simulated.name.replace("simulated", "production"))),
            "OLD": str(self.directory),
            "NODE": node,
            **self.variables,
        }
        argv = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(
            argv, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout
