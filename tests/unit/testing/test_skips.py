import pytest

from testing import skips

pytest_plugins = ("pytester",)

UNDECLARED = """
    import pytest

    @pytest.mark.parametrize("number", range(3))
    def test_a(number):
        pytest.skip("no kubectl")

    @pytest.mark.skip(reason="no helm")
    def test_b():
        pass
"""
DECLARED = """
    from testing import skips

    def test_a():
        skips.expected("no such hardware")

    def test_b():
        skips.older((1, 20), (1, 30), "no policies")
"""
MODULE = """
    import pytest

    pytest.importorskip("no_such_module", exc_type=ImportError)
"""


@pytest.fixture(autouse=True)
def in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["one process", "xdist"])
def test_a_skip_that_nothing_declares_fails_a_run_in_ci(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_of_tests=UNDECLARED, test_of_a_module=MODULE, test_passes="def test_c(): pass")
    done = pytester.runpytest("-p", "testing.skips", *options)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["UNEXPECTED SKIP IN CI: test_of_a_module*", "UNEXPECTED SKIP IN CI: test_of_tests*"])


def test_a_skip_of_all_that_there_is_fails_a_run_in_ci(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MODULE)
    assert pytester.runpytest("-p", "testing.skips").ret == pytest.ExitCode.TESTS_FAILED


def test_a_declared_skip_passes_in_ci_and_is_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(DECLARED)
    done = pytester.runpytest("-p", "testing.skips")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(
        ["    1  expected: (1, 20) is older than (1, 30): no policies", "    1  expected: no such hardware"]
    )


def test_elsewhere_skips_are_counted_by_reason_and_fail_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI")
    pytester.makepyfile(UNDECLARED)
    done = pytester.runpytest("-p", "testing.skips")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["    1  no helm", "    3  no kubectl"])
    done.stdout.no_fnmatch_line("UNEXPECTED*")


def test_a_test_is_not_skipped_on_the_version_that_it_needs() -> None:
    skips.older((1, 30), (1, 30), "no policies")
