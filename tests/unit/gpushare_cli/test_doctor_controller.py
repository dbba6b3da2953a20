"""What is wrong with the controller, line by line."""

import pytest

from gpushare import names
from gpushare.kube import api as kube
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube

PODS = f"kubectl -n {NS} get pods -l app.kubernetes.io/name=gpushare-controller"
LOGS = f"kubectl -n {NS} logs -l app.kubernetes.io/name=gpushare-controller --prefix --tail=100"
DEPLOYMENT = f"deployment/{NS}/gpushare-controller"
LEASE = f"lease/{NS}/gpushare-controller"
SERVICE = f"service/{NS}/gpushare-controller"
FORBIDDEN = kube.ForbiddenError("services/proxy is forbidden")
LOOK = (
    f"it takes rights for services/proxy in {NS}, and the NetworkPolicy gpushare-controller may keep the control plane"
    f" out; check by kubectl -n {NS} port-forward svc/gpushare-controller 12345"
)


def endpoints(count: int) -> Change:
    subsets = [{"addresses": [{"ip": "10.0.0.1"}] * count}] if count else []
    return lambda api: world.edit(api, "Endpoints", "gpushare-controller", lambda each: each.update(subsets=subsets))


def lease(**spec: object) -> Change:
    return lambda api: world.edit(api, "Lease", names.LEASE, lambda each: each["spec"].update(spec))


def answer(path: str, said: kube.Reply | kube.KubeError) -> Change:
    def change(api: DoctorKube) -> None:
        api.says(names.CONTROLLER_SERVICE, path, said)

    return change


ROWS: list[tuple[Change, str]] = [
    (
        lambda api: world.vanish(api, "Deployment", "gpushare-controller"),
        f"error controller-running {DEPLOYMENT} | it is missing, so no GPU pod is placed | apply the overlay for"
        " your server's version again: kubectl apply -k manifests/overlays/OVERLAY",
    ),
    (
        endpoints(0),
        f"error controller-running {DEPLOYMENT} | its Service has no endpoint, because no replica leads: no GPU pod is"
        f" placed | {PODS}; {LOGS}",
    ),
    (
        endpoints(2),
        f"error controller-running {DEPLOYMENT} | 2 replicas report ready, but only one may lead; normal for some"
        f" seconds while the lead changes | ask again; if it stays: {PODS}; {LOGS}",
    ),
    (
        lambda api: world.vanish(api, "Pod", "gpushare-controller-1"),
        f"warning controller-running {DEPLOYMENT} | 1 of 2 replicas run, so no one may be there to take over | {PODS}",
    ),
    (
        lambda api: world.vanish(api, "Lease", names.LEASE),
        f"error controller-leads {LEASE} | there is no such Lease, so no controller leads and no GPU pod is placed |"
        f" {LOGS}",
    ),
    (
        lease(holderIdentity=""),
        f"error controller-leads {LEASE} | no one holds it, so no controller leads and no GPU pod is placed | {LOGS}",
    ),
    (
        lease(renewTime=None),
        f"error controller-leads {LEASE} | no one holds it, so no controller leads and no GPU pod is placed | {LOGS}",
    ),
    (
        lease(renewTime=world.ago(minutes=3)),
        f"error controller-leads {LEASE} | gpushare-controller-0_ab12 has not renewed it for 180 s, and it lasts 15 s,"
        f" so no controller leads and no GPU pod is placed | {LOGS}",
    ),
    (
        answer("readyz", kube.Reply(status=503, text="the gpushare controller is still reading /api/v1/pods\n")),
        f"error controller-answers {SERVICE} | it is not ready: the gpushare controller is still reading /api/v1/pods"
        f" | ask again in a minute; if it stays: kubectl -n {NS} logs deploy/gpushare-controller",
    ),
    (
        answer("readyz", FORBIDDEN),
        f"warning controller-answers {SERVICE} | not checked whether it answers: services/proxy is forbidden | {LOOK}",
    ),
    (
        answer("metrics", kube.ServerFaultError("error trying to reach service: i/o timeout")),
        f"warning controller-ledger {SERVICE} | not checked its ledger: error trying to reach service: i/o timeout |"
        f" {LOOK}",
    ),
    (
        answer("metrics", kube.Reply(status=200, text="gpushare_ledger_differences 2.0\n")),
        f"error controller-ledger {SERVICE} | its ledgers of 2 nodes differ from what the pods tell | keep its log for"
        " a"
        f" report, then: kubectl -n {NS} rollout restart deployment/gpushare-controller",
    ),
    (
        answer("metrics", kube.Reply(status=200, text="gpushare_ledger_differences many\nother 1\n")),
        f"warning controller-ledger {SERVICE} | it has no metric gpushare_ledger_differences | check whether all"
        " components have the same version of the image",
    ),
    (
        answer("metrics", kube.Reply(status=200, text="other 1\n")),
        f"warning controller-ledger {SERVICE} | it has no metric gpushare_ledger_differences | check whether all"
        " components have the same version of the image",
    ),
]


@pytest.mark.parametrize(("change", "line"), ROWS)
def test_each_has_its_line(change: Change, line: str) -> None:
    assert world.after(change) == [line]


@pytest.mark.parametrize("renewed", [world.ago(seconds=44), world.ago(seconds=-600)])
def test_clocks_may_differ_somewhat(renewed: str) -> None:
    """The time is the API server's; the holder stamps by its own."""
    api = world.healthy()
    lease(renewTime=renewed)(api)
    assert world.lines(api) == []
