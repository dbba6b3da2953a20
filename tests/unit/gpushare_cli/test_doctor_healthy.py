"""An installation as it should be."""

import pytest

from testing.cli import doctor_cluster as world


@pytest.mark.parametrize(
    ("overlay", "version"),
    [
        ("production", "v1.30.2"),
        ("production", "v1.36.0+k3s1"),
        ("production-1.25", "v1.27.3"),
        ("production-1.23", "v1.24.17"),
        ("production-1.20", "v1.20.15"),
    ],
)
def test_an_installation_as_the_manifests_make_it_has_no_finding(overlay: str, version: str) -> None:
    assert world.lines(world.healthy(overlay, version)) == []


@pytest.mark.parametrize(
    ("overlay", "version", "server"),
    [
        ("production", "v1.30.2", "1.30"),
        ("production", "v1.36.0", "1.30"),
        ("production-1.25", "v1.27.3", "1.25"),
        ("production-1.23", "v1.24.17", "1.23"),
        ("production-1.20", "v1.20.15", "1.20"),
    ],
)
def test_neither_has_one_that_hands_out_whole_gpus_as_well(overlay: str, version: str, server: str) -> None:
    assert world.lines(world.with_whole_gpus(overlay, version, server)) == []
