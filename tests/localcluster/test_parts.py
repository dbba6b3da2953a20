"""The parts of the test cluster that decide something, without a cluster."""

import ipaddress
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster import apt, controlplane, dns, images, leftovers, network, node_files, process, provision
from localcluster.provision import ProvisionError, Version

SERVICE = {"metadata": {"namespace": "default", "name": "web"}, "spec": {"clusterIP": "10.9.8.7"}}
HEADLESS = {"metadata": {"namespace": "default", "name": "peers"}, "spec": {"clusterIP": "None"}}
ENDPOINTS = {
    "metadata": {"namespace": "default", "name": "peers"},
    "subsets": [{"addresses": [{"ip": "10.1.1.1", "hostname": "first"}, {"ip": "10.1.1.2"}]}],
}


def names() -> dns.Names:
    known = dns.Names()
    known.replace("services", [SERVICE, HEADLESS])
    known.replace("endpoints", [ENDPOINTS])
    return known


def query(name: str, kind: int = dns.TYPE_A) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, dns.CLASS_IN)


def asked(name: str, kind: int = dns.TYPE_A, known: dns.Names | None = None) -> tuple[int, list[str]]:
    """Return the code and the addresses of the answer."""
    reply = dns.answer(query(name, kind), known or names(), 512)
    identity, flags, _, count, _, _ = struct.unpack("!HHHHHH", reply[:12])
    assert identity == 7
    records = [reply[len(reply) - 16 * (number + 1) :][:16] for number in reversed(range(count))]
    return flags & 0xF, [str(ipaddress.ip_address(record[-4:])) for record in records]


def test_names_are_found_in_any_case() -> None:
    assert asked("Web.Default.svc.CLUSTER.local") == (dns.OK, ["10.9.8.7"])


def test_a_headless_service_has_the_addresses_of_its_pods() -> None:
    assert asked("peers.default.svc.cluster.local") == (dns.OK, ["10.1.1.1", "10.1.1.2"])
    assert asked("first.peers.default.svc.cluster.local") == (dns.OK, ["10.1.1.1"])


@pytest.mark.parametrize(
    "name",
    ["none.default.svc.cluster.local", "second.peers.default.svc.cluster.local", "web.default.svc", "example.com", "x"],
)
def test_other_names_do_not_exist(name: str) -> None:
    assert asked(name) == (dns.NO_SUCH_NAME, [])


def test_a_service_has_no_ipv6_address_but_exists() -> None:
    assert asked("web.default.svc.cluster.local", kind=28) == (dns.OK, [])


def test_before_the_first_list_the_answer_is_to_ask_again() -> None:
    assert asked("web.default.svc.cluster.local", known=dns.Names()) == (dns.SERVER_FAILURE, [])


def test_a_deleted_service_is_forgotten() -> None:
    known = names()
    known.change("services", "DELETED", SERVICE)
    assert asked("web.default.svc.cluster.local", known=known) == (dns.NO_SUCH_NAME, [])


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.20.2", "v1beta1"), ("1.22.0", "v1beta2"), ("1.24.1", "v1beta3"), ("1.25.0", "v1"), ("1.36.2", "v1")],
)
def test_the_scheduler_reads_the_newest_configuration_of_its_release(version: str, expected: str) -> None:
    assert controlplane.scheduler_api(Version.parse(version)) == expected


def test_versions_are_read_from_what_programs_print() -> None:
    assert Version.parse("Kubernetes v1.20.2-beta") == Version(1, 20, 2)
    assert Version(1, 9) < Version(1, 20)
    with pytest.raises(ProvisionError, match="no version"):
        Version.parse("unknown")


def test_no_address_of_the_plan_belongs_to_two() -> None:
    plan = network.AddressPlan(180)
    nodes = range(1, 20)
    single = [plan.host_ip, plan.api_ip, plan.dns_ip, *(plan.node_ip(number) for number in nodes)]
    subnets = [ipaddress.ip_network(plan.pod_subnet(number)) for number in nodes]
    subnets.append(ipaddress.ip_network(plan.service_cidr))
    assert len(set(single)) == len(single)
    for number, subnet in enumerate(subnets):
        assert subnet.subnet_of(ipaddress.ip_network(plan.cluster_cidr))  # type: ignore[arg-type]  # both are version 4
        assert not any(ipaddress.ip_address(address) in subnet for address in single)
        assert not any(subnet.overlaps(other) for other in subnets[:number])


def test_the_same_image_has_the_same_bytes(tmp_path: Path) -> None:
    program = tmp_path / "busybox"
    program.write_bytes(b"program")
    first = images.busybox_image(tmp_path / "a.tar", ["example/a:1"], program)
    program.touch()
    second = images.busybox_image(tmp_path / "b.tar", ["example/a:1"], program)
    assert first.read_bytes() == second.read_bytes()


def test_package_sources_are_read_from_where_packages_come_from(tmp_path: Path) -> None:
    entry = tmp_path / "a.sources"
    entry.write_text("Types: deb\nURIs: http://packages.invalid/\nSuites: stable\n")
    listed = tmp_path / "b.list"
    listed.write_text("# comment\ndeb [signed-by=/k.gpg] http://packages.invalid/ stable main\n")
    assert "Types: deb-src\nURIs: http://packages.invalid/" in (apt.source_packages(entry) or "")
    assert apt.source_packages(listed) == "deb-src [signed-by=/k.gpg] http://packages.invalid/ stable main\n"
    assert apt.source_packages(tmp_path / "c.disabled") is None


@pytest.mark.parametrize(("version", "configured"), [("1.20.2", False), ("1.36.2", True)])
def test_a_kubelet_gets_only_settings_that_its_release_knows(version: str, configured: bool) -> None:
    settings = node_files.settings_of(Version.parse(version))
    assert ("containerRuntimeEndpoint" in settings) is configured
    assert ("failCgroupV1" in settings) is configured


def test_a_process_id_of_somebody_else_is_told_apart() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = leftovers.start_time(child.pid)
        child.communicate(b"\n")
    assert started
    assert leftovers.start_time(child.pid) != started


def test_a_child_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    child = process.Process("child", [sys.executable, "-c", "raise SystemExit('the reason')"], tmp_path / "log")
    child.start()
    with pytest.raises(process.ClusterError, match="the reason"):
        process.wait_until(lambda: False, "never", 20, child)


def test_a_child_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = process.Process("child", [sys.executable, "-c", code], tmp_path / "log")
    child.start()
    process.wait_until(lambda: "up" in child.tail(), "up", 20, child)
    child.stop(grace_s=0.2)
    assert not child.alive


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["1.20.2"], None),
        (["1.20.2", "1.36.2", "1.9.11"], "1.36.2"),
        (["1.20.2", "1.36.2", "1.37.0-without-scheduler"], "1.36.2"),
        (["1.36.2"], "1.36.2"),
    ],
)
def test_a_newer_control_plane_is_one_in_the_cache_beside_that_of_the_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: list[str], expected: str | None
) -> None:
    """Only that of 1.20.2 has the programs of nodes too."""
    monkeypatch.setenv(provision.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(provision.ASSETS_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    for version in versions:
        number, _, lacking = version.partition("-without-")
        directory = tmp_path / f"kubernetes-{number}"
        directory.mkdir()
        for name in provision.KUBERNETES if number == "1.20.2" else provision.CONTROL_PLANE:
            if not lacking or not name.endswith(lacking):
                (directory / name).write_text(f"#!/bin/sh\necho Kubernetes v{number}\n")
                (directory / name).chmod(0o755)
    found = provision.newer_control_plane()
    assert (found.name if found else None) == (f"kubernetes-{expected}" if expected else None)
