"""Several kubeconfig files are one, as for kubectl."""

import json
import os
import re
from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.kube import client, config


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
    assert config.load(paths).server == "http://b:1"
    chosen = config.load(paths, "c")
    assert (chosen.server, chosen.token_source()) == ("http://c:1", "token-of-c")
    secure = tmp_path / "3"
    secure.write_text(secure.read_text().replace("http:", "https:"))
    assert config.load(paths, "c").cert_file == str(secure)


def test_the_first_of_two_entries_with_one_name_counts_and_missing_files_are_left_out(tmp_path: Path) -> None:
    paths = joined(write(tmp_path / "1", "a", host="first"), write(tmp_path / "2", "a", host="second"))
    assert config.load(paths).server == "http://first:1"
    paths = joined(f"{tmp_path}/none", "", write(tmp_path / "1", "a"))
    assert config.load(paths).server == "http://a:1"
    with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/x:{tmp_path}/y: no such file")):
        config.load(joined(f"{tmp_path}/x", f"{tmp_path}/y"))


def test_a_file_that_is_no_kubeconfig_or_names_no_context_is_named(tmp_path: Path) -> None:
    for content in ["{", "", "[]", "text", "clusters: 5", "contexts: [{}]\ncurrent-context: a"]:
        (tmp_path / "config").write_text(content)
        named = re.escape(f"kubeconfig {tmp_path}/config: ")
        with pytest.raises(SettingsError, match=named):
            config.load(f"{tmp_path}/config")
        with pytest.raises(SettingsError, match=named):
            config.namespace(f"{tmp_path}/config")
    for content in ["{", "[]", "text"]:
        (tmp_path / "config").write_text(content)
        with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/config: ")):
            client.context_name(f"{tmp_path}/config")


def test_the_namespace_is_the_contexts_as_kubectl_takes_it(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "a"), write(tmp_path / "b", "b", is_current=False)
    content = json.loads(Path(first).read_text())
    content["contexts"][0]["context"]["namespace"] = "ml"
    Path(first).write_text(json.dumps(content))
    both = os.pathsep.join([first, second])

    assert (client.context_name(both), client.context_name(both, "b"), client.context_name()) == ("a", "b", "")
    assert client.namespace(both) == "ml"
    assert client.namespace(both, "b") == "default"
