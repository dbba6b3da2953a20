"""Stands in for NVIDIA's container runtime in its CDI mode. Arguments: its configuration, runc, and those for runc.

It chooses the devices of a container as NVIDIA's does (nvidia-container-toolkit, internal/config/image), by its
configuration file: mounts of /dev/null before the variable, the variable only where that may count. Then it injects
them from CDI specs (JSON; hooks are left out) and becomes runc. Standard library only, as it is run by its path.
"""

import json
import os
import posixpath
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

Json = dict[str, Any]
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
ROOT = "/var/run/nvidia-container-devices"


class UnresolvableError(Exception):
    """A container asks for devices that no spec has."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Change the container that is to be created, and run it."""
    config, runc, *rest = arguments
    if "create" in rest:
        path = Path(rest[rest.index("--bundle") + 1]) / "config.json"
        try:
            changed = with_devices(json.loads(path.read_text()), tomllib.loads(Path(config).read_text()))
        except UnresolvableError as error:
            sys.exit(f"failed to inject CDI devices: {error}")
        path.write_text(json.dumps(changed))
    os.execv(runc, [runc, *rest])


def with_devices(container: Json, config: Mapping[str, Any]) -> Json:
    """A container's OCI configuration with the devices that it asks for.

    Raises:
        UnresolvableError: there are no such devices.
    """
    cdi = config["nvidia-container-runtime"]["modes"]["cdi"]
    wanted = [name if "=" in name else f"{cdi['default-kind']}={name or 'none'}" for name in visible(container, config)]
    known, ambiguous = specs(cdi["spec-dirs"])
    if unknown := [name for name in wanted if name not in known or name in ambiguous]:
        raise UnresolvableError(f"unresolvable CDI devices {', '.join(unknown)}")
    for edits in [edits for name in dict.fromkeys(wanted) for edits in known[name]]:
        inject(container, edits)
    return container


def visible(container: Json, config: Mapping[str, Any]) -> list[str]:
    """Names of the devices that a container asks for and may ask for."""
    cdi, process = config["nvidia-container-runtime"]["modes"]["cdi"], container["process"]
    prefixes = tuple(cdi.get("annotation-prefixes", ("cdi.k8s.io/",)))
    noted = sorted((container.get("annotations") or {}).items())
    if devices := [name for key, value in noted if key.startswith(prefixes) for name in value.split(",")]:
        return devices
    if config.get("accept-nvidia-visible-devices-as-volume-mounts") and (mounted := list(by_mounts(container))):
        return mounted
    trusted = "CAP_SYS_ADMIN" in ((process.get("capabilities") or {}).get("bounding") or ())
    if not trusted and not config.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True):
        return []
    return by_variables(dict(entry.split("=", 1) for entry in process.get("env") or ()), config)


def by_variables(env: Mapping[str, str], config: Mapping[str, Any]) -> list[str]:
    """What the variables say; an administrator may have named others, which count instead."""
    preferred = [name.strip() for name in str(config.get("swarm-resource", "")).split(",")]
    chosen = [name for name in preferred if name and name in env] or [VARIABLE]
    devices = [name.strip() for key in chosen for name in env.get(key, "").split(",") if name.strip()]
    if not any(key in env for key in chosen) and "CUDA_VERSION" in env and "NVIDIA_REQUIRE_CUDA" not in env:
        return ["all"]  # as images before 2017 expect
    if not devices or "void" in devices:
        return []
    return next(([each if each == "all" else ""] for each in devices if each in {"all", "none"}), devices)


def by_mounts(container: Json) -> Iterator[str]:
    """What mounts of /dev/null say."""
    destinations = [
        posixpath.normpath(mount["destination"])
        for mount in container.get("mounts") or ()
        if posixpath.normpath(mount.get("source") or ".") == "/dev/null"
    ]
    for path in dict.fromkeys(destinations):
        name = path.removeprefix(ROOT).strip("/") if path.startswith(ROOT) else ""
        qualified = name.removeprefix("cdi/").split("/", 2)
        if name.startswith("cdi/") and "=" not in name and len(qualified) == 3:
            name = f"{qualified[0]}/{qualified[1]}={qualified[2]}"
        if name and not name.startswith("imex/"):
            yield name.removeprefix("cdi/")


def specs(directories: Sequence[str]) -> tuple[dict[str, list[Json]], set[str]]:
    """Every device and its edits, those of its file first; and which no one can tell apart. Later directories count."""
    known: dict[str, list[Json]] = {}
    ambiguous = set[str]()
    for directory in directories:
        here = dict[str, list[Json]]()
        for path in sorted(Path(directory).glob("*.json")):
            spec = json.loads(path.read_text())
            for device in spec["devices"]:
                name = f"{spec['kind']}={device['name']}"
                (ambiguous.add if name in here else ambiguous.discard)(name)
                here[name] = [spec.get("containerEdits", {}), device["containerEdits"]]
        known |= here
    return known, ambiguous


def inject(container: Json, edits: Json) -> None:
    """Make the edits of one device."""
    process, linux = container["process"], container["linux"]
    names = {entry.split("=", 1)[0] for entry in edits.get("env", ())}
    process["env"] = [entry for entry in process["env"] if entry.split("=", 1)[0] not in names] + edits.get("env", [])
    for node in edits.get("deviceNodes", ()):
        numbers = {"type": node.get("type", "c"), "major": node["major"], "minor": node["minor"]}
        devices = linux.setdefault("devices", [])
        _replace(devices, "path", {"path": node["path"], **numbers, "fileMode": 0o666, "uid": 0, "gid": 0})
        allowed = linux.setdefault("resources", {}).setdefault("devices", [])
        allowed.append({"allow": True, **numbers, "access": node.get("permissions", "rwm")})
    for mount in edits.get("mounts", ()):
        made = {"destination": mount["containerPath"], "source": mount["hostPath"], "type": mount.get("type", "bind")}
        _replace(container["mounts"], "destination", {**made, "options": mount.get("options", ["rbind"])})


def _replace(listed: list[Json], key: str, one: Json) -> None:
    is_other: Callable[[Json], bool] = lambda each: each[key] != one[key]  # noqa: E731 - shorter than a function
    listed[:] = [*filter(is_other, listed), one]


if __name__ == "__main__":
    main(sys.argv[1:])
