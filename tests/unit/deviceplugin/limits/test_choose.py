"""Which back end holds the limits on a GPU: the first of the wanted ones that works there."""

from dataclasses import replace
from typing import Final

import pytest

from deviceplugin.limits import choose
from deviceplugin.limits.backend import PROVEN
from gpushare.identity import GpuUuid
from gpushare.model.gpu import GpuHealth, Limit
from testing.builders import make_gpu, make_inventory

FIRST, SECOND = GpuUuid("GPU-0"), GpuUuid("GPU-1")
EVERYWHERE: Final = {FIRST: PROVEN, SECOND: PROVEN}
GPUS: Final = (make_gpu(0), make_gpu(1))


def test_an_order_is_read_and_other_words_are_refused() -> None:
    for text, expected in (
        ("auto", (Limit.CGROUP, Limit.MPS, Limit.HAMI_CORE, Limit.ADVISORY)),
        ("cgroup", (Limit.CGROUP,)),
        ("mps, advisory", (Limit.MPS, Limit.ADVISORY)),
        ("hami-core,cgroup", (Limit.HAMI_CORE, Limit.CGROUP)),
        ("cgroup,mig", (Limit.CGROUP,)),
    ):
        assert choose.order(text) == (Limit.MIG, *expected)
    for text in ("", "none", "cgroup,cgroup", "auto,mps", "watchdog", "cgroup;mps"):
        with pytest.raises(
            ValueError, match="write auto, or some of mig, cgroup, mps, hami-core, advisory, each once, "
        ):
            choose.order(text)


def test_a_nodes_label_beats_the_setting() -> None:
    setting = choose.order("auto")
    assert choose.wanted(setting, "") == (setting, "")
    assert choose.wanted(setting, "mps.advisory") == (choose.order("mps,advisory"), "")
    order, problem = choose.wanted(setting, "mps-advisory")
    assert order == setting
    assert problem == (
        "label gpushare.dev/limits=mps-advisory: write auto, or some of mig, cgroup, mps, hami-core, advisory, each"
        " once, with commas between them; in a label, write dots instead of commas"
    )


def test_each_gpu_has_the_first_of_the_order_that_works_on_it() -> None:
    proofs = {Limit.CGROUP: {FIRST: PROVEN, SECOND: "old driver"}, Limit.ADVISORY: EVERYWHERE}
    chosen = choose.choose(GPUS, choose.order("cgroup,advisory"), proofs)
    assert chosen.candidates == {"GPU-0": (Limit.CGROUP, Limit.ADVISORY), "GPU-1": (Limit.ADVISORY,)}
    shown = choose.with_limits(make_inventory(15, 15), chosen)
    assert [gpu.limit for gpu in shown.gpus] == [Limit.CGROUP, Limit.ADVISORY]
    assert {gpu.health for gpu in shown.gpus} == {GpuHealth.HEALTHY}
    weaker_first = choose.choose(GPUS, choose.order("advisory,cgroup"), proofs)
    assert weaker_first.candidates[FIRST] == (Limit.ADVISORY, Limit.CGROUP)


def test_why_nothing_stronger_holds_is_told() -> None:
    proofs = {
        Limit.MIG: {FIRST: "no instance", SECOND: "no instance"},
        Limit.CGROUP: {FIRST: PROVEN, SECOND: "old driver" * 50},
        Limit.MPS: {FIRST: "no daemon", SECOND: "no daemon"},
        Limit.HAMI_CORE: EVERYWHERE,
    }
    chosen = choose.choose(GPUS, choose.order("auto"), proofs)
    first, second = choose.with_limits(make_inventory(15, 15), chosen).gpus
    assert (first.limit, first.limit_reason) == (Limit.CGROUP, "")
    assert second.limit is Limit.HAMI_CORE
    assert second.limit_reason == f"cgroup: {'old driver' * 20}; mps: no daemon"
    chosen = choose.choose(GPUS, choose.order("mps,cgroup"), {Limit.CGROUP: EVERYWHERE, Limit.MPS: EVERYWHERE})
    assert chosen.why_not_stronger[FIRST] == "cgroup: the order of limits of this node leaves it out or puts it later"


def test_on_a_gpu_that_one_program_has_for_itself_nothing_but_mps_works() -> None:
    proofs = dict.fromkeys(choose.order("auto"), EVERYWHERE)
    left = choose.only_mps_on(proofs, {FIRST: "exclusive"})
    chosen = choose.choose(GPUS, choose.order("auto"), left)
    assert chosen.candidates == {"GPU-0": (Limit.MPS,), "GPU-1": choose.order("auto")}


def test_a_gpu_on_which_nothing_works_takes_no_containers() -> None:
    proofs = {Limit.MIG: {FIRST: "no MIG"}, Limit.CGROUP: {FIRST: "old driver", SECOND: PROVEN}}
    chosen = choose.choose(GPUS, choose.order("cgroup"), proofs)
    first, second = choose.with_limits(make_inventory(15, 15), chosen).gpus
    assert (first.health, first.limit) == (GpuHealth.UNHEALTHY, Limit.ADVISORY)
    assert first.reason == "no limit can be held: cgroup: old driver"
    assert (second.health, second.limit, second.reason) == (GpuHealth.HEALTHY, Limit.CGROUP, "")


def test_a_fault_of_the_gpu_is_not_hidden_and_one_that_was_not_looked_at_stays_as_it_is() -> None:
    assert choose.with_limits(make_inventory(15), choose.ChosenLimits()) == make_inventory(15)
    broken = make_gpu(0, health=GpuHealth.UNHEALTHY)
    chosen = choose.choose([broken], choose.order("cgroup"), {Limit.CGROUP: {broken.uuid: "no"}})
    assert choose.with_limits(replace(make_inventory(), gpus=(broken,)), chosen).gpus[0].reason == ""
