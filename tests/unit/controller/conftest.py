import pytest

from testing.controller.world import World


@pytest.fixture
def world() -> World:
    """Two nodes with two GPUs of 10 GiB each, and a controller that has read them."""
    world = World()
    world.add_node("node-a", 10, 10)
    world.add_node("node-b", 10, 10)
    world.list_all()
    world.api.calls.clear()
    return world
