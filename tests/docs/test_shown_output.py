"""What pages such as README.md, docs/install.md and docs/jupyterhub.md show of output is what is printed."""

from collections.abc import Mapping, Sequence

import pytest

from gpushare.model.ledger import Refused
from gpushare.placement.place import place
from gpushare_cli import __main__ as cli
from testing.builders import Json, make_grant, make_inventory, make_ledger, make_node, make_shape
from testing.cli.explaining import kube_of
from testing.cli.podding import bound
from testing.pages import blocks, text

SHOWN = {"README.md": ((14, 14, 9, 3), (6, 0, 0, 0)), "docs/install.md": ((3, 0, 0, 0),)}
"""What is allocated of each GPU of 15 GiB, node by node."""


def objects(nodes: Sequence[Sequence[int]]) -> list[Json]:
    found = []
    for number, gpus in enumerate(nodes, 1):
        inventory = make_inventory(*[15] * len(gpus), node=f"node-{number}")
        found.append(make_node(inventory, ip=f"10.180.0.10{number}"))
        for index, gib in enumerate(gpus):
            if gib:
                grant = make_grant(index, gib=gib)
                found.append(bound(f"pod-{number}-{index}", grant, node=f"node-{number}"))
    return found


@pytest.mark.parametrize("page", SHOWN)
def test_the_table_is_what_is_printed(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = kube_of(objects(SHOWN[page]))
    monkeypatch.setattr("gpushare.kube.client.connect", lambda _path, _context: kube)
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    assert cli.main(["inspect"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    typed = "$ kubectl inspect gpushare\nNAME"
    [shown] = [block.splitlines() for block in blocks(page, "console") if block.startswith(typed)]
    kube.close()
    assert shown[1:] == printed


@pytest.mark.parametrize(
    ("page", "node", "asked", "sizes", "held"),
    [
        ("README.md", "node-a", 10, [15] * 4, {0: 12, 1: 12, 2: 8, 3: 6}),
        ("docs/jupyterhub.md", "node-1", 64, [26] * 4, {}),
        ("docs/neighbours.md", "node-1", 15, [24] * 2, {0: 14, 1: 14}),
        ("docs/neighbours.md", "node-1", 14, [26] * 4, dict.fromkeys(range(4), 14)),
    ],
)
def test_a_refusal_is_what_is_said(
    page: str, node: str, asked: int, sizes: Sequence[int], held: Mapping[int, int]
) -> None:
    verdict = place(make_shape(asked), make_ledger(sizes, held))
    assert isinstance(verdict, Refused)
    said = verdict.message.replace("node-a", node)
    shown = text(page)
    assert any(f"{before}{said}{after}" in shown for before, after in (("`", "`"), ("```text\n", "\n```")))
