"""Hypothesis strategies for small clusters as the API server shows them."""

from typing import Any

from hypothesis import strategies as st

from gpushare import names
from testing.builders import Json, env_of, make_container, make_node, make_pod
from tests.property.strategies import ledgers

LABELS: tuple[dict[str, str], ...] = ({}, {"app": "web"})
AFFINITIES: tuple[dict[str, str], ...] = (
    {},
    {},
    {names.ANNOTATION_SAME_GPU: "app=web"},
    {names.ANNOTATION_OTHER_GPU: "app=web"},
)


@st.composite
def nodes(draw: st.DrawFn) -> list[Json]:
    """One to three nodes, some of whose GPUs are unhealthy or cordoned, without a status of their own."""
    found = []
    for i in range(draw(st.integers(1, 3))):
        node = make_node(draw(ledgers(f"node-{i}")).inventory)
        del node["status"]
        node["metadata"]["annotations"][names.ANNOTATION_CORDON] = draw(st.sampled_from(["", "", "0"]))
        found.append(node)
    return found


@st.composite
def pods(draw: st.DrawFn, name: str) -> Json:
    """A pod that waits, in any spelling that a pod may mix."""
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    annotations: dict[str, str] = dict(draw(st.sampled_from(AFFINITIES)))
    if count > 1:
        annotations[names.ANNOTATION_GPUS] = str(count)
    if policy := draw(st.sampled_from(["", "binpack", "spread"])):
        annotations[names.ANNOTATION_POLICY] = policy
    spelled = _memory() if count > 1 else _memory() | _part() | st.builds(lambda n: {names.GPU: n}, st.integers(1, 2))
    containers = [_container(f"c{i}", draw(spelled)) for i in range(draw(st.integers(1, 2)))]
    early = [
        _container(f"i{i}", draw(spelled)) | ({"restartPolicy": "Always"} if draw(st.booleans()) else {})
        for i in range(draw(st.integers(0, 1)))
    ]
    return make_pod(*containers, init=early, name=name, annotations=annotations, labels=draw(st.sampled_from(LABELS)))


@st.composite
def workloads(draw: st.DrawFn) -> list[Json]:
    """A few pods, in the order in which they come."""
    return [draw(pods(f"p{i}")) for i in range(draw(st.integers(1, 6)))]


def _memory() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda gib: {names.GPU_MEM: gib}, st.integers(1, 8))


def _part() -> st.SearchStrategy[dict[str, Any]]:
    percent = st.sampled_from([5, 20, 33, 50, 60, 100])
    part = st.builds(lambda of: {names.GPU_PERCENT: of}, percent)
    compute = st.builds(lambda gib, of: {names.GPU_MEM: gib, names.GPU_CORE: of}, st.integers(1, 8), percent)
    return part | compute


def _container(name: str, limits: dict[str, Any]) -> Json:
    return make_container(name, resources={"limits": limits}, env=[env_of(name)])
