"""kubectl as a function."""

import dataclasses
import subprocess
from pathlib import Path

from localcluster import limits, process


@dataclasses.dataclass(frozen=True)
class Kubectl:
    """kubectl for one user of one cluster."""

    program: Path
    kubeconfig: Path
    home: Path
    """Where kubectl keeps what it has learned of the API; another cluster's knowledge would mislead it."""

    def __call__(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as subprocess.run calls it
        check: bool = True,
        timeout_s: float = limits.COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; a failure that is checked carries what kubectl said."""
        done = subprocess.run(
            [str(self.program), f"--kubeconfig={self.kubeconfig}", *arguments],
            check=False,
            # Without input it must not read the terminal's.
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**process.clean_environment(), "HOME": str(self.home)},
        )
        if check and done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise process.ClusterError(f"kubectl {' '.join(arguments)}: exit status {done.returncode}: {said}")
        return done
