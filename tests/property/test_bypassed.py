"""The controller, `explain` and `simulate` agree on what becomes of a bypassed pod."""

from hypothesis import given
from hypothesis import strategies as st

from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.explaining import copy, explain
from testing.cli.podding import mutated
from testing.cli.simulating import listed, simulate
from testing.controller import bypassing
from testing.controller.world import World

NODES = {"shared": [make_node(make_inventory(15))], "plain": [make_node(name="node-a")], "gone": []}
OTHER = make_node(make_inventory(15, node="node-b"))
OF_EVENT = {
    "GpuShareInvalidRequest": "invalid",
    "GpuShareWithoutGpu": "too late",
    "GpuShareNotMutated": "author",
    "GpuShareBoundLate": "bound",
    "GpuShareWaiting": "waits",
}
OF_TEXT = {
    "leaves it alone": "left alone",
    "cannot be understood": "invalid",
    "its containers have started": "too late",
    "the controller deletes it": "recreated",
    "the webhook did not change it": "author",
    "the controller chooses its GPUs": "bound",
}


@st.composite
def pods(draw: st.DrawFn) -> Json:
    pod = make_pod(make_container(gpu_mem=draw(st.sampled_from([3, 20, "many"]))), node="node-a", namespace="team")
    if draw(st.booleans()):
        mutated(pod)
    if kind := draw(st.sampled_from(["", "ReplicaSet", "Job", "Node"])):
        owner = {"kind": kind, "name": "web", "uid": "u", "controller": draw(st.booleans())}
        pod["metadata"]["ownerReferences"] = [owner]
    if draw(st.booleans()):
        pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    return pod


def controller(pod: Json, nodes: list[Json]) -> str:
    """What the controller does."""
    world = World()
    for node in nodes:
        world.api.seed("/api/v1/nodes", copy(node))
    world.list_all()
    seeded = world.api.seed("/api/v1/namespaces/team/pods", copy(pod))
    bypassing.tick(world)
    if not bypassing.is_there(world, seeded):
        return "recreated"
    return "".join(OF_EVENT[reason] for reason, _ in bypassing.said(world)) or "left alone"


def of_text(text: str) -> str:
    return next((outcome for part, outcome in OF_TEXT.items() if part in text), "waits")


def explained(pod: Json, nodes: list[Json]) -> str:
    """What `explain` says."""
    return of_text(" ".join(explain(copy(pod), *nodes, namespace="team").out.split()))


def simulated(pod: Json, nodes: list[Json]) -> str:
    """What `simulate` says."""
    rows = simulate(listed(*nodes), pod, as_json=True).value["pods"]
    if not rows:
        return "left alone"
    (row,) = rows
    return "bound" if row["node"] else of_text(row["message"])


@given(pods(), st.sampled_from(sorted(NODES)))
def test_the_three_agree(pod: Json, kind: str) -> None:
    nodes = [*NODES[kind], OTHER]
    does, explains = controller(pod, nodes), explained(pod, nodes)

    assert simulated(pod, nodes) == does
    if kind != "gone":  # all that `explain` says then is that the node is gone
        assert explains == does
