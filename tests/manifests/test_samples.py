import pytest

from gpushare import units
from gpushare.model.ledger import NodeLedger
from gpushare.model.verdict import Placed
from gpushare.placement.place import place
from gpushare.wire import pods
from tests.builders import make_inventory
from tests.manifests import tree
from tests.manifests.tree import MANIFESTS, Json

SAMPLES = {path.stem: tree.documents(path) for path in sorted((MANIFESTS / "samples").glob("*.yaml"))}
SEED_IMAGE = "cheyang/gpu-player:v2"


def pod_of(sample: str) -> Json:
    [found] = SAMPLES[sample]
    pod = found["spec"]["template"] if found["kind"] == "StatefulSet" else found
    assert isinstance(pod, dict)
    return pod


@pytest.mark.parametrize(
    ("sample", "shares"),
    [
        ("binpack-1", {"binpack-1": (3072, 1)}),
        ("gpu-share-pod1", {"gpu-share-pod1": (3072, 1)}),
        ("gpu-share-pod2", {"gpu-share-pod2": (5120, 1)}),
        ("share", {"main": (3072, 1)}),
        ("two-containers", {"train": (4096, 1), "serve": (2048, 1)}),
        ("gpus-by-annotation", {"main": (3072, 4)}),
        ("gpus-by-label", {"main": (4096, 2)}),
    ],
)
def test_a_sample_asks_for_what_its_comment_says(sample: str, shares: dict[str, tuple[int, int]]) -> None:
    request = pods.request(pod_of(sample), units.GIB)
    assert request is not None
    asked = {str(each.container): (each.memory_mib, each.gpu_count) for each in request.shape.containers}
    assert asked == shares


def test_every_sample_is_in_the_table_above_and_runs_the_same_image() -> None:
    assert len(SAMPLES) == 7
    images = {c["image"].removeprefix("docker.io/") for name in SAMPLES for c in pod_of(name)["spec"]["containers"]}
    assert images == {SEED_IMAGE}


def test_every_sample_fits_one_simulated_node() -> None:
    for name in SAMPLES:
        request = pods.request(pod_of(name), units.GIB)
        assert request is not None
        assert isinstance(place(request.shape, NodeLedger(inventory=make_inventory(15, 15, 15, 15))), Placed)


def test_the_first_sample_of_the_readme_has_twelve_lines() -> None:
    assert len((MANIFESTS / "samples" / "share.yaml").read_text().splitlines()) == 12
