"""A cause keeps its code when it is copied, and each finding about MPS has one."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin import mps
from deviceplugin.causes import NONE, Cause, Code, both, code
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.mps import EXCLUSIVE, MpsError, Status
from gpushare.model.gpu import Gpu, MigInstance
from testing.builders import make_gpu

ECC, OLD = Cause(Code.ECC, "ECC"), Cause(Code.DRIVER_OLD, "old driver")
MIG = replace(make_gpu(0), mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))


def test_a_copy_has_the_code_and_what_is_made_of_a_sentence_has_none() -> None:
    copies = [copy.copy(ECC), copy.deepcopy(ECC), pickle.loads(pickle.dumps(ECC)), both(NONE, ECC)]
    assert [(found, found.code) for found in copies] == [("ECC", Code.ECC)] * 4
    assert (both(ECC, OLD), both(ECC, OLD).code, both(NONE)) == ("ECC; old driver", Code.ECC, NONE)
    assert [code(text) for text in (ECC, f"{ECC}", "")] == [Code.ECC, Code.OTHER, ""]


@pytest.mark.parametrize(
    ("answer", "gpu", "expected"),
    [
        (MpsError("no supervisor"), make_gpu(0), Code.MPS_SILENT),
        (Status(problem="it ended", modes={}), make_gpu(0), Code.MPS_SILENT),
        (Status(problem="", modes={0: EXCLUSIVE}), MIG, Code.MIG),
        (Status(problem="", modes={0: "Default"}), make_gpu(0), Code.COMPUTE_MODE),
        (Status(problem="", modes={0: EXCLUSIVE}), make_gpu(0), ""),
    ],
)
def test_what_speaks_against_mps_has_a_code(
    monkeypatch: pytest.MonkeyPatch, answer: Status | MpsError, gpu: Gpu, expected: str
) -> None:
    def ask(*_: object) -> Status:
        if isinstance(answer, MpsError):
            raise answer
        return answer

    monkeypatch.setattr(mps, "ask", ask)
    backend = MpsBackend(directory=Path("/x"), shared_memory=Path("/x"), held=lambda _inventory: ())
    assert backend.prove([gpu])[gpu.uuid].code == expected
