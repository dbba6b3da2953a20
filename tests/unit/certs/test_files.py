import os
from datetime import timedelta
from pathlib import Path

import pytest

from certs import authority
from certs.store import FileStore, SecretData, pair_paths
from tests.unit.certs.conftest import START, verifies


def contents() -> SecretData:
    ca = authority.make_ca(now=START, life=timedelta(days=9))
    leaf = authority.make_leaf(ca, names=frozenset({"webhook.svc"}), now=START, life=timedelta(days=3))
    return SecretData(leaf=leaf, ca=ca)


FIRST, SECOND = contents(), contents()


def versions(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.name.startswith("..v-")}


def test_files_are_written_once_and_only_if_different(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "new" / "certs")
    assert [files.save(each) for each in (FIRST, FIRST, SECOND)] == [True, False, True]
    assert files.load().leaf.certificate == (files.directory / "tls.crt").read_bytes() == SECOND.leaf.certificate
    assert files.load().bundle == SECOND.bundle
    assert files.save(FIRST)  # whose version is still there
    assert files.load().leaf.key == FIRST.leaf.key
    FileStore(tmp_path).save(FIRST)
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600
    assert not any(FIRST.ca.key in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_reader_that_resolved_its_version_keeps_a_fitting_pair(tmp_path: Path) -> None:
    files = FileStore(tmp_path)
    files.save(FIRST)
    certificate, key = pair_paths(tmp_path)
    files.save(SECOND)
    assert certificate.read_bytes() == FIRST.leaf.certificate
    assert key.read_bytes() == FIRST.leaf.key
    assert verifies(tmp_path, SECOND.bundle, server="webhook.svc")


def test_old_versions_and_left_overs_are_cleared_away(tmp_path: Path) -> None:
    files = FileStore(tmp_path)
    (tmp_path / "..new-crashed").mkdir()
    (tmp_path / "..link-data").symlink_to("nowhere")
    used = list[str]()
    for time, each in enumerate((FIRST, SECOND, contents(), contents())):
        files.save(each)
        used.append((tmp_path / "..data").resolve().name)
        os.utime(tmp_path / used[-1], (time, time))
    assert versions(tmp_path) == set(used[-2:])
    assert not list(tmp_path.glob("..new-*"))


def test_plain_files_of_somebody_else_are_replaced(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("garbage")
    assert pair_paths(tmp_path) == (tmp_path / "tls.crt", tmp_path / "tls.key")
    FileStore(tmp_path).save(FIRST)
    assert verifies(tmp_path, FIRST.bundle, server="webhook.svc")


def test_an_interrupted_write_leaves_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileStore(tmp_path)
    files.save(FIRST)

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            files.save(SECOND)
    assert verifies(tmp_path, FIRST.bundle, server="webhook.svc")
    files.save(SECOND)
    assert verifies(tmp_path, SECOND.bundle, server="webhook.svc")
    assert not list(tmp_path.glob("..new-*"))
