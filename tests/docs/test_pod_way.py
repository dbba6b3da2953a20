"""The picture of a pod's way has the steps of the table, and the table has the steps of the code."""

import yaml

from gpushare import names
from gpushare_cli import schedconfig
from release.pages import pod_way

ROWS = pod_way.table()


def test_the_picture_is_the_one_that_the_table_makes() -> None:
    assert pod_way.PICTURE.read_text(encoding="utf-8") == pod_way.svg(ROWS), "run `make docs`"


def test_every_step_is_drawn_but_the_one_for_pods_without_gpus() -> None:
    assert {step for step, _, _ in ROWS} - {*pod_way.SHORT} == {names.OTHERS_VERB}
    assert {*pod_way.SHORT} <= {step for step, _, _ in ROWS}


def test_the_steps_of_the_controller_are_what_kube_scheduler_asks_it_for() -> None:
    written = schedconfig.configuration(schedconfig.Options(server=schedconfig.ServerVersion(1, 30)))
    [extender] = yaml.safe_load(written)["extenders"]
    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    steps = {step for step, who, _ in ROWS if who == "controller"}
    assert steps == verbs | {names.OTHERS_VERB, "end"}
