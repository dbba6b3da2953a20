"""What stands in for NVIDIA's runtime chooses the devices that NVIDIA's own does.

With GPUSHARE_NVIDIA_RUNTIME, the path of NVIDIA's own nvidia-container-runtime, every case is tried with that too.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from localcluster import nvidia_runtime
from testing import skips

Json = dict[str, Any]
REAL: Final = os.environ.get("GPUSHARE_NVIDIA_RUNTIME", "")
ROOT: Final = nvidia_runtime.ROOT
ALL, NONE, REFUSED = (0, 1, 2), (), None
CONFIG: Final = """\
accept-nvidia-visible-devices-envvar-when-unprivileged = {by_variable}
accept-nvidia-visible-devices-as-volume-mounts = {by_mounts}
swarm-resource = "DOCKER_RESOURCE_GPU"
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["/bin/true"]
[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["{specs}"]
annotation-prefixes = ["cdi.k8s.io/"]
"""


def node(minor: int) -> Json:
    return {"path": f"/dev/nvidia{minor}", "type": "c", "major": 60, "minor": minor}


def device(name: str, *minors: int) -> Json:
    return {"name": name, "containerEdits": {"deviceNodes": [node(minor) for minor in minors]}}


SPEC: Final[Json] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        *(device(str(minor), minor) for minor in ALL),
        *(device(f"GPU-{minor}", minor) for minor in ALL),
        device("all", *ALL),
    ],
    "containerEdits": {"env": ["FROM_THE_SPEC=1"]},
}
SHARE: Final[Json] = {"cdiVersion": "0.5.0", "kind": "gpushare.dev/share", "devices": [device("abc", 1)]}


def case(
    seen: tuple[int, ...] | None,
    said: str | None = None,
    *,
    env: Mapping[str, str] = {},
    mounts: Sequence[tuple[str, str]] = (),
    marks: Mapping[str, str] = {},
    caps: Sequence[str] = (),
    by_variable: bool = True,
    by_mounts: bool = False,
) -> tuple[Json, bool, bool, tuple[int, ...] | None]:
    """A container, how the runtime is set up, and which GPUs the container sees; None if it is refused."""
    own = {} if said is None else {"NVIDIA_VISIBLE_DEVICES": said}
    made = {
        "ociVersion": "1.0.2",
        "process": {
            **{"args": ["x"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "env": [f"{key}={value}" for key, value in {**env, **own}.items()],
            "capabilities": {"bounding": list(caps)},
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": to, "type": "bind", "source": source, "options": ["bind"]} for source, to in mounts],
        "annotations": dict(marks),
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }
    return made, by_variable, by_mounts, seen


def null(path: str) -> tuple[str, str]:
    return "/dev/null", path


CASES: Final = [
    case(ALL, "all"),
    case((0,), "0"),
    case((0, 2), "0,GPU-2"),
    case((0, 2), " 0 , 2 "),
    case((1,), "nvidia.com/gpu=1"),
    case((1,), "gpushare.dev/share=abc"),
    case(NONE, "void"),
    case(NONE, ""),
    case(NONE, "all,void"),
    case(ALL, "0,all"),
    case(REFUSED, "none"),
    case(REFUSED, "GPU-9"),
    case(REFUSED, "management.nvidia.com/gpu=all"),
    case(NONE),
    case(ALL, env={"CUDA_VERSION": "9.0"}),
    case(NONE, env={"CUDA_VERSION": "9.0", "NVIDIA_REQUIRE_CUDA": "cuda>=9"}),
    case(NONE, "void", env={"CUDA_VERSION": "9.0"}),
    case((2,), "0", env={"DOCKER_RESOURCE_GPU": "GPU-2"}),
    case(ALL, "void", env={"DOCKER_RESOURCE_GPU": "all"}),
    case(NONE, "all", by_variable=False),
    case(ALL, "all", by_variable=False, caps=["CAP_SYS_ADMIN"]),
    case(NONE, "void", mounts=[null(f"{ROOT}/all")]),
    case(ALL, "void", mounts=[null(f"{ROOT}/all")], by_mounts=True),
    case(ALL, mounts=[null(f"{ROOT}all")], by_mounts=True, by_variable=False),
    case(ALL, mounts=[null("/var/run/x/../nvidia-container-devices//all")], by_mounts=True),
    case((1,), "all", mounts=[null(f"{ROOT}/1")], by_mounts=True),
    case((1,), "all", mounts=[null(f"{ROOT}/cdi/gpushare.dev/share/abc")], by_mounts=True),
    case((1,), mounts=[null(f"{ROOT}/cdi/gpushare.dev/share=abc")], by_mounts=True),
    case((1, 2), mounts=[null(f"{ROOT}/cdi/gpushare.dev/share/abc"), null(f"{ROOT}/2")], by_mounts=True),
    case(NONE, mounts=[("/etc/hosts", f"{ROOT}/all")], by_mounts=True),
    case(NONE, mounts=[null("/run/nvidia-container-devices/all")], by_mounts=True),
    case(NONE, mounts=[null(ROOT)], by_mounts=True),
    case(REFUSED, mounts=[null(f"{ROOT}/cdi/gpushare.dev/share/other")], by_mounts=True),
    case(ALL, "void", marks={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    case(NONE, marks={"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}),
]


def created(directory: Path, command: Sequence[str], made: Json, environment: Mapping[str, str]) -> Json | None:
    """The container as runc would get it; None if it is not created."""
    (directory / "config.json").write_text(json.dumps(made))
    argv = [*command, "create", "--bundle", str(directory), "x"]
    done = subprocess.run(argv, env=dict(environment), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or "unresolvable CDI devices" in done.stderr, done.stderr
    return json.loads((directory / "config.json").read_text()) if done.returncode == 0 else None


def shown(made: Json) -> tuple[int, ...]:
    """Minor numbers of the device nodes, which the device cgroup must allow."""
    numbers = [(each["major"], each["minor"]) for each in made["linux"].get("devices", ())]
    rules = made["linux"]["resources"]["devices"]
    assert {(rule["major"], rule["minor"]) for rule in rules if rule["allow"]} == set(numbers)
    assert ("FROM_THE_SPEC=1" in made["process"].get("env", ())) <= bool(numbers)
    return tuple(sorted(minor for _, minor in numbers))


@pytest.mark.parametrize("runtime", ["stand-in", "nvidia"])
@pytest.mark.parametrize(("made", "by_variable", "by_mounts", "seen"), CASES)
def test_a_container_sees_what_it_would_see_under_nvidias_runtime(
    tmp_path: Path, made: Json, by_variable: bool, by_mounts: bool, seen: tuple[int, ...] | None, runtime: str
) -> None:
    if runtime == "nvidia" and not REAL:
        skips.expected("GPUSHARE_NVIDIA_RUNTIME names no runtime of NVIDIA's to compare with")
    specs, config = tmp_path / "specs", tmp_path / "nvidia-container-runtime/config.toml"
    specs.mkdir()
    config.parent.mkdir()
    for name, spec in (("nvidia", SPEC), ("share", SHARE)):
        (specs / f"{name}.json").write_text(json.dumps(spec))
    flags = {"by_variable": str(by_variable).lower(), "by_mounts": str(by_mounts).lower()}
    config.write_text(CONFIG.format(**flags, specs=specs))
    command, environment = [REAL], {"XDG_CONFIG_HOME": str(tmp_path), "PATH": os.defpath}
    if runtime == "stand-in":
        command, environment = [sys.executable, "-I", "-S", nvidia_runtime.__file__, str(config), "/bin/true"], {}
    found = created(tmp_path, command, made, environment)
    assert (None if found is None else shown(found)) == seen


def test_a_device_that_two_files_make_is_not_injected(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(SHARE))
    assert nvidia_runtime.specs([str(tmp_path)])[1] == {"gpushare.dev/share=abc"}
