"""`gpushare report` on the real cluster: it has what helps, and no secret that the cluster knows."""

import base64
import json
import tarfile
from pathlib import Path

import pytest

from gpushare import names
from tests.e2e.system import Share, System, gpushare

pytestmark = pytest.mark.e2e
CANARY = "hunter2-is-no-good-password"


def test_the_report_helps_and_holds_no_secret(system: System, namespace: str, tmp_path: Path) -> None:
    system.create(namespace, Share(name="uses", env={"DATABASE_URL": f"postgres://me:{CANARY}@db"}).document())
    system.all_running(namespace, 1)
    path = tmp_path / "report.tar.gz"
    code, _, err = gpushare(system, "report", "-f", str(path))
    assert code == 0, err

    with tarfile.open(path) as archive:
        files = {each.name: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
    text = "\n".join(files.values())
    assert path.stat().st_mode & 0o077 == 0
    assert f"{namespace}/uses" in text or "name: uses" in text
    logs = [name for name in files if name.startswith("gpushare-report/logs/")]
    assert {names.WEBHOOK, names.CONTROLLER, names.PLUGIN} <= {
        known for known in (names.WEBHOOK, names.CONTROLLER, names.PLUGIN) for name in logs if known in name
    }
    assert "gpushare_" in files[f"gpushare-report/metrics/{names.CONTROLLER}.txt"]

    assert CANARY not in text
    for secret in json.loads(system.cluster.kubectl("get", "secrets", "-A", "-o", "json").stdout)["items"]:
        for key, value in (secret.get("data") or {}).items():
            plain = base64.b64decode(value)
            if key in {"tls.key", "ca.key", "token"} or b"PRIVATE KEY" in plain:
                assert plain.decode() not in text, key
                assert value not in text, key
