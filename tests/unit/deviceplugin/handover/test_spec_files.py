"""CDI specs that others have written, on this node's disk."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.handover import spec_files
from deviceplugin.handover.spec_files import SpecReader
from testing.deviceplugin import nvidia
from testing.deviceplugin.build import fields_of


@pytest.fixture
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("etc")


@pytest.fixture
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture
def reader(static: Path, dynamic: Path) -> SpecReader:
    return SpecReader(directories=(static, dynamic), own=dynamic)


def put(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document))
    path.chmod(0o644)
    return path


OWN = f"gpushare.dev-share_uid_c{'0' * 16}-{{:016}}.json"


def problems(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(Path(said["path"]).name, said["error"]) for said in fields_of(caplog, "spec unreadable")]


def test_json_and_yaml_of_all_directories_are_read_the_last_directory_first(
    reader: SpecReader, static: Path, dynamic: Path
) -> None:
    put(static / "nvidia.yaml", nvidia.BY_UUID)
    put(dynamic / "management.json", nvidia.ONLY_ALL)
    put(dynamic / "nvidia.yaml", nvidia.BY_INDEX)
    assert [(spec.path, spec.kind) for spec in reader.specs()] == [
        (dynamic / "management.json", "management.nvidia.com/gpu"),
        (dynamic / "nvidia.yaml", "nvidia.com/gpu"),
        (static / "nvidia.yaml", "nvidia.com/gpu"),
    ]


def test_other_files_and_directories_are_passed_over_and_what_stands_for_something_else_is_not_kept(
    reader: SpecReader, dynamic: Path
) -> None:
    put(dynamic / "nvidia.yml", nvidia.BY_UUID)
    put(dynamic / ".gpushare-1.tmp", nvidia.BY_UUID)
    (dynamic / "sub").mkdir()
    put(dynamic / "sub" / "nvidia.yaml", nvidia.BY_UUID)
    for name, kind in (("claim", "k8s.gpu.nvidia.com/claim"), ("other", "example.com/gpu")):
        put(dynamic / f"{name}.json", nvidia.document(nvidia.device("x"), kind=kind))
    assert reader.specs() == []
    put(dynamic / "forged.json", nvidia.document(nvidia.device("x"), kind="gpushare.dev/share"))
    assert [spec.path.name for spec in reader.specs()] == ["forged.json"]


def test_what_this_plugin_wrote_is_not_read_but_only_where_it_writes_whatever_that_is_called(
    reader: SpecReader, static: Path, dynamic: Path, tmp_path: Path
) -> None:
    own = nvidia.document(nvidia.device("c", nvidia.node(0)), kind="gpushare.dev/share")
    put(dynamic / OWN.format(1), own)
    put(static / OWN.format(1), own)
    assert [spec.path for spec in reader.specs()] == [static / OWN.format(1)]
    put(dynamic / "nvidia.json", nvidia.BY_UUID)
    reader.own = link = tmp_path / "link"
    link.symlink_to(dynamic)
    for directories in ((link, dynamic, tmp_path / "none"), (dynamic, link)):
        reader.directories = directories
        assert [spec.path.name for spec in reader.specs()] == ["nvidia.json"]


def test_a_file_is_read_again_when_it_changes_and_forgotten_when_it_is_gone(
    reader: SpecReader, dynamic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    true_open = os.open

    def noting(path: Path, flags: int) -> int:
        opened.append(path)
        return true_open(path, flags)

    monkeypatch.setattr(os, "open", noting)
    file = put(dynamic / "nvidia.json", nvidia.BY_UUID)
    assert len(reader.specs()) == len(reader.specs()) == 1
    assert len(opened) == 1
    put(dynamic / "nvidia.json", nvidia.ONLY_ALL)
    assert reader.specs()[0].kind == "management.nvidia.com/gpu"
    file.unlink()
    assert reader.specs() == []


BOUNDS = "tags, aliases, more than 32 levels or more than 100000 values"
ALIASES = "kind: nvidia.com/gpu\ndevices: &d [{name: '0'}]\nother: *d\n"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.json", "{", "not JSON (JSONDecodeError)"),
        ("a.json", "[" * 100_000, "not JSON (JSONDecodeError)"),
        ("a.json", "\xff", "not JSON (JSONDecodeError)"),
        ("a.yaml", "a: [", "not YAML (ParserError)"),
        ("a.yaml", "\x00", "not YAML (ReaderError)"),
        ("a.yaml", "[" * 33, BOUNDS),
        ("a.yaml", ALIASES, BOUNDS),
        ("a.yaml", BOMB, BOUNDS),
        ("a.yaml", "[" + "0," * 100_001 + "]", BOUNDS),
        ("a.yaml", "kind: !!python/object/apply:os.system [id]\n", BOUNDS),
        ("a.yaml", "kind: !!int ''\n", BOUNDS),
        ("a.yaml", "kind: !!timestamp x\n", BOUNDS),
        ("a.yaml", "kind: !!set {a}\n", BOUNDS),
        ("a.yaml", "kind: " + "1:" * 200 + "1.0\n", "not YAML (OverflowError)"),
        ("a.yaml", "kind: 2026-13-01\n", "not YAML (ValueError)"),
        ("a.yaml", "kind: 2026-01-01\n", "kind: expected a string, found a date"),
        ("a.yaml", "", "expected an object, found nothing"),
        ("a.json", " " * (1024 * 1024) + "{}", "larger than 1048576 bytes"),
    ],
    ids=range(18),
)
def test_broken_and_malicious_files_are_logged_once_and_passed_over(
    reader: SpecReader, dynamic: Path, caplog: pytest.LogCaptureFixture, name: str, text: str, error: str
) -> None:
    (dynamic / name).write_bytes(text.encode("latin-1"))
    put(dynamic / "good.yaml", nvidia.ONLY_ALL)
    for _ in range(3):
        assert [spec.path.name for spec in reader.specs()] == ["good.yaml"]
    assert problems(caplog) == [(name, error)]


def test_what_is_no_file_is_not_waited_for_and_a_link_to_a_good_one_is_followed(
    reader: SpecReader, static: Path, dynamic: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(dynamic / "a.json")
    (dynamic / "b.json").mkdir()
    (dynamic / "c.json").symlink_to(dynamic / "nowhere")
    (dynamic / "d.json").symlink_to("/dev/zero")
    (dynamic / "e.json").symlink_to(dynamic / "e.json")
    assert reader.specs() == []
    assert problems(caplog) == [(f"{name}.json", "not a regular file") for name in "abd"]
    (dynamic / "link.yaml").symlink_to(put(static / "real", nvidia.BY_UUID))
    assert [spec.path for spec in reader.specs()] == [dynamic / "link.yaml"]


CHMOD = "users other than root may write to it; if its content is right, run chmod 0644 on it"
CHOWN = "it belongs to user 1000; if its content is right, run chown root on it"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    ("mode", "user", "problem"), [(0o666, 0, CHMOD), (0o664, 0, CHMOD), pytest.param(0o644, 1000, CHOWN, marks=ROOT)]
)
def test_a_file_that_others_than_root_may_write_is_not_believed(
    reader: SpecReader, dynamic: Path, caplog: pytest.LogCaptureFixture, mode: int, user: int, problem: str
) -> None:
    file = put(dynamic / "nvidia.json", nvidia.BY_UUID)
    file.chmod(mode)
    if user:
        os.chown(file, user, 0)
    assert reader.specs() == []
    assert problems(caplog) == [("nvidia.json", problem)]
    file.chmod(0o644)
    if user:
        os.chown(file, 0, 0)
    assert len(reader.specs()) == 1


def test_a_file_that_could_not_be_opened_for_a_moment_is_read_at_the_next_look(
    reader: SpecReader, dynamic: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(dynamic / "nvidia.json", nvidia.BY_UUID)

    def unopened(_path: Path, _flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as at_first:
        at_first.setattr(os, "open", unopened)
        assert reader.specs() == reader.specs() == []
    assert problems(caplog) == [("nvidia.json", "[Errno 24] Too many open files")]
    assert len(reader.specs()) == 1


def test_many_large_files_do_not_fill_the_memory(
    reader: SpecReader, dynamic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [put(dynamic / f"{i}.json", nvidia.BY_UUID).stat().st_size for i in range(4)]
    monkeypatch.setattr(spec_files, "_LARGEST_TOGETHER", sizes[0] * 2)
    for _ in range(2):
        assert [spec.path.name for spec in reader.specs()] == ["0.json", "1.json"]


def test_a_directory_full_of_files_is_read_in_part_but_however_many_of_them_this_plugin_wrote(
    reader: SpecReader, dynamic: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec_files, "_FILES", 3)
    for i in range(5):
        (dynamic / OWN.format(i)).touch()
    put(dynamic / "nvidia.yaml", nvidia.BY_UUID)
    assert [spec.path.name for spec in reader.specs()] == ["nvidia.yaml"]
    assert fields_of(caplog, "specs left out") == []
    for i in range(4):
        put(dynamic / f"{i}.json", nvidia.ONLY_ALL)
    assert len(reader.specs()) == len(reader.specs()) == 3
    assert [said["files"] for said in fields_of(caplog, "specs left out")] == [5]
