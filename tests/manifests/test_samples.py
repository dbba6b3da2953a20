from dataclasses import replace

import pytest

from gpushare.model.ledger import NodeLedger, Placed
from gpushare.model.request import RequestShape
from gpushare.placement.place import place
from gpushare.wire import requests
from testing.builders import make_inventory
from testing.manifests import tree
from testing.manifests.tree import MANIFESTS, Json
from testing.reviews import WHOLE as RULES

SAMPLES, WHOLE, QUOTA = (
    [found for path in sorted((MANIFESTS / "samples").glob(files)) for found in tree.documents(path)]
    for files in ("*.yaml", "whole-gpus/*.yaml", "quota/*.yaml")
)
PODS: dict[str, Json] = {
    each["metadata"]["name"]: each["spec"]["template"] if each["kind"] == "StatefulSet" else each
    for each in (*SAMPLES, *WHOLE)
}
SHARES = {
    "binpack-1": {"binpack-1": (3072, 1)},
    "gpu-share-pod1": {"gpu-share-pod1": (3072, 1)},
    "gpu-share-pod2": {"gpu-share-pod2": (5120, 1)},
    "two-containers": {"train": (4096, 1), "serve": (2048, 1)},
    "share": {"main": (3072, 1)},
    "gpus-by-annotation": {"main": (3072, 4)},
    "gpus-by-label": {"main": (4096, 2)},
    **{key: {"main": (2048, 1)} for key in ("memory-and-compute", "selected", "spread", "same-gpu", "other-gpus")},
}
IMAGES = {"cheyang/gpu-player:v2", "nvcr.io/nvidia/cuda:9.0-devel", "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda10.2"}


def shape_of(sample: str) -> RequestShape:
    request = requests.of_pod(PODS[sample], RULES.resource_config)
    assert request is not None
    return request.shape


@pytest.mark.parametrize("sample", SHARES)
def test_a_sample_asks_for_the_memory_that_its_comment_says(sample: str) -> None:
    asked = {str(each.container): (each.memory_mib, each.gpu_count) for each in shape_of(sample).containers}
    assert asked == SHARES[sample]


def test_samples_ask_in_the_other_ways_that_their_comments_say() -> None:
    [part] = shape_of("gpu-pod").containers
    assert (part.memory_percent, part.compute_percent, part.gpu_count) == (20, 20, 1)
    [beside] = shape_of("memory-and-compute").containers
    assert beside.compute_percent == 10
    for sample in ("whole-gpu", "vectoradd"):
        [whole] = shape_of(sample).containers
        assert (whole.whole, whole.gpu_count) == (True, 1)
    assert str(shape_of("selected").gpus) == "model not K80 and at least 12288 MiB in all"
    assert str(shape_of("spread").policy) == "Policy.SPREAD"
    for sample in ("same-gpu", "other-gpus"):
        affinity = shape_of(sample).affinity
        assert affinity is not None
        [selector] = filter(None, [affinity.same, affinity.other])
        assert selector.matches(PODS[sample]["metadata"]["labels"]), "of each other"


def test_every_sample_is_tried_above_runs_a_known_image_and_fits_one_simulated_node() -> None:
    assert {*PODS} == {*SHARES, "gpu-pod", "whole-gpu", "vectoradd"}
    images = {container["image"] for pod in PODS.values() for container in pod["spec"]["containers"]}
    assert {image.removeprefix("docker.io/") for image in images} == IMAGES
    for name in PODS:
        shape = shape_of(name)
        if shape.affinity is not None:
            shape = replace(shape, affinity=replace(shape.affinity, first=True))
        assert isinstance(place(shape, NodeLedger.of(make_inventory(15, 15, 15, 15))), Placed)


def test_samples_that_are_no_pods_are_kept_apart() -> None:
    """Anyone who applies all samples gets pods, and no rules for a namespace."""
    assert {found["kind"] for found in SAMPLES} == {"Pod", "StatefulSet"}
    assert {found["kind"] for found in QUOTA} == {"ResourceQuota", "LimitRange", "PriorityClass"}


def test_the_first_sample_of_the_readme_has_twelve_lines() -> None:
    assert len((MANIFESTS / "samples" / "share.yaml").read_text().splitlines()) == 12
