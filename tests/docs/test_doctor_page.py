"""The rights that the doctor's page names are those that it uses."""

from gpushare import names
from release.pages import doctor
from testing.cli import doctor_cluster as world
from testing.fakes.paths import Target

PLACES = {names.NAMESPACE: "the installation's namespace"}


def listed() -> set[tuple[str, str, str]]:
    return {
        (resource, verb, where)
        for resources, verbs, where in doctor.RIGHTS
        for resource in resources.split(", ")
        for verb in verbs.split(", ")
    }


def used() -> set[tuple[str, str, str]]:
    api = world.healthy()
    world.diagnosis(api)
    inside = "the installation's namespace"
    found = {("pods", "create", "default"), ("services/proxy", "get", inside), ("pods/proxy", "get", inside)}
    for call in api.calls:
        target = Target.parse(call.path)
        group = "" if target.group == "/api/v1" else f"{target.group.split('/')[2]}/"
        where = PLACES.get(target.namespace, target.namespace) or "cluster"
        found.add((f"{group}{target.resource}", call.verb, where))
    return found


def test_every_right_is_used_and_every_use_is_listed() -> None:
    assert listed() == used()
