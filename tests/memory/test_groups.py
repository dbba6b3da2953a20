"""The limit itself: what stays below it lives, what goes beyond is killed and counted."""

import subprocess
import sys
from typing import NoReturn

import pytest

from localcluster import cgroups
from tests.memory import groups

MIB = 2**20
_TAKE = "import sys; held = bytearray(int(sys.argv[1])); print(len(held))"


def take(group: groups.MemoryGroup, size: int) -> subprocess.CompletedProcess[str]:
    argv = group.enter([sys.executable, "-c", _TAKE, str(size)])
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_a_process_below_the_limit_lives_and_one_beyond_is_killed_and_counted() -> None:
    with groups.limited("below", 64 * MIB) as group:
        done = take(group, 32 * MIB)
        assert (done.returncode, done.stdout) == (0, f"{32 * MIB}\n")
        assert group.kills() == 0, group.report()
        assert 32 * MIB < group.peak() <= 64 * MIB
    with groups.limited("beyond", 64 * MIB) as group:
        assert take(group, 96 * MIB).returncode == -9
        assert group.kills() == 1, group.report()


def test_what_a_process_holds_is_seen_and_it_ends_with_the_group() -> None:
    with groups.limited("held", 64 * MIB) as group:
        argv = group.enter([sys.executable, "-c", "held = bytearray(2**25); print('made', flush=True); input()"])
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "made\n"
            assert 32 * MIB < group.anonymous() < 64 * MIB
            process.kill()
    assert not group.directory.exists()


def test_the_limits_are_those_of_the_manifests_and_where_none_can_be_set_nothing_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert groups.manifest_limit("gpushare-webhook", "webhook") >= 256 * MIB
    assert groups.manifest_limit("gpushare-device-plugin", "device-plugin") >= 128 * MIB

    def refuse(_group: str) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cgroups, "create", refuse)
    with pytest.raises(pytest.skip.Exception, match=r"need .*Permission denied"), groups.limited("no", 1):
        pass
