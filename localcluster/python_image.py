"""An image of this project without a registry: the Python that runs here, what the project needs, and its sources.

Two layers: the interpreter with its libraries and the needed distributions, which is cached, and the source trees,
which change. All modules are compiled beforehand, for a container with a read-only root could not keep the result.
"""

import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import marshal
import multiprocessing
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from localcluster import images, provision
from localcluster.images import Entry
from localcluster.process import clean_environment

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
INTERPRETER = f"/usr/local/bin/{VERSION}"
STANDARD_LIBRARY = f"/usr/local/lib/{VERSION}"
"""Always below /usr/local, wherever the machine has its Python: the interpreter looks for its library beside itself."""

DISTRIBUTIONS = "/app/site-packages"
SOURCES = "/app"
NONROOT = "65532:65532"
LIBRARY_PREFIXES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
UNUSED_LIBRARIES = "/usr/local/lib"
"""Where libraries go that the dynamic linker would not find, such as those of a Python in a home directory."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LEFT_OUT_DIRECTORIES = frozenset(
    {
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "lib2to3",
        "site-packages",
        "dist-packages",
        "pydoc_data",
    }
)
LEFT_OUT_MODULES = ("kubernetes/aio/", "kubernetes/docs/", "kubernetes/test/")
"""Large parts of distributions that the project does not import: 60 MB of a second, asynchronous client."""

LEFT_OUT_SUFFIXES = (".a", ".pyc", ".pyo", ".pyx", ".pxd", ".c", ".h", ".pyi", ".exe")
LEFT_OUT_PREFIXES = ("config-", "_tkinter", "_test", "turtle.py")


def python_image(
    path: Path,
    names: Sequence[str],
    trees: Sequence[Path],
    *,
    requirements: Sequence[str],
    settings: images.Settings,
    files: Mapping[str, Entry] | None = None,
    say: provision.Say = provision.say_nothing,
) -> Path:
    """Write an image with the running Python.

    Args:
        path: The docker-archive file to write.
        names: Full names of the image, with tags.
        trees: Package directories to copy below /app, which is on the module path.
        requirements: Names of installed distributions to take along, with all that they require.
        settings: How containers start; variables that Python needs are added, and the user is 65532 unless given.
        files: More files.
        say: Called with one line of progress at a time.
    """
    started = time.monotonic()
    base = _base_layer(requirements, say)
    entries = {**(files or {})}
    for tree in trees:
        entries.update(_tree(tree, f"{SOURCES}/{tree.name}", lambda name: name == "__pycache__"))
    entries.update(_compiled(entries))
    sources = images.write_layer(path.with_suffix(".layer"), entries)
    try:
        images.write_image(path, names, [base, sources], _complete(settings))
    finally:
        sources.unlink()
    size = path.stat().st_size / 1e6
    say(f"Python image: {size:.0f} MB, {time.monotonic() - started:.1f} s")
    return path


def _complete(settings: images.Settings) -> images.Settings:
    environment = {
        "PATH": images.ROOT_PATH,
        "PYTHONPATH": f"{SOURCES}:{DISTRIBUTIONS}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": UNUSED_LIBRARIES,
        "SSL_CERT_FILE": str(CERTIFICATES),
        **settings.env,
    }
    return dataclasses.replace(settings, env=environment, user=settings.user or NONROOT)


def closure(requirements: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """Return the named distributions and everything that they require on this machine, by name."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    waiting = [_canonical(name) for name in requirements]
    while waiting:
        name = waiting.pop()
        if name in distributions:
            continue
        try:
            distributions[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            # A requirement for another system or Python version; one that is needed fails at its import.
            continue
        texts = distributions[name].requires or []
        waiting.extend(_canonical(text) for text in texts if "extra ==" not in text)
    return [distributions[name] for name in sorted(distributions)]


def _canonical(requirement: str) -> str:
    matched = re.match(r"[A-Za-z0-9._-]+", requirement)
    if matched is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", matched.group()).lower()


def _base_layer(requirements: Sequence[str], say: provision.Say) -> Path:
    distributions = closure(requirements)
    described = [sys.version, sys.base_prefix, _own_digest()]
    described += [f"{each.name} {each.version} {each.locate_file('')}" for each in distributions]
    key = hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]
    directory = provision.cache_directory() / "images"
    path = directory / f"python-{key}.tar"
    with provision.locked(directory / "python.lock", say):
        if path.exists():
            return path
        for old in directory.glob("python-*.tar"):
            # Several virtual environments may alternate; what no one used for a day goes.
            if old.stat().st_atime < time.time() - 86400:
                old.unlink()
        started = time.monotonic()
        entries = {**images.account_files(), **_interpreter(), **_distributions(distributions)}
        entries.update(libraries(entries))
        entries.update(_compiled(entries))
        if CERTIFICATES.exists():
            entries[str(CERTIFICATES)] = Entry(source=CERTIFICATES)
        images.write_layer(path, entries)
    say(f"Python base layer of {len(distributions)} distributions: {time.monotonic() - started:.1f} s, kept for later")
    return path


def _own_digest() -> str:
    """Identify this code, for a change here makes other layers."""
    return hashlib.sha256(Path(__file__).read_bytes() + Path(images.__file__).read_bytes()).hexdigest()


def _interpreter() -> dict[str, Entry]:
    # Not sys.executable: a virtual environment's is a link with other ideas about its prefix.
    program = Path(sys.base_prefix, "bin", VERSION).resolve()
    entries = {INTERPRETER: Entry(source=program, mode=0o755)}
    entries |= {f"/usr/local/bin/{name}": Entry(link=VERSION) for name in ("python", "python3")}
    for key in ("stdlib", "platstdlib"):
        # The directories of the base, seen also from within a virtual environment.
        variables = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
        directory = Path(sysconfig.get_path(key, vars={**variables, "installed_platbase": sys.base_exec_prefix}))
        entries.update(_tree(directory, STANDARD_LIBRARY, _left_out_of_library))
    return entries


def _tree(top: Path, inside: str, left_out: Callable[[str], bool]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for directory, directories, names in os.walk(top):
        directories[:] = [name for name in directories if not left_out(name)]
        for name in names:
            if not left_out(name):
                path = Path(directory, name)
                entries[f"{inside}/{path.relative_to(top)}"] = Entry(source=path.resolve())
    return entries


def _left_out_of_library(name: str) -> bool:
    if name in LEFT_OUT_DIRECTORIES:
        return True
    return name.endswith(LEFT_OUT_SUFFIXES) or name.startswith(LEFT_OUT_PREFIXES)


def _distributions(distributions: Sequence[importlib.metadata.Distribution]) -> dict[str, Entry]:
    entries = {}
    for distribution in distributions:
        for file in distribution.files or []:
            # Scripts and manual pages lie beside site-packages, not in it.
            if ".." in file.parts or "__pycache__" in file.parts or file.name.endswith(LEFT_OUT_SUFFIXES):
                continue
            if file.as_posix().startswith(LEFT_OUT_MODULES):
                continue
            source = Path(str(distribution.locate_file(file)))
            if source.is_file():
                entries[f"{DISTRIBUTIONS}/{file}"] = Entry(source=source.resolve())
    return entries


def libraries(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the shared libraries that the interpreter and all extension modules are linked with."""
    binaries = [
        str(entry.source)
        for name, entry in entries.items()
        if entry.source is not None and (name == INTERPRETER or ".so" in Path(name).name)
    ]
    done = subprocess.run(
        ["ldd", *binaries], check=False, capture_output=True, text=True, timeout=120, env=clean_environment()
    )
    present = {Path(name).name for name in entries}
    libraries: dict[str, Entry] = {}
    for line in done.stdout.splitlines():
        matched = re.match(r"\s+(?:\S+ => )?(/\S+) \(0x", line)
        if matched is None or Path(matched.group(1)).name in present:
            continue
        path = Path(matched.group(1))
        standard = str(path).startswith(LIBRARY_PREFIXES)
        inside = str(path) if standard else f"{UNUSED_LIBRARIES}/{path.name}"
        libraries[inside] = Entry(source=path.resolve(), mode=0o755)
    return libraries


def _compiled(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    modules = [(name, str(entry.source)) for name, entry in entries.items() if name.endswith(".py") and entry.source]
    batches = list(_batches(modules, 200))
    files: dict[str, Entry] = {}
    # Not forked: the process may have threads already, of which a fork would copy the locks only.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=context) as pool:
        for compiled in pool.map(_compile, batches):
            files.update({name: Entry(data=data) for name, data in compiled})
    return files


def _batches(items: list[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _compile(modules: list[tuple[str, str]]) -> list[tuple[str, bytes]]:
    """Compile modules into the form that is never compared with its source: the image keeps no file times."""
    compiled = []
    for name, source in modules:
        data = Path(source).read_bytes()
        try:
            code = compile(data, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            # Templates and samples for other versions of Python; no one imports them.
            continue
        # The head of a cache file: the magic number, "hash, unchecked", the hash of the source.
        head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(data)
        compiled.append((importlib.util.cache_from_source(name), head + marshal.dumps(code)))
    return compiled
