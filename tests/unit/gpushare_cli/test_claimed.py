"""GPUs that ResourceClaims share: what `inspect`, `top` and the dashboard tell of them."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpushare import names
from gpushare.cluster import claim_records
from gpushare.kube import api as kube
from gpushare.kube.api import Reply
from gpushare.model.gpu import GpuHealth
from gpushare_cli import bars, console, inspect_command, reading
from gpushare_cli.console import Look, Streams
from gpushare_cli.dashboard import views
from gpushare_cli.explain import command
from gpushare_cli.explain.command import Options
from gpushare_cli.reading import Target
from testing import claims as claims_of
from testing.builders import Json, make_claim, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli import explaining
from testing.cli.explaining import explain
from testing.cli.podding import bound
from testing.cli.simulating import T4S, simulate
from testing.fakes.kube import FakeKube
from tests.unit.gpushare_cli.clusters import api_of

WHY = "its mode changes to device-plugin when no ResourceClaim holds it any more"
PLAIN = make_inventory(15, 15, 15)
CHANGING = replace(PLAIN.gpus[2], health=GpuHealth.UNHEALTHY, reason=WHY)
SPLIT = replace(PLAIN, gpus=PLAIN.gpus[:1], dra=(PLAIN.gpus[1], CHANGING))
POD = bound("p", make_grant(0, gib=3))


def cluster(*claims: Json, node: Json | None = None) -> FakeKube:
    api = api_of([node or make_node(SPLIT)], [POD])
    for each in claims:
        api.seed(reading.CLAIMS.replace("/resourceclaims", "/namespaces/default/resourceclaims"), each)
    return api


CLAIMS = (make_claim("a", GPU_1="3Gi"), make_claim("b", GPU_1="1536Mi", GPU_2="1025Ki"), make_claim("waits"))
ELSEWHERE = make_claim("c", node="node-z", GPU_1="1Gi")


def inspected(api: FakeKube, **options: object) -> tuple[str, list[str]]:
    out, err = io.StringIO(), io.StringIO()
    assert inspect_command.run(api, Streams(out=out, err=err), inspect_command.Options(**options)) == 0  # type: ignore[arg-type] # of a test
    return out.getvalue(), err.getvalue().splitlines()


@pytest.mark.parametrize(
    ("details", "of_1", "of_2"), [(False, "2     ", "1     "), (True, "default/a (3), default/b (2)", "default/b (1)")]
)
def test_they_follow_in_a_table_of_their_own(details: bool, of_1: str, of_2: str) -> None:
    plain, _ = inspected(api_of([make_node(replace(SPLIT, dra=()))], [POD]), details=details)
    width = max(len(of_1), len("Claims"))
    assert inspected(cluster(*CLAIMS, ELSEWHERE), details=details) == (
        f"{plain}\n"
        f"NAME    GPU  Mode  Model     Allocated/Total(GiB)  {'Claims':{width}}  Health\n"
        f"node-a  1    dra   Tesla T4  5/15                  {of_1:{width}}  Healthy\n"
        f"node-a  2    dra   Tesla T4  1/15                  {of_2:{width}}  Unhealthy: {WHY}\n",
        [],
    )


def test_what_containers_have_and_use_by_claims_is_among_the_limits() -> None:
    labels = 'container="main",gpu="{0}",namespace="default",node="node-a",pod="{1}"}} {2}'
    told = [("granted", 1, "c", 3 << 30), ("used", 1, "c", 1 << 30), ("granted", 2, "d", 1 << 30)]
    told += [("granted", 0, "p", 3 << 30)]  # by gpu-mem, which its annotation tells
    lines = [
        f'gpushare_plugin_container_{what}_bytes{{UUID="GPU-{gpu}",{labels.format(gpu, pod, size)}'
        for what, gpu, pod, size in told
    ]
    api = api_of([make_node(SPLIT)], [])
    ports = [{"name": "metrics", "containerPort": 1}]
    plugin = make_pod(make_container(ports=ports), name="x", namespace=names.NAMESPACE, node="node-a")
    plugin["metadata"]["labels"] = {names.LABEL_APP: names.PLUGIN}
    api.seed(kube.pod_path(names.NAMESPACE, "x"), plugin)
    api.replies[kube.pod_path(names.NAMESPACE, "x:1", "proxy/metrics")] = Reply(status=200, text="\n".join(lines))
    rows = json.loads(inspected(api, output="json", limits=True)[0])["limits"]
    found = [[row[key] for key in ("pod", "container", "gpu", "limit", "grantedMiB", "usedMiB")] for row in rows]
    assert found == [["c", "main", "1", "advisory", 3072, 1024], ["d", "main", "2", "advisory", 1024, None]]


def test_json_names_the_claims() -> None:
    (node,) = json.loads(inspected(cluster(*CLAIMS), output="json")[0])["nodes"]
    gpu = {"index": 1, "uuid": "GPU-1", "model": "Tesla T4", "mode": "dra", "health": "Healthy", "reason": ""}
    claims = [{"namespace": "default", "name": name, "heldMiB": mib} for name, mib in (("a", 3072), ("b", 1536))]
    assert node["draGpus"][0] == {**gpu, "memoryMiB": 15360, "heldMiB": 4608, "claims": claims}
    assert [(each["reason"], each["heldMiB"]) for each in node["draGpus"]] == [("", 4608), (WHY, 2)]
    assert [each["index"] for each in node["gpus"]] == [0]


def held(api: FakeKube, fault: kube.KubeError | None = None) -> tuple[list[int | None], list[str]]:
    if fault is not None:
        api.fail_next(lambda call: call.path == reading.CLAIMS, fault)
    out, err = inspected(api, output="json")
    return [gpu["heldMiB"] for gpu in json.loads(out)["nodes"][0]["draGpus"]], err


def test_a_reader_without_rights_is_told_and_a_server_without_the_api_has_no_claims() -> None:
    why = "note: ResourceClaims may not be listed (no); how much of GPUs they hold is not known"
    assert held(cluster(*CLAIMS), kube.ForbiddenError("no")) == ([None, None], [why])
    assert held(cluster(*CLAIMS), kube.NotFoundError("no such path")) == ([0, 0], [])
    api = cluster(*CLAIMS)
    api.fail_next(lambda call: call.path == reading.CLAIMS, kube.ForbiddenError("no"))
    assert "Tesla T4  ?/15                  ?       Healthy" in inspected(api)[0]


def test_a_claim_that_cannot_be_read_is_a_note_and_one_of_an_administrator_holds_nothing() -> None:
    admin = make_claim("admin", GPU_1="15Gi")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    amounts, (note,) = held(cluster(make_claim("odd", GPU_1="much"), admin, CLAIMS[0]))
    assert amounts == [3072, 0]
    assert note.startswith("note: ResourceClaim default/odd: status.allocation.devices.results[0].consumedCapacity")
    assert note.endswith("; not counted")


def test_nothing_is_asked_where_no_node_has_such_gpus() -> None:
    api = cluster(*CLAIMS, node=make_node(PLAIN))
    assert "draGpus" not in inspected(api, output="json")[0]
    assert api.count("list", "resourceclaims") == 0


def test_a_cordon_is_shown_but_no_list_of_unhealthy_gpus_keeps_claims_away() -> None:
    node = make_node(SPLIT)
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
    api = cluster(node=node)
    data = {"metadata": {"namespace": "kube-system", "name": "unhealthy-gpu-node-a"}, "data": {"gpus": "1"}}
    api.seed(reading.CONFIG_MAPS, data)
    assert "1    dra   Tesla T4  0/15                  0       Cordoned\n" in inspected(api)[0]


def test_bars_count_them_and_the_dashboard_tells_that_a_gpu_has_become_one() -> None:
    before, after = (views.of_node(make_node(each), [], frozenset(), None) for each in (PLAIN, SPLIT))
    assert before is not None
    assert after is not None
    shown = console.printed(bars.of_nodes([after], bars.MARKS[False]), Look()).splitlines()
    assert shown[2:] == ["  2 GPUs shared by ResourceClaims; see gpushare inspect"]
    told = views.health_changes("node-a", before, after, datetime(2026, 11, 1, tzinfo=UTC))
    assert {(each.text, each.warning) for each in told} == {("is shared by ResourceClaims now", False)}


def test_bars_show_what_claims_hold_of_each_of_them() -> None:
    claims = [found for each in (*CLAIMS, *OTHERS) if (found := claim_records.read(each))]
    view = views.of_node(make_node(SPLIT), [POD], frozenset(), None, claims)
    assert view is not None
    shown = [
        line.split("]")[1].split()[:2]
        for line in console.printed(bars.of_nodes([view], bars.MARKS[False]), Look()).splitlines()
        if "[" in line
    ]
    assert shown == [["3/15", "GiB"], ["7.5/15", "GiB"], ["4.0/15", "GiB"]]
    assert [len(card.blocks) for card in view.cards] == [1, 3, 2]
    odd = replace(SPLIT, dra=(replace(PLAIN.gpus[1], memory_mib=15100),))
    view = views.of_node(make_node(odd), [], frozenset(), None, [])
    assert view is not None
    assert [card.total_mib for card in view.cards] == [15360, 15100], "claims get what is beyond whole units, too"


# `explain`.

NODE = make_node(replace(SPLIT, dra=(PLAIN.gpus[1], PLAIN.gpus[2])))


def asking(gib: int, count: int = 1, *, pod: str = "pod", **held: str) -> Json:
    """The claim of a pod; allocated if it holds something."""
    amounts = {"capacity": {"requests": {"memory": f"{gib}Gi"}}}
    request = {"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": count, **amounts}}
    claim = make_claim(f"{pod}-gpu", **held)
    claim["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}]
    return claim | {"spec": {"devices": {"requests": [request]}}}


def claiming(node: str | None = None, phase: str = "Pending") -> Json:
    pod = make_pod(make_container(), name="pod", node=node, phase=phase)
    pod["metadata"]["uid"] = "uid-pod"
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "x"}]
    return pod


WAITS = "waits; it fits on no node"
NUMBERS = "needs 13 GiB on one GPU; free per GPU on node-a: 12, 11 GiB"
ROOM = "there is room on node-a as far as was evaluated; the scheduler has not come to it yet; selectors and"
OTHERS = (make_claim("a", GPU_1="3Gi"), asking(4, pod="b", GPU_2="4Gi"))


@pytest.mark.parametrize(
    ("node", "claims", "code", "headline", "summary"),
    [
        (NODE, [asking(13)], 3, WAITS, NUMBERS),
        (NODE, [asking(12, count=2)], 3, WAITS, "needs 12 GiB on each of 2 GPUs; free per GPU on node-a: 12, 11 GiB"),
        (NODE, [asking(12)], 0, "waits; it fits on node-a", ROOM),
        (make_node(replace(SPLIT, dra=())), [asking(1)], 3, WAITS, "no node shares GPUs by ResourceClaims"),
        (NODE, [], 0, "Pending; asks by ResourceClaims", "kube-scheduler allocates its ResourceClaims"),
    ],
)
def test_a_pod_that_waits_is_told_the_numbers(
    node: Json, claims: list[Json], code: int, headline: str, summary: str
) -> None:
    found = explain(node, claiming(), *OTHERS, *claims)
    assert found.code == code
    value = explain(node, claiming(), *OTHERS, *claims, as_json=True).value
    assert value["headline"] == headline
    assert value["summary"].startswith(summary)


def test_a_pod_that_runs_has_its_shares_and_neighbours() -> None:
    value = explain(NODE, claiming("node-a", "Running"), *OTHERS, asking(2, GPU_1="2Gi"), as_json=True).value
    assert (value["headline"], value["summary"]) == ("Running on node-a, by ResourceClaims", "it has 2 GiB of GPU 1")
    (gpu,) = value["gpus"]
    assert [each["name"] for each in gpu["sharedWith"]] == ["a"]


def test_who_may_not_list_claims_is_told_by_the_events() -> None:
    api = explaining.kube_of([NODE, claiming(), asking(13)])
    api.fail_next(lambda call: call.path == reading.CLAIMS, kube.ForbiddenError("no"), times=9)
    out, err = io.StringIO(), io.StringIO()
    options = Options(pod=Target(namespace="default", name="pod"), memory_unit=None, output="table")
    assert command.run(api, Streams(out=out, err=err), options, lambda: "default") == 3
    assert "neither the scheduler nor gpushare has said anything about it yet" in out.getvalue()


# `simulate --claims`.


def templated(name: str, *, of: str = "three", cpu: str = "1") -> Json:
    pod = make_pod(make_container(resources={"requests": {"cpu": cpu}}), name=name)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": of}]
    del pod["metadata"]["uid"]
    return pod


def template(name: str, gib: int) -> Json:
    return claims_of.template(name, gib) | {"apiVersion": "resource.k8s.io/v1"}


def test_pods_with_claims_go_where_claims_leave_room_and_gpu_mem_is_of_other_gpus() -> None:
    gpu_mem = make_pod(name="mem", node=None)
    del gpu_mem["metadata"]["uid"]
    plain = make_pod(make_container(), name="plain")
    del plain["metadata"]["uid"]
    pods = [templated("fits", of="ten"), templated("waits", of="thirteen"), templated("lost", of="none"), plain]
    given = [NODE, POD, *OTHERS, template("ten", 10), template("thirteen", 13), *pods, gpu_mem]
    result = simulate(*given, claims=True, as_json=True)
    found = {each["name"]: each for each in result.value["pods"]}
    assert {name: (each["outcome"], each["node"]) for name, each in found.items()} == {
        "fits": ("Placed", "node-a"),
        "waits": ("Waits", None),
        "lost": ("Waits", None),
        "plain": ("Placed", "node-a"),
    }
    assert found["waits"]["message"].startswith("needs 13 GiB on one GPU; free per GPU on node-a: 12, 1 GiB")
    assert found["lost"]["message"] == "ResourceClaimTemplate none is not in the input"


@pytest.mark.parametrize(("weight", "nodes"), [(None, 2), (9, 1)])
def test_pods_with_claims_are_spread_but_where_the_controller_ranks_nodes(weight: int | None, nodes: int) -> None:
    there = []
    for name in ("node-a", "node-b"):
        node = make_node(replace(make_inventory(15, node=name), gpus=(), dra=PLAIN.gpus[:2]))
        node["status"]["allocatable"] |= {"cpu": "8", "memory": "32Gi", "pods": "110"}
        there.append(node)
    given = [*there, template("three", 3), *(templated(f"p{i}") for i in range(4))]
    result = simulate(*given, claims=True, others_weight=weight, as_json=True)
    assert len({each["node"] for each in result.value["pods"]}) == nodes
    assert result.code == 0


def test_made_up_nodes_have_gpus_for_claims() -> None:
    given = [template("three", 3), *(templated(f"p{i}") for i in range(5))]
    assert simulate(*given, profile=T4S, nodes=1, claims=True).code == 0
    assert simulate(*given, *(templated(f"q{i}") for i in range(6)), profile=T4S, nodes=1, claims=True).code == 3
