"""The right spelling for every version of kube-scheduler."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.identity import NodeName
from gpushare.placement import costs
from gpushare_cli import __main__ as cli, kube_scores, scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion
from tests.unit.gpushare_cli.findings import Told

V1 = ServerVersion(1, 36)
OLD = ServerVersion(1, 20)
PEM = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def configuration(server: ServerVersion = V1, **options: Any) -> dict[str, Any]:
    value = yaml.safe_load(scheduler_config.configuration(Options(server=server, **options)))
    assert isinstance(value, dict)
    return value


def policy(server: ServerVersion = OLD, **options: Any) -> dict[str, Any]:
    value = orjson.loads(scheduler_config.policy(Options(server=server, **options)))
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("api", "minors"), [("v1beta1", (19, 20, 21)), ("v1beta2", (22,)), ("v1beta3", (23, 24)), ("v1", (25, 29, 36, 101))]
)
def test_each_release_gets_an_api_version_that_it_reads(api: str, minors: Sequence[int]) -> None:
    found = {configuration(ServerVersion(1, minor))["apiVersion"] for minor in minors}
    assert found == {f"kubescheduler.config.k8s.io/{api}"}


def test_releases_are_read_as_distributions_spell_them() -> None:
    for text in "1.30", "v1.30", "1.30.2", "v1.30.3+k3s1", "v1.30.2-eks-1", "v1.30.0-rc.1+ab12", "1.30+", " v1.30.2\n":
        assert ServerVersion.parse(text) == ServerVersion(1, 30)


def test_a_second_scheduler_has_a_name_and_a_lease_of_its_own(told: Told) -> None:
    assert scheduler_config.configuration(Options(server=V1)).splitlines() == told()


def test_names_can_be_chosen_and_the_clusters_own_scheduler_keeps_its_own() -> None:
    value = configuration(scheduler_name="gpu", lease_name="gpu-lease", lease_namespace="ops")
    assert value["profiles"][0]["schedulerName"] == "gpu"
    lease = {"leaderElect": True, "resourceLock": "leases", "resourceName": "gpu-lease", "resourceNamespace": "ops"}
    assert value["leaderElection"] == lease
    value = configuration(scheduler_name="", kubeconfig="/etc/kubernetes/scheduler.conf")
    assert value["profiles"] == [{"schedulerName": "default-scheduler"}]
    assert value["leaderElection"] == {"leaderElect": True}
    assert value["clientConnection"]["kubeconfig"] == "/etc/kubernetes/scheduler.conf"


def test_plain_text_ports_of_an_old_second_scheduler_are_for_no_one() -> None:
    value = configuration(OLD)
    assert value["healthzBindAddress"] == value["metricsBindAddress"] == "127.0.0.1:10251"
    assert "healthzBindAddress" not in configuration(OLD, scheduler_name="")
    assert "healthzBindAddress" not in configuration(ServerVersion(1, 22))


PROXY = "https://10.0.0.1:6443/api/v1/namespaces/gpushare-system/services/gpushare-controller:12345/proxy"


@pytest.mark.parametrize(
    ("url", "shows"),
    [
        ("https://gpu.example:443", {}),
        (PROXY, {"certFile": "/pki/a.crt", "keyFile": "/pki/a.key"}),  # the API server's proxy must know it
    ],
)
def test_https_carries_the_ca_because_the_scheduler_verifies_nothing_without(url: str, shows: dict[str, str]) -> None:
    client = {"client_cert": shows["certFile"], "client_key": shows["keyFile"]} if shows else {}
    options: dict[str, Any] = {"url": f"{url}/gpushare-scheduler/", "ca_pem": PEM, **client}
    tls = {"caData": base64.b64encode(PEM).decode(), **shows}
    for extender in configuration(**options, others_weight=9)["extenders"]:
        found = extender["urlPrefix"], extender["enableHTTPS"], extender["tlsConfig"]
        assert found == (f"{url}/gpushare-scheduler", True, tls)
    value = policy(**options)  # in its own way, as the time
    assert (value["kind"], value["apiVersion"]) == ("Policy", "v1")
    [extender] = value["extenders"]
    found = extender["urlPrefix"], extender["enableHttps"], extender["tlsConfig"]
    assert found == (f"{url}/gpushare-scheduler", True, tls)
    assert (extender["httpTimeout"], "enableHTTPS" in extender) == (5_000_000_000, False)


def test_whole_gpus_are_sent_to_the_extender_only_where_they_are_this_projects() -> None:
    def managed(value: dict[str, Any]) -> list[str]:
        [extender] = value["extenders"]
        return [resource["name"] for resource in extender["managedResources"]]

    shared = ["aliyun.com/gpu-mem", "nano-gpu/gpu-percent"]
    assert managed(configuration()) == managed(policy()) == shared
    assert managed(configuration(whole_gpus=True)) == managed(policy(whole_gpus=True)) == [*shared, "nvidia.com/gpu"]


def test_a_policy_file_is_read_by_old_releases_and_leaves_the_in_tree_predicates_at_their_defaults() -> None:
    assert policy(ServerVersion(1, 22)).keys() == {"kind", "apiVersion", "extenders"}
    [extender] = policy(ServerVersion(1, 16))["extenders"]
    assert (extender["bindVerb"], extender["preemptVerb"]) == ("bind", "preempt")


def test_flags_say_what_a_policy_file_cannot(told: Told) -> None:
    server = ServerVersion(1, 20)
    assert scheduler_config.policy_flags(Options(server=server, scheduler_name="", kubeconfig="/k")) == told()
    assert scheduler_config.policy_flags(Options(server=server))[3:] == told()


OTHERS = {
    "urlPrefix": "http://gpushare-controller.gpushare-system.svc:12345/gpushare-scheduler",
    "prioritizeVerb": names.OTHERS_VERB,
    "weight": 9,
    "enableHTTPS": False,
    "nodeCacheCapable": True,
    "ignorable": True,
    "httpTimeout": "0.5s",
}
"""No managed resources: kube-scheduler asks it about every pod. No other verb: it keeps no pod from anything."""


def test_a_second_entry_ranks_pods_without_gpus_and_does_nothing_else() -> None:
    first, second = configuration(others_weight=9)["extenders"]
    assert [first] == configuration()["extenders"]
    assert second == OTHERS
    assert policy(others_weight=9)["extenders"][1] == {
        **{key: value for key, value in OTHERS.items() if key != "enableHTTPS"},
        "enableHttps": False,
        "httpTimeout": 500_000_000,
    }


def lead_of_the_best() -> int:
    """By as much as the controller's best node is ahead of the next one, where that is as good."""
    best, other = costs.grades_of([NodeName("a"), NodeName("b")], [(5, 0, 0)] * 2)
    return best - other


@pytest.mark.parametrize(
    ("found", "plugins", "most"),
    [
        (configuration(), kube_scores.UNASKED, 500),
        (policy(), kube_scores.UNASKED_BY_POLICY_FILE, 600),
        (configuration(weight=76), {**kube_scores.UNASKED, **kube_scores.PREFERENCES}, 1500),  # as --help says
    ],
)
def test_the_controllers_best_node_wins_against_all_that_kube_scheduler_adds_by_itself(
    found: dict[str, Any], plugins: Mapping[str, int], most: int
) -> None:
    """Source: default weights of kube-scheduler, and how it adds up scores: see the module."""
    [extender] = found["extenders"]
    assert kube_scores.points(plugins) == most
    assert 10 * lead_of_the_best() * extender["weight"] > most
    assert 10 * lead_of_the_best() * (extender["weight"] - 1) <= most, "no more than is needed"


def test_fuller_nodes_come_first_in_the_words_of_each_release() -> None:
    [profile] = configuration(most_allocated=True)["profiles"]
    resources = [{"name": name, "weight": 1} for name in ("cpu", "memory")]
    strategy = {"scoringStrategy": {"type": "MostAllocated", "resources": resources}}
    assert profile["pluginConfig"] == [{"name": "NodeResourcesFit", "args": strategy}]
    assert configuration(ServerVersion(1, 22), most_allocated=True)["profiles"] == [profile]
    assert configuration(ServerVersion(1, 21), most_allocated=True)["profiles"][0]["plugins"] == {
        "score": {
            "disabled": [{"name": "NodeResourcesLeastAllocated"}],
            "enabled": [{"name": "NodeResourcesMostAllocated", "weight": 1}],
        }
    }


def test_a_policy_file_that_changes_one_priority_names_all_of_them() -> None:
    named = {each["name"]: each["weight"] for each in policy(most_allocated=True)["priorities"]}
    aliyuns = orjson.loads(Path("tests/seeds/policy.cfg").read_bytes())["priorities"]
    assert named.keys() - {each["name"] for each in aliyuns} == {"MostRequestedPriority", "EvenPodsSpreadPriority"}
    assert "LeastRequestedPriority" not in named
    assert named["MostRequestedPriority"] == 1
    assert sum(named.values()) == 10_000 + 3 + 6, "preferred nodes to avoid, other preferences, and the rest"
    with pytest.raises(SettingsError, match=r"server version 1\.17: .* needs 1\.18 or newer"):
        policy(ServerVersion(1, 17), most_allocated=True)


@pytest.mark.parametrize(
    ("flags", "weights"),
    [
        ([], [26]),
        (["--weight", "1", "--whole-gpus"], [1]),
        (["--rank-others"], [26, 9]),
        (["--rank-others", "26"], [26, 26]),
    ],
)
def test_the_command_line_has_a_flag_for_each(
    flags: list[str], weights: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["scheduler-config", "--server-version", "v1.22.4", "--client-qps", "70", *flags]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert [each["weight"] for each in printed["extenders"]] == weights
    assert printed["apiVersion"] == "kubescheduler.config.k8s.io/v1beta2"
    assert printed["clientConnection"] == {"qps": 70, "burst": 140}
    managed = [each["name"] for each in printed["extenders"][0]["managedResources"]]
    assert (names.GPU in managed) == ("--whole-gpus" in flags)


@pytest.mark.parametrize("flag", ["--rank-others", "--most-allocated"])
def test_it_says_so_where_a_second_scheduler_has_no_pods_without_gpus(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = (
        "note: only pods that name the scheduler gpu are ranked by it; pods without GPUs usually go to the cluster's"
        " own, for which give --scheduler-name ''\n"
    )
    for name, expected in (("", ""), ("gpu", told)):
        assert cli.main(["scheduler-config", "--server-version", "1.36", "--scheduler-name", name, flag]) == 0
        assert capsys.readouterr().err == expected


@pytest.mark.parametrize("text", ["", "latest", "1", "v1.", "1.x", "1.30 or so", "1.30.2.2x y", "-1.30", "1,30"])
def test_text_that_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ServerVersion.parse(text)
    assert str(caught.value) == (f"server version {text!r}: write major and minor, such as 1.30 or v1.29.3+k3s1")


def test_a_request_that_makes_no_configuration_is_refused(told: Told) -> None:
    wrong: list[dict[str, Any]] = [
        {"server": ServerVersion(1, 18)},
        *({"url": url} for url in ("gpushare:12345", "http:///gpushare-scheduler", "http://a:b/", "http://a/?x=1")),
        {"url": "https://a/"},
        {"url": "http://a/", "ca_pem": PEM},
        {"url": f"{PROXY}/x", "ca_pem": PEM},
        {"url": "http://a/", "client_cert": "c", "client_key": "k"},
        {"url": "https://a/", "ca_pem": PEM, "client_key": "k"},
        {"url": "https://a/", "ca_pem": b"MIIB"},
        {"scheduler_name": "My Scheduler"},
        {"lease_name": ""},
        {"lease_namespace": "-x"},
    ]
    for options, message in zip(wrong, told(), strict=True):
        with pytest.raises(SettingsError) as caught:
            scheduler_config.configuration(Options(**{"server": V1, **options}))
        assert str(caught.value) == message


@pytest.mark.parametrize("minor", [23, 36])
def test_a_policy_file_is_refused_where_nothing_reads_it(minor: int) -> None:
    with pytest.raises(SettingsError) as caught:
        scheduler_config.policy(Options(server=ServerVersion(1, minor)))
    assert str(caught.value) == (
        f"server version 1.{minor}: policy files were removed in 1.23; leave out --kind policy to get a"
        " KubeSchedulerConfiguration"
    )
