"""`gpushare explain deployment/web`: the pods of a workload, by its own selector."""

from typing import Any

import pytest

from gpushare.errors import WireError
from gpushare_cli import __main__ as cli
from gpushare_cli.explain import workloads
from testing.builders import Json, make_inventory, make_node, make_pod
from testing.cli.calling import reached
from testing.cli.explaining import kube_of
from testing.cli.podding import mutated
from testing.fakes.kube import FakeKube


def pods(count: int, app: str = "web") -> list[Json]:
    made = []
    for i in range(count):
        pod = mutated(make_pod(name=f"{app}-{i}", namespace="ml"))
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), "app": app}
        made.append(pod)
    return made


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    found = kube_of([make_node(make_inventory(8)), *pods(3), *pods(1, app="other")])
    selector = {"matchLabels": {"app": "web"}}
    for group, plural in (("apps/v1", "deployments"), ("apps/v1", "statefulsets"), ("batch/v1", "jobs")):
        path = f"/apis/{group}/namespaces/ml/{plural}"
        found.seed(path, {"metadata": {"name": "web", "namespace": "ml"}, "spec": {"selector": selector}})
    reached(monkeypatch, found, "ml")
    return found


@pytest.mark.parametrize("named", ["deployment/web", "deploy/web", "Deployments/web", "sts/web", "job/web"])
def test_equal_pods_are_explained_once(named: str, api: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", named]) == 0
    out = capsys.readouterr().out
    assert out.startswith("POD:        ml/web-0\n")
    assert out.endswith("The same holds for web-1, web-2.\n")
    assert "other-0" not in out


def test_a_pod_is_a_kind_too(api: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "pod/web-1"]) == 0
    assert capsys.readouterr().out.startswith("POD:        ml/web-1\n")


def test_a_workload_that_is_not_there_is_told(api: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "rs/none"]) == 1
    assert capsys.readouterr().err == "error: there is no replicaset none in namespace ml\n"


def test_a_workload_without_pods_is_told(api: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    selector = {"matchLabels": {"app": "nothing"}}
    empty = {"metadata": {"name": "empty", "namespace": "ml"}, "spec": {"selector": selector}}
    api.seed("/apis/apps/v1/namespaces/ml/daemonsets", empty)
    assert cli.main(["explain", "ds/empty"]) == 1
    assert capsys.readouterr().err == (
        "daemonset empty in namespace ml has no pods; see kubectl describe daemonset empty -n ml\n"
    )


def test_the_answer_for_programs_lists_every_pod(api: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "deployment/web", "-o", "json"]) == 0
    assert capsys.readouterr().out.count('"uid"') == 3


@pytest.mark.parametrize(
    ("selector", "written"),
    [
        ({"matchLabels": {"a": "b", "c": "d"}}, "a=b,c=d"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}, "a in (b,c)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, "a notin (b)"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}]}, "a,!b"),
    ],
)
def test_selectors_are_written_as_lists_take_them(selector: Any, written: str) -> None:
    assert workloads.selector_of({"spec": {"selector": selector}}) == written


@pytest.mark.parametrize("selector", [{}, {"matchExpressions": [{"key": "a", "operator": "Gt"}]}])
def test_a_selector_that_would_match_everything_or_is_unknown_is_refused(selector: Any) -> None:
    with pytest.raises(WireError, match=r"spec\.selector"):
        workloads.selector_of({"spec": {"selector": selector}})
