"""Where tests find Prometheus and its checks."""

from pathlib import Path

import pytest

from localcluster import apt, prometheus, provision
from localcluster.provision import ProvisionError


def test_what_the_machine_has_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in prometheus.PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.programs() == tmp_path


def test_a_machine_for_which_it_cannot_be_had_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provision, "on_path", lambda _: None)
    monkeypatch.setattr("localcluster.prometheus.shutil.which", lambda _: None)
    monkeypatch.setenv(provision.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(ProvisionError, match=r"neither prometheus nor promtool is on PATH: install Prometheus 2\.42"):
        prometheus.programs()


def test_packages_come_from_where_the_machine_has_its_own(tmp_path: Path) -> None:
    for name in ("a.sources", "b.list", "c.disabled"):
        (tmp_path / name).write_text(name)
    read = [apt.binary_packages(entry) for entry in sorted(tmp_path.iterdir())]
    assert read == ["a.sources", "b.list", None]
