"""Container images without a registry: docker-archive files written by hand, imported straight into containerd.

The same input gives the same bytes: entries are sorted and carry no time.
"""

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

APPLETS = (
    *("[", "ash", "awk", "base64", "basename", "cat", "chmod", "cp", "cut", "date", "dd", "df", "dirname", "du"),
    *("echo", "env", "expr", "false", "find", "free", "grep", "head", "hostname", "httpd", "id", "ip", "kill", "ln"),
    *("ls", "md5sum", "mkdir", "mknod", "mktemp", "mount", "mv", "nc", "netstat", "nproc", "nslookup", "ping"),
    *("pgrep", "printenv", "printf", "ps", "pwd", "rm", "rmdir", "sed", "seq", "sh", "sleep", "sort", "stat", "stty"),
    *("sync", "tail", "tar", "tee", "telnet", "test", "timeout", "top", "touch", "tr", "true", "umount", "uname"),
    *("uniq", "vi", "wc", "which", "whoami", "xargs", "yes"),
)

WAIT_SCRIPT = """\
#!/bin/sh
# The first process of a container ignores signals that it does not catch; without this, ending a pod takes 30 s.
trap 'exit 0' TERM INT
while :; do sleep 3600 & wait $!; done
"""
GET_SCRIPT = """\
#!/bin/sh
# http-get HOST PORT PATH: Debian 12's static busybox crashes in its own wget.
printf 'GET %s HTTP/1.0\\r\\nHost: %s\\r\\n\\r\\n' "$3" "$1" | nc -w 5 "$1" "$2"
"""
MINORS = (*range(12), *range(64, 68), *range(80, 84))
"""Of the device nodes that the image tries to open: simulated GPUs, and from 64 on MIG instances."""
DEVICES_SCRIPT = """\
#!/bin/sh
# Which device nodes are here, and which of simulated GPUs' (major number 60) the device cgroup lets a container open.
cd /tmp
nodes=
for node in /dev/* /dev/nvidia*/*; do
    if [ -L "$node" ]; then continue; fi
    case ${node#/dev/} in console|full|null|ptmx|random|tty|urandom|zero) continue ;; esac
    if [ -c "$node" ] || [ -b "$node" ]; then nodes="$nodes,${node#/dev/}"; fi
done
openable=
for minor in MINORS; do
    mknod probe-$minor c 60 $minor 2>/dev/null || { openable=,unknown; break; }
    # As no driver answers, an open that is allowed fails as well, but for another reason.
    case $( (: <probe-$minor) 2>&1 ) in *"not permitted") ;; *) openable="$openable,$minor" ;; esac
done
rm -f probe-*
echo "DEVICES=${nodes#,}"
echo "OPENABLE=${openable#,}"
""".replace("MINORS", " ".join(map(str, MINORS)))
PRINT_SCRIPT = WAIT_SCRIPT.replace("#!/bin/sh\n", "#!/bin/sh\n/print-devices\nenv | sort\n")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of an image: bytes, a file of the machine, or a link; a directory if none is given."""

    data: bytes | None = None
    source: Path | None = None
    link: str | None = None
    mode: int = 0o644

    @staticmethod
    def directory(mode: int = 0o755) -> "Entry":
        """A directory; parents of files need none of their own."""
        return Entry(mode=mode)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a container of an image starts unless its pod says otherwise."""

    entrypoint: Sequence[str] = ()
    cmd: Sequence[str] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    working_dir: str = "/"


def write_layer(path: Path, entries: Mapping[str, Entry]) -> Path:
    """Write the tar file of one layer; keys are absolute paths in the image."""
    complete = {**_parents(entries), **{name.strip("/"): entry for name, entry in entries.items()}}
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(complete):
            _add(archive, name, complete[name])
    partial.rename(path)
    return path


def write_image(path: Path, names: Sequence[str], layers: Sequence[Path], settings: Settings) -> Path:
    """Write a docker-archive file of layers made by ``write_layer``."""
    digests = [_sha256(layer) for layer in layers]
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Entrypoint": list(settings.entrypoint) or None,
            "Cmd": list(settings.cmd) or None,
            "Env": [f"{key}={value}" for key, value in {"PATH": ROOT_PATH, **settings.env}.items()],
            "User": settings.user,
            "WorkingDir": settings.working_dir,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    encoded = json.dumps(configuration, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    files = [f"{digest}.tar" for digest in digests]
    manifest = [{"Config": config_name, "RepoTags": list(names), "Layers": files}]
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, config_name, Entry(data=encoded))
        for name, layer in zip(files, layers, strict=True):
            _add(archive, name, Entry(source=layer))
        _add(archive, "manifest.json", Entry(data=json.dumps(manifest).encode()))
    partial.rename(path)
    return path


def busybox_image(
    path: Path,
    names: Sequence[str],
    busybox: Path,
    *,
    settings: Settings | None = None,
    files: Mapping[str, Entry] | None = None,
) -> Path:
    """Write a small image with a shell; by default it prints its environment, then waits to be ended.

    Like the images of CUDA it says ``NVIDIA_VISIBLE_DEVICES=all``, the trap for anything that only adds variables.
    """
    chosen = settings or Settings(entrypoint=["/print-environment"], env={"NVIDIA_VISIBLE_DEVICES": "all"})
    entries = {
        "/bin/busybox": Entry(source=busybox, mode=0o755),
        **{f"/bin/{applet}": Entry(link="busybox") for applet in APPLETS},
        "/print-devices": Entry(data=DEVICES_SCRIPT.encode(), mode=0o755),
        "/print-environment": Entry(data=PRINT_SCRIPT.encode(), mode=0o755),
        "/bin/http-get": Entry(data=GET_SCRIPT.encode(), mode=0o755),
        "/wait": Entry(data=WAIT_SCRIPT.encode(), mode=0o755),
        **account_files(),
        **(files or {}),
    }
    layer = write_layer(path.with_suffix(".layer"), entries)
    try:
        return write_image(path, names, [layer], chosen)
    finally:
        layer.unlink()


def pause_image(path: Path, name: str, busybox: Path) -> Path:
    """Write the image of the container that holds a pod's network namespace."""
    return busybox_image(path, [name], busybox, settings=Settings(entrypoint=["/wait"]))


def account_files() -> dict[str, Entry]:
    """Return what every image needs to start as root or as the user 65532."""
    passwd = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/home/nonroot:/bin/sh\n"
    return {
        "/etc/passwd": Entry(data=passwd.encode()),
        "/etc/group": Entry(data=b"root:x:0:\nnonroot:x:65532:\n"),
        "/etc/nsswitch.conf": Entry(data=b"hosts: files dns\n"),
        "/tmp": Entry.directory(0o1777),
        "/root": Entry.directory(),
        "/home/nonroot": Entry.directory(),
    }


def _parents(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    parents = {}
    for name in entries:
        for parent in Path(name.strip("/")).parents:
            if str(parent) != ".":
                parents[str(parent)] = Entry.directory()
    return parents


def _add(archive: tarfile.TarFile, name: str, entry: Entry) -> None:
    item = tarfile.TarInfo(name)
    item.mode = entry.mode
    if entry.link is not None:
        item.type, item.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(item)
    elif entry.data is not None:
        item.size = len(entry.data)
        archive.addfile(item, io.BytesIO(entry.data))
    elif entry.source is not None:
        item.size = entry.source.stat().st_size
        with entry.source.open("rb") as content:
            archive.addfile(item, content)
    else:
        item.type = tarfile.DIRTYPE
        archive.addfile(item)


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
