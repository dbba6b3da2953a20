"""An administrator who types what a page of the documents says, word for word."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster import installation
from localcluster.cluster import Cluster
from testing.manifests import helm_cli
from testing.pages import steps


def environment(cluster: Cluster, directory: Path, *programs: Path) -> Mapping[str, str]:
    """What the administrator's shell has; programs in `bin` below his home come first."""
    path = [directory / "bin", cluster.program("kubectl").parent, *programs, os.defpath]
    return {"PATH": ":".join(map(str, path)), "HOME": str(directory), "KUBECONFIG": str(cluster.kubeconfig)}


def give_program(directory: Path, name: str, script: str) -> None:
    program = directory / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def give_helm(directory: Path, *more: str) -> None:
    """Helm's own library stands in for the program; `more` arguments follow those that are typed."""
    helm = shlex.join([sys.executable, helm_cli.__file__])
    give_program(directory, "helm", f'exec {helm} "$@" {shlex.join(more)}')


@dataclass
class Administrator:
    """Follows the steps of one title on a page."""

    cluster: Cluster
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
        return self.followed == set(steps(self.page, self.title))

    def _types(self, commands: str, node: str) -> str:
        [simulated] = installation.bases(self.cluster.version)
        variables = {
            **environment(self.cluster, self.directory, Path(sys.executable).parent),
            "OVERLAY": str(self.cluster.workdir / "kustomization"),
            "PRODUCTION": str(simulated.with_name(simulated.name.replace("simulated", "production"))),
            "OLD": str(self.directory),
            "NODE": node,
            **self.variables,
        }
        argv = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(
            argv, cwd=self.directory, env=variables, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout
