"""Read other packages than the machine's own from wherever it reads its own, without changing its configuration."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

OS_RELEASE = Path("/etc/os-release")
SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
UPDATE_S = 300


def private_lists(directory: Path, rewrite: Callable[[Path], str | None]) -> list[str]:
    """Fetch package lists into a directory; returns the options by which apt's tools use them instead of the machine's.

    Args:
        directory: where configuration and lists go.
        rewrite: what an entry of the machine's package sources says here; None if nothing.
    """
    parts, lists, cache = directory / "sources.list.d", directory / "lists", directory / "cache"
    for path in (parts, lists / "partial", cache / "archives/partial"):
        path.mkdir(parents=True, exist_ok=True)
    for entry in sorted(found for path in SOURCES for found in (path.glob("*") if path.is_dir() else [path])):
        if entry.is_file() and (text := rewrite(entry)):
            (parts / entry.name).write_text(text)
    options = [
        *("-o", "Dir::Etc::SourceList=/dev/null"),
        *("-o", f"Dir::Etc::SourceParts={parts}"),
        *("-o", f"Dir::State::Lists={lists}"),
        *("-o", f"Dir::Cache={cache}"),
        # The unprivileged download user may not enter a cache below somebody's home directory.
        *("-o", "APT::Sandbox::User=root"),
    ]
    # A third-party entry without such packages makes the update fail as a whole, though the lists that count
    # have arrived; whether they did shows in the next step.
    subprocess.run(["apt-get", *options, "update"], check=False, capture_output=True, timeout=UPDATE_S)
    return options


def source_packages(entry: Path) -> str | None:
    """What an entry of the machine's package sources says, for source packages; None if it is no entry."""
    if entry.suffix == ".sources":
        return re.sub(r"(?mi)^types:.*$", "Types: deb-src", entry.read_text())
    if entry.suffix == ".list":
        lines = [line for line in entry.read_text().splitlines() if re.match(r"deb\s", line)]
        return "".join("deb-src" + line.removeprefix("deb") + "\n" for line in lines)
    return None


def binary_packages(entry: Path) -> str | None:
    """What an entry of the machine's package sources says; None if it is no entry."""
    return entry.read_text() if entry.suffix in {".sources", ".list"} else None


def packages_of(entry: Path, codename: str, other: str) -> str | None:
    """What an entry says, for the packages of another release; None if it has none of the release `codename`.

    Of updates and security fixes nothing is taken: another release may name them differently.
    """
    if entry.suffix == ".sources":
        stanzas = re.split(r"\n\s*\n", entry.read_text())
        kept = [stanza for each in stanzas if (stanza := _stanza_of(each, codename, other)) is not None]
        return "\n\n".join(kept) or None
    if entry.suffix == ".list":
        pattern = re.compile(rf"(deb\s+(?:\[[^\]]*\]\s+)?\S+\s+){re.escape(codename)}(\s.*)")
        lines = [
            match.expand(rf"\g<1>{other}\g<2>")
            for line in entry.read_text().splitlines()
            if (match := pattern.match(line))
        ]
        return "".join(f"{line}\n" for line in lines) or None
    return None


def _stanza_of(stanza: str, codename: str, other: str) -> str | None:
    suites = re.search(r"(?mi)^suites:(.*)$", stanza)
    if suites is None or codename not in suites.group(1).split():
        return None
    binary = re.sub(r"(?mi)^types:.*$", "Types: deb", stanza)
    return re.sub(r"(?mi)^suites:.*$", f"Suites: {other}", binary).strip() + "\n"


def codename() -> str:
    """The machine's release, such as `bookworm`; empty if the distribution has none."""
    found = re.search(r'(?m)^VERSION_CODENAME="?([a-z]+)"?$', OS_RELEASE.read_text())
    return found.group(1) if found else ""
