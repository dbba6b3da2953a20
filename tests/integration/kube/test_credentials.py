"""A pod's service account is used, or kubeconfig files, which are one as for kubectl."""

import contextlib
import json
import os
import re
from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.kube import client, credentials
from testing.clock import ManualClock
from testing.fakes import kube_http
from testing.fakes.kube import FakeKube


def write(path: Path, name: str, *, is_current: bool = True, host: str = "") -> str:
    """A file with one cluster, user and context of that name."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"http://{host or name}:1"}}],
        "users": [{"name": name, "user": {"token": f"token-of-{host or name}", "client-certificate": str(path)}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name if is_current else "",
    }
    path.write_text(json.dumps(content))
    return str(path)


def joined(*paths: str) -> str:
    return os.pathsep.join(paths)


def test_contexts_of_all_files_can_be_chosen_and_the_first_current_one_counts(tmp_path: Path) -> None:
    paths = joined(write(tmp_path / "1", "a", is_current=False), write(tmp_path / "2", "b"), write(tmp_path / "3", "c"))
    assert credentials.of_kubeconfig(paths).server == "http://b:1"
    chosen = credentials.of_kubeconfig(paths, "c")
    assert (chosen.server, chosen.token_source()) == ("http://c:1", "token-of-c")
    secure = tmp_path / "3"
    secure.write_text(secure.read_text().replace("http:", "https:"))
    assert credentials.of_kubeconfig(paths, "c").cert_file == str(secure)


def test_the_first_of_two_entries_with_one_name_counts_and_missing_files_are_left_out(tmp_path: Path) -> None:
    paths = joined(write(tmp_path / "1", "a", host="first"), write(tmp_path / "2", "a", host="second"))
    assert credentials.of_kubeconfig(paths).server == "http://first:1"
    paths = joined(f"{tmp_path}/none", "", write(tmp_path / "1", "a"))
    assert credentials.of_kubeconfig(paths).server == "http://a:1"
    with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/x:{tmp_path}/y: no such file")):
        credentials.of_kubeconfig(joined(f"{tmp_path}/x", f"{tmp_path}/y"))


def test_a_file_that_is_no_kubeconfig_or_names_no_context_is_named(tmp_path: Path) -> None:
    for content in ["{", "", "[]", "text", "clusters: 5", "contexts: [{}]\ncurrent-context: a"]:
        (tmp_path / "config").write_text(content)
        named = re.escape(f"kubeconfig {tmp_path}/config: ")
        with pytest.raises(SettingsError, match=named):
            credentials.of_kubeconfig(f"{tmp_path}/config")
        with pytest.raises(SettingsError, match=named):
            credentials.namespace(f"{tmp_path}/config")
    for content in ["{", "[]", "text"]:
        (tmp_path / "config").write_text(content)
        with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/config: ")):
            credentials.context_name(f"{tmp_path}/config")


def test_the_namespace_is_the_contexts_as_kubectl_takes_it(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "a"), write(tmp_path / "b", "b", is_current=False)
    content = json.loads(Path(first).read_text())
    content["contexts"][0]["context"]["namespace"] = "ml"
    Path(first).write_text(json.dumps(content))
    both = os.pathsep.join([first, second])

    assert (credentials.context_name(both), credentials.context_name(both, "b"), credentials.context_name()) == (
        "a",
        "b",
        "",
    )
    assert credentials.namespace(both) == "ml"
    assert credentials.namespace(both, "b") == "default"


def test_a_kubeconfig_is_used_with_its_credentials_and_a_context_that_is_missing_is_named(tmp_path: Path) -> None:
    with kube_http.serving(FakeKube()) as url:
        (tmp_path / "config").write_text(kube_http.kubeconfig(url))
        with contextlib.closing(client.connect(f"{tmp_path}/config")) as rest:
            assert rest.get("/api/v1/nodes")["items"] == []
    with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/config: ")):
        client.connect(f"{tmp_path}/config", "no-such-context")


def test_a_pods_token_is_read_again_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("one\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    clock = ManualClock(0)
    found = credentials.of_pod(str(tmp_path), clock=clock)
    assert (found.server, found.ca_file) == ("https://[fd00::1]:443", str(tmp_path / "ca.crt"))
    assert found.token_source() == "one"
    (tmp_path / "token").write_text("two")
    clock.at = 59
    assert found.token_source() == "one"
    clock.at = 61
    assert found.token_source() == "two"


def test_outside_of_a_cluster_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig"):
        client.connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(SettingsError, match="no service account token; is automountServiceAccountToken off"):
        credentials.of_pod(str(tmp_path))
