"""`python -m certs`: make or fix the webhook's certificates once, and say how they are. Shows no secret."""

import sys
from dataclasses import dataclass

from certs.manager import DAY_S, CertificateManager, Status
from certs.settings import CertSettings
from gpushare.errors import GpuShareError
from gpushare.kube import client
from gpushare.runtime import logs, options
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.options import option


@dataclass(frozen=True, kw_only=True)
class _Settings(CertSettings):
    """Make or fix the webhook's certificates once."""

    kubeconfig: str = option("", "path of a kubeconfig; by default the pod's service account")


def describe(status: Status, left_s: float) -> str:
    state, stamp = status.state, "%Y-%m-%dT%H:%M:%SZ"
    leaf = ca = "none"
    if state.leaf.expires:
        leaf = f"expires in {left_s / DAY_S:.1f} days ({state.leaf.expires:{stamp}})"
    if state.ca.expires:
        ca = f"expires at {state.ca.expires:{stamp}}"
    carries = "carry the CA" if status.in_configurations else "do not carry the CA yet"
    return f"leaf: {leaf}\nCA: {ca}\nphase: {state.phase.value}\nwebhook configurations: {carries}"


def main() -> int:
    """Entry point. 0 if the certificates can be served and verified."""
    logs.configure()
    try:
        settings = options.load(_Settings, sys.argv[1:], prog="certs")
        manager = CertificateManager(api=client.connect(settings.kubeconfig), clock=SystemClock(), settings=settings)
        status = manager.ensure_once()
    except (GpuShareError, OSError) as error:
        print(f"certs: {error}", file=sys.stderr)
        return 1
    print(describe(status, manager.leaf_left_s()))
    return 0 if status.in_configurations and status.state.leaf.expires else 1


if __name__ == "__main__":
    sys.exit(main())
