"""Authors who chose devices themselves are told that it does not count."""

from controller.reconcile import overridden
from gpushare import names
from testing.controller.bypassing import said, tick
from testing.controller.world import World

MARK = {names.ANNOTATION_OVERRIDDEN: "c0"}
TAIL = (
    ": NVIDIA_VISIBLE_DEVICES was replaced when the pod was created; a container sees the GPUs that it is given and no"
    " others; remove the variable from the pod's template"
)


def test_each_pod_is_warned_once(world: World) -> None:
    pod = world.add_pod(3, annotations=MARK)
    tick(world)
    assert said(world) == [("GpuShareDevicesOverridden", f"container c0{TAIL}")]
    world.bind(pod)
    for _ in range(3):
        tick(world, 60)
    assert len(said(world)) == 1


def test_all_such_containers_are_named(world: World) -> None:
    world.add_pod(3, annotations={names.ANNOTATION_OVERRIDDEN: "c0,side"})
    tick(world)
    assert said(world) == [("GpuShareDevicesOverridden", f"containers c0, side{TAIL}")]


def test_after_a_change_of_leader_only_new_pods_are_warned(world: World) -> None:
    clock = "2026-01-01T00:16:40Z"  # this world's clock begins 1000 seconds after midnight
    for created in ("2026-01-01T00:00:00Z", clock):
        world.bind(world.add_pod(1, annotations=MARK, creationTimestamp=created))
    world.start_controller()
    world.list_all()
    tick(world)
    assert len(said(world)) == 1


def test_only_so_many_are_warned_in_one_tick(world: World) -> None:
    for _ in range(overridden.MAX_EVENTS + 2):
        world.add_pod(1, annotations=MARK)
    tick(world)
    assert len(said(world)) == overridden.MAX_EVENTS
    tick(world)
    assert len(said(world)) == overridden.MAX_EVENTS + 2
