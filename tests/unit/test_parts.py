"""The parts of `make test`: what each took is said at the end, also when one has failed."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

PARTS = Path(__file__).parents[2] / ".ci" / "parts"


@pytest.mark.parametrize(
    ("targets", "rows", "code"),
    [
        (["unit", "e2e"], ["unit 0.0 N", "e2e 0.0 N", "sum 0.0 N"], 0),
        (["unit", "bad", "e2e"], ["unit 0.0 N", "bad 0.0 N failed", "e2e - - not run", "sum 0.0 N"], 3),
    ],
)
def test_parts_are_made_until_one_fails_and_a_table_says_what_each_took(
    targets: list[str], rows: list[str], code: int, tmp_path: Path
) -> None:
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\n[ "$*" = "--no-print-directory A=1 ${3}" ] && [ "$3" != bad ] || exit 3\n')
    make.chmod(0o755)
    done = subprocess.run([PARTS, make, "A=1", *targets], capture_output=True, text=True, check=False, timeout=60)
    table = [" ".join(line.split()) for line in done.stdout.partition("of CPU")[2].splitlines()[1:]]
    assert [re.sub(r"(?<=0\.0 )0\.\d", "N", row) for row in table] == rows
    assert done.returncode == code


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_part_that_is_interrupted_ends_as_after_control_c(sent: signal.Signals, tmp_path: Path) -> None:
    """Tests then remove their clusters; make alone would leave them to run on."""
    make = tmp_path / "make"
    make.write_text(
        "#!/bin/sh\ntrap 'echo interrupted; exit 7' INT\necho began; for i in $(seq 600); do sleep 0.1; done\n"
    )
    make.chmod(0o755)
    # A shell that was started in the background ignores SIGINT, and so would all that it starts.
    command: list[str | Path] = ["env", "--default-signal=INT", PARTS, make, "long", "next"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert [running.stdout.readline() for _ in range(3)] == ["\n", "== long\n", "began\n"]
        running.send_signal(sent)
        said = running.stdout.read()
    assert said.startswith("interrupted\n")
    assert re.search(r"^long .* failed\nnext .* not run$", said, re.MULTILINE)
    assert running.returncode == 128 + sent
