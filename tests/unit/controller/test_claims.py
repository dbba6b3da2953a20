"""Pods with ResourceClaims: kube-scheduler allocates; the controller ranks nodes, and says what keeps a pod waiting."""

from dataclasses import replace
from typing import Any

import pytest

from controller.claims import NO_NODES
from controller.reconcile.node_requests import Refusals
from controller.reconcile.waiting import FITS, NOT_TRIED, WaitingPods
from gpushare import names
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from testing.builders import Json, make_claim, make_container, make_inventory, make_mig, make_node, make_pod
from testing.controller.bypassing import EVENTS
from testing.controller.world import NODES, PODS, World
from tests.unit.controller.conftest import lines

TEAM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
OWNER = {"kind": "Pod", "controller": True}


def ask(memory: str | None = "3Gi", **more: Any) -> Json:
    amounts: Json = {} if memory is None else {"memory": memory}
    exactly = {"deviceClassName": names.DEVICE_CLASS, "capacity": {"requests": amounts}, **more}
    return {"name": "gpu", "exactly": exactly}


class Cluster(World):
    """Two nodes, each with a GPU of 10 GiB for claims beside one for gpu-mem."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("node-a", "node-b"):
            both = make_inventory(10, 10, node=name)
            self.api.seed(NODES, make_node(replace(both, gpus=both.gpus[:1], dra=both.gpus[1:])))
        self.list_all()
        self.waiting = WaitingPods(
            writer=self.writer,
            state=self.claims.state,
            table=self.claims.table,
            refusals=Refusals(self.clock),
            nudges=False,
            no_nodes=NO_NODES,
        )

    def claim(self, name: str, *asks: Json, of: str | None = None, **held: str) -> JsonObject:
        """Of the pod of the same name, unless another is named, or none; allocated on node-a if it holds something."""
        made = make_claim(name, **held)
        owner = name if of is None else of
        metadata: Json = {"namespace": "team", "name": name, "uid": f"uid-{name}"}
        if owner:
            metadata["ownerReferences"] = [{**OWNER, "name": owner, "uid": f"uid-of-{owner}"}]
        made |= {"metadata": metadata, "spec": {"devices": {"requests": list(asks)}}}
        seeded = self.api.seed(TEAM, made)
        if owner and not held and not any(each["metadata"]["name"] == owner for each in self.api.objects(PODS)):
            self.give_up(owner)
        self.see()
        return seeded

    def give_up(self, name: str, *, namespace: str = "team", gate: bool = False) -> None:
        """A pod with claims, which kube-scheduler has tried in vain, unless it waits behind a gate."""
        pod = make_pod(make_container(), name=name, namespace=namespace)
        pod["metadata"]["uid"] = f"uid-of-{name}"
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "x"}]
        reason = "SchedulingGated" if gate else "Unschedulable"
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason}]
        self.api.seed(f"/api/v1/namespaces/{namespace}/pods", pod)

    def ranked(self, pod: str) -> dict[str, int]:
        made = make_pod(make_container(), name=pod, namespace="team")
        made["metadata"]["uid"] = f"uid-of-{pod}"
        answer = self.post(names.OTHERS_VERB, {"Pod": made, "NodeNames": ["node-a", "node-b"]})
        return {each["Host"]: each["Score"] for each in answer}

    def told(self) -> list[str]:
        self.waiting.tick(self.claims.snapshot())
        return [event["message"] for event in self.api.objects(EVENTS)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def held(gib: int) -> dict[str, str]:
    """Of the GPU of node-a for claims."""
    return {make_inventory(10, 10, node="node-a").gpus[1].uuid.replace("-", "_"): f"{gib}Gi"}


def test_nodes_are_ranked_by_what_claims_hold_and_not_by_what_pods_of_gpu_mem_do(cluster: Cluster) -> None:
    cluster.add_bound(9, node="node-b")
    cluster.claim("holds", **held(4))
    cluster.claim("new", ask())
    ranked = cluster.ranked("new")
    assert ranked["node-a"] > ranked.get("node-b", 0)
    cluster.api.delete(f"{TEAM}/holds")
    cluster.see()
    cluster.claim("full", **held(9))
    ranked = cluster.ranked("new")
    assert ranked["node-b"] > ranked.get("node-a", 0)


def test_a_pod_is_ranked_as_one_without_gpus_once_its_claim_is_allocated_or_before_it_is_known(
    cluster: Cluster,
) -> None:
    without = cluster.ranked("unknown")
    cluster.claim("holds", **held(4))
    assert cluster.ranked("holds") == without
    assert cluster.counted()["gpushare_extender_requests_total", names.OTHERS_VERB, "scored"] == 2


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ([ask("7Gi")], "needs 7 GiB on one GPU; free per GPU on node-b: 6 GiB; free per GPU on node-a: 2 GiB"),
        ([ask("6Gi", count=2)], "needs 2 GPUs; node-b has 1; node-a has 1"),
        ([ask(None)], "needs 100 % of one GPU; free per GPU on node-b: 6 GiB; free per GPU on node-a: 2 GiB"),
        (
            [ask("5Gi"), ask("5Gi") | {"name": "more"}],
            "needs 5 GiB on one GPU (gpu) + 5 GiB on one GPU (more); free per GPU on node-b: 6 GiB;"
            " free per GPU on node-a: 2 GiB",
        ),
        ([{"name": "either", "firstAvailable": [ask("7Gi")["exactly"], ask("1Gi")["exactly"]]}], "needs 7 GiB"),
        ([ask("6Gi")], ""),
        ([ask("99Gi", deviceClassName="others")], ""),
        ([ask("99Gi", adminAccess=True)], ""),
    ],
)
def test_a_pod_that_no_node_has_room_for_is_told_the_numbers(cluster: Cluster, asks: list[Json], words: str) -> None:
    cluster.claim("a", **held(8))
    cluster.api.seed(TEAM, make_claim("b", node="node-b", **{_uuid("node-b"): "4Gi"}))
    cluster.see()
    cluster.claim("new", *asks)
    assert "; ".join(cluster.told()).startswith(words)
    assert len(cluster.told()) == bool(words)  # once
    events = cluster.api.objects(EVENTS)
    assert {each["involvedObject"]["uid"] for each in events} <= {"uid-of-new"}
    assert cluster.waiting.counts.get(("team", FITS), 0) == (asks == [ask("6Gi")])


def _uuid(node: str) -> str:
    return str(make_inventory(10, 10, node=node).gpus[1].uuid.replace("-", "_"))


def test_a_pod_waits_for_all_of_its_claims_together(cluster: Cluster) -> None:
    cluster.claim("one", ask("6Gi"), of="web")
    cluster.claim("two", ask("6Gi"), of="web")
    assert cluster.told()[0].startswith("needs 6 GiB on one GPU (gpu) + 6 GiB on one GPU (gpu)")
    cluster.api.delete(f"{TEAM}/two")
    cluster.see()
    shape = cluster.claims.shape(PodRef(namespace="team", name="web", uid=PodUid("uid-of-web")))
    assert shape is not None
    assert len(shape.containers) == 1


def test_a_claim_that_no_pod_made_is_counted_and_no_one_is_told_of_it(cluster: Cluster) -> None:
    cluster.claim("alone", ask("11Gi"), of="")
    assert cluster.told() == []
    assert not any(cluster.waiting.counts.values())
    allocated = make_claim("alone", **held(8))["status"]
    cluster.api.edit(f"{TEAM}/alone", lambda found: found.update(status=allocated))
    cluster.see()
    cluster.claim("new", ask("3Gi", count=1))
    assert cluster.ranked("new")["node-b"] > cluster.ranked("new").get("node-a", 0)


def test_a_claim_counts_once_when_its_owner_changes_and_no_longer_than_it_holds(cluster: Cluster) -> None:
    other_first = {"name": "gpu", "firstAvailable": [ask(deviceClassName="others")["exactly"], ask()["exactly"]]}
    cluster.claim("moves", other_first, **held(4))
    for owner in ("one", "two"):
        refs = [{**OWNER, "name": owner, "uid": f"uid-of-{owner}"}]
        cluster.api.edit(f"{TEAM}/moves", lambda found: found["metadata"].update(ownerReferences=refs))  # noqa: B023
        cluster.see()
    cluster.claim("new", ask("7Gi", count=2))
    assert set(cluster.claims.state.index.pods) == {"uid-of-two", "uid-of-new"}
    ledger, _ = cluster.claims.state.index.occupants(NodeName("node-a"))
    assert isinstance(ledger, NodeLedger)
    assert list(ledger.used_mib.values()) == [4096]
    cluster.api.edit(f"{TEAM}/moves", lambda found: found.update(status={}))  # and it does not ask for our GPUs first
    cluster.see()
    assert set(cluster.claims.state.index.pods) == {"uid-of-new"}
    cluster.api.delete(f"{TEAM}/moves")
    cluster.see()
    assert set(cluster.claims.state.index.pods) == {"uid-of-new"}


def test_the_first_list_has_all_and_forgets_what_is_gone(cluster: Cluster) -> None:
    gone = cluster.claim("gone", **held(8))
    cluster.claim("kept", ask("7Gi"))
    cluster.api.delete(f"{TEAM}/{gone['metadata']['name']}")
    cluster.list_all()
    assert cluster.told() == []
    assert {str(pod.ref) for pod in cluster.claims.state.index.snapshot().pods} == {"team/kept"}


def test_a_claim_that_is_allocated_to_others_neither_waits_nor_holds(cluster: Cluster) -> None:
    cluster.claim("new", ask("11Gi"))
    results = [{"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0", "request": "gpu"}]
    cluster.api.edit(
        f"{TEAM}/new", lambda found: found.update(status={"allocation": {"devices": {"results": results}}})
    )
    cluster.see()
    assert cluster.told() == []
    assert not cluster.claims.state.index.snapshot().pods


def test_a_claim_that_cannot_be_read_is_left_out(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.claim("bad", ask("much"))
    assert "much" in str(lines(caplog, "object left out")[0]["error"])
    assert not cluster.claims.state.index.snapshot().pods


def test_without_any_node_for_claims_a_pod_is_told_that(cluster: Cluster) -> None:
    for name in ("node-a", "node-b"):
        cluster.api.delete(f"{NODES}/{name}")
    cluster.see()
    cluster.claim("new", ask())
    assert cluster.told() == [NO_NODES]


def test_a_node_whose_gpus_change_their_mode_changes_for_claims(cluster: Cluster) -> None:
    cluster.claim("new", ask("7Gi"))
    assert cluster.told() == []
    annotations = make_node(make_inventory(10, node="node-a"))["metadata"]["annotations"]
    for name in ("node-a", "node-b"):
        cluster.api.edit(f"{NODES}/{name}", lambda found: found["metadata"].update(annotations=annotations))
    cluster.see()
    assert cluster.told() == [NO_NODES]


def test_claims_get_several_mig_instances_and_no_gpu_of_gpu_mem_where_one_is_called_unhealthy(cluster: Cluster) -> None:
    both = replace(make_inventory(99), dra=(make_mig(1, 0, 10), make_mig(1, 1, 10)))
    annotations = make_node(both)["metadata"]["annotations"]
    cluster.state.index.set_unhealthy(NodeName("node-a"), frozenset({7}))
    cluster.api.edit(f"{NODES}/node-a", lambda found: found["metadata"].update(annotations=annotations))
    cluster.see()
    cluster.claim("two", ask("9Gi", count=2))
    assert cluster.told() == []
    cluster.claim("new", ask("11Gi"))
    assert cluster.told()[0].startswith("needs 11 GiB on one GPU; free per GPU on node-a: 10, 10 GiB")


def test_a_pod_behind_a_gate_is_told_nothing_and_counts_as_not_tried(cluster: Cluster) -> None:
    cluster.give_up("new", gate=True)
    cluster.claim("new", ask("11Gi"))
    assert cluster.told() == []
    assert cluster.waiting.counts["team", NOT_TRIED] == 1


def test_a_pod_is_remembered_as_long_as_its_claim_may_be_late_or_waits(cluster: Cluster) -> None:
    cluster.give_up("new")
    cluster.see()
    cluster.clock.at += 59
    assert cluster.told() == []
    cluster.claim("new", ask("11Gi"))
    cluster.clock.at += 600
    assert len(cluster.told()) == 1
    cluster.api.delete(f"{TEAM}/new")
    cluster.see()
    cluster.told()
    cluster.claim("new", ask("12Gi"))
    assert cluster.claims.snapshot().pending[0].unschedulable is False


def test_a_claim_that_names_a_pod_of_another_namespace_tells_and_ranks_nothing_there(cluster: Cluster) -> None:
    cluster.give_up("victim")
    forged = cluster.claim("forged", ask("11Gi"), of="victim")
    cluster.api.delete(f"{TEAM}/forged")
    cluster.see()
    forged["metadata"] |= {"namespace": "evil", "resourceVersion": ""}
    cluster.api.seed(TEAM.replace("team", "evil"), forged)
    cluster.see()
    assert cluster.told() == []
    assert cluster.claims.shape(PodRef(namespace="team", name="victim", uid=PodUid("uid-of-victim"))) is None
