"""Every command that prints JSON prints the same as YAML."""

import json
from pathlib import Path

import pytest
import yaml

from gpushare_cli import __main__ as cli
from gpushare_cli.__main__ import command_line
from testing.builders import make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import reached
from testing.cli.doctor_cluster import DoctorKube
from testing.cli.draining import owned
from testing.cli.podding import bound, mutated

MANIFEST = """apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 15}}}]}
"""
PROFILE = "gpus: [{model: Tesla T4, memoryMiB: 15360, count: 2}]"
COMMANDS = {
    "inspect": ["--limits"],
    "explain": ["web"],
    "simulate": ["-f", "pod.yaml", "--profile", "profile.yaml"],
    "doctor": [],
    "drain": ["node-a/0", "--dry-run"],
    "defrag": ["-f", "pod.yaml"],
}


def test_every_command_with_json_is_here() -> None:
    (commands,) = (action.choices for action in command_line()._actions if isinstance(action.choices, dict))
    with_json = {name for name, parser in commands.items() if "json" in parser.format_usage()}
    assert with_json == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_yaml_says_what_json_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = DoctorKube()
    kube.seed("/api/v1/nodes", make_node(make_inventory(15, 15)))
    for pod in owned(bound("web", make_grant(0))), mutated(make_pod(make_container(gpu_mem=20), name="waits")):
        kube.seed("/api/v1/namespaces/default/pods", pod)
    reached(monkeypatch, kube)
    (tmp_path / "pod.yaml").write_text(MANIFEST)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)

    codes = cli.main([name, *COMMANDS[name], "-o", "json"]), cli.main([name, *COMMANDS[name], "-o", "yaml"])

    out = capsys.readouterr().out
    as_json, decoder = out.lstrip(), json.JSONDecoder()
    value, end = decoder.raw_decode(as_json)
    assert codes[0] == codes[1]
    assert value
    assert yaml.safe_load(as_json[end:]) == value
