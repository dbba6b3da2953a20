"""What is held of bodies, and what is refused before anything holds or parses it."""

import io

import orjson
import pytest

from gpushare.runtime import intake
from gpushare.runtime.intake import ByteBudget, Intake, Limit, RefusedBodyError

ROOMY = Limit(body=10**9, weight=10**9)
HEAD = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":body[:4096],"object":'


def review(obj: bytes) -> bytes:
    return HEAD + obj + b"}}"


LARGE = review(b'"' + b"x" * 800 + b'"')
BUSY = "other large requests are being looked at; try again"


@pytest.fixture
def shared() -> Intake:
    return Intake(budget=ByteBudget(10_000), small=100, wait_s=0.0)


def refused(shared: Intake, body: bytes, limit: Limit = ROOMY, *, busy: bool = False) -> tuple[str, bool]:
    """Why, and whether it may come again. No more is read than the head, by which the sender is answered."""
    stream = io.BytesIO(body + b"next")
    with pytest.raises(RefusedBodyError) as caught, shared.body(stream, len(body), limit, busy=busy):
        pass
    assert caught.value.head == body[:4096]
    assert stream.tell() == min(4096, len(body))
    return str(caught.value), caught.value.busy


def accepted(shared: Intake, body: bytes) -> None:
    with shared.body(io.BytesIO(body + b"next"), len(body), ROOMY) as found:
        assert found == body


def test_a_body_comes_whole_or_as_much_as_came(shared: Intake) -> None:
    for body in (b"", b"{}", LARGE):
        accepted(shared, body)
    for length in (50, 1000):
        with shared.body(io.BytesIO(b"abc"), length, ROOMY) as found:
            assert found == b"abc"


def test_a_body_is_read_in_pieces(shared: Intake) -> None:
    asked = list[int]()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().read(min(size or 0, 1000))

    roomy = Intake(budget=ByteBudget(10**9))
    with roomy.body(Slow(b"x" * 200_000), 200_000, ROOMY) as found:
        assert found == b"x" * 200_000
    assert max(asked) == 64 * 1024


def test_too_long_a_body_is_not_read_and_too_heavy_a_one_not_parsed(shared: Intake) -> None:
    body = review(b'"' + b"x" * 10**6 + b'"')
    why = f"it has {len(body)} bytes of JSON, with all defaults; at most 1000000 are read"
    assert refused(shared, body, Limit(body=10**6, weight=10**9)) == (why, False)
    body = review(b"[" + b",".join([b'{"name":""}'] * 20) + b"]")
    why = (
        f"it has 46 fields and list entries in {len(body)} bytes of JSON, with all defaults;"
        " write fewer, such as ports, env, volumes, tolerations"
    )
    assert refused(shared, body, Limit(body=10**6, weight=9000)) == (why, False)


def test_what_finds_no_memory_may_come_again_and_ordinary_bodies_never_wait(shared: Intake) -> None:
    with shared.body(io.BytesIO(LARGE), len(LARGE), ROOMY):
        assert refused(shared, LARGE) == (BUSY, True)
        accepted(shared, b"{}")
    accepted(shared, LARGE)
    assert refused(shared, review(b'"' + b"x" * 6000 + b'"')) == (BUSY, True)
    assert refused(shared, LARGE, busy=True) == (BUSY, True)
    assert shared.budget.left == 10_000


class Broken:
    def read(self, size: int, /) -> bytes:
        raise ConnectionResetError


def test_all_memory_is_given_back_whatever_happens(shared: Intake) -> None:
    with pytest.raises(ZeroDivisionError), shared.body(io.BytesIO(LARGE), len(LARGE), ROOMY):
        raise ZeroDivisionError
    accepted(shared, LARGE)
    refused(shared, LARGE, Limit(body=10**6, weight=10))
    accepted(shared, LARGE)
    with pytest.raises(ConnectionResetError), shared.body(Broken(), len(LARGE), ROOMY):
        pass
    accepted(shared, LARGE)


def test_a_pod_with_much_in_it_weighs_less_than_an_attack() -> None:
    env = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(60)]
    container = {
        "image": "registry.example/team/image:1",
        "env": env,
        "ports": [{"containerPort": i} for i in range(9)],
    }
    big = orjson.dumps({"spec": {"containers": [{**container, "name": f"c{i}"} for i in range(120)]}})
    attack = b'{"ports":[' + b",".join([b'{"containerPort":0,"protocol":"TCP"}'] * 10**6) + b"]}"
    assert intake.weight(big) < 12 * 2**20
    assert intake.weight(attack) > 500 * 2**20
