"""What pods without GPUs do to nodes that share. Pure."""

from collections.abc import Iterator
from typing import Final

from gpushare import names
from gpushare_cli.doctor import finding, objects
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import NothingToCheckError, Unread

REQUESTS: Final = "gpushare_extender_requests_total"


def spread(cluster: Cluster) -> Iterator[Finding]:
    """Pods without GPUs are kept off the nodes that share, or placed there where they cost the least."""
    sharing = [node for node in cluster.nodes if node.published is not None]
    open_to_all = [node.name for node in sharing if not node.is_tainted]
    if not open_to_all:
        return
    objects.needs_endpoint(cluster.snapshot.controller_endpoints)
    page = cluster.snapshot.controller_metrics
    if isinstance(page, Unread):
        raise NothingToCheckError("the controller's metrics cannot be read")
    if not objects.counted(page.text, REQUESTS):
        raise NothingToCheckError("no scheduler has asked the controller anything yet")
    # It is asked about GPU pods too, and has no opinion on them; a scheduler that has no others ranks nothing.
    if objects.counted(page.text, REQUESTS, f'verb="{names.OTHERS_VERB}"', 'outcome="scored"'):
        return
    yield finding.note(
        "nodes" if len(open_to_all) > 1 else f"node/{open_to_all[0]}",
        f"{len(open_to_all)} of {len(sharing)} nodes that share also take pods without GPUs, and no scheduler has asked"
        " the controller where these cost the least: by default kube-scheduler spreads them, and GPUs stay free for"
        " want of CPU and memory",
        "have the scheduler that decides about them ask it (gpushare scheduler-config --rank-others), or keep these"
        " nodes for GPU pods by a taint: docs/scheduling.md says what each costs and brings",
    )
