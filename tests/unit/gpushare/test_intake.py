"""What is held of bodies, and what is refused before anything holds or parses it."""

import io
from collections.abc import Iterator

import orjson
import pytest

from gpushare.runtime import intake
from gpushare.runtime.intake import ByteBudget, Intake, Limit, RefusedBodyError, Stream

ROOMY = Limit(body=10**9, weight=10**9)
HEAD = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":body[:4096],"object":'


def review(obj: bytes) -> bytes:
    return HEAD + obj + b"}}"


@pytest.fixture
def shared() -> Intake:
    return Intake(budget=ByteBudget(10_000), small=100, wait_s=0.0)


def refused(shared: Intake, stream: Stream, length: int, limit: Limit = ROOMY) -> RefusedBodyError:
    with pytest.raises(RefusedBodyError) as caught, shared.body(stream, length, limit):
        pass
    return caught.value


def test_a_body_comes_whole_or_as_much_as_came(shared: Intake) -> None:
    for body in (b"", b"{}", review(b'"' + b"x" * 1000 + b'"')):
        with shared.body(io.BytesIO(body + b"next"), len(body), ROOMY) as found:
            assert found == body
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


def test_of_too_long_a_body_the_head_is_read_and_too_heavy_a_one_is_not_parsed(shared: Intake) -> None:
    body = review(b'"' + b"x" * 10**6 + b'"')
    stream = io.BytesIO(body + b"next")
    error = refused(shared, stream, len(body), Limit(body=10**6, weight=10**9))
    assert str(error) == f"it has {len(body)} bytes of JSON, with all defaults; at most 1000000 are read"
    assert (error.head, error.busy) == (body[:4096], False)
    assert stream.tell() == 4096
    body = review(b"[" + b",".join([b'{"name":""}'] * 20) + b"]")
    error = refused(shared, io.BytesIO(body), len(body), Limit(body=10**6, weight=9000))
    assert (str(error), error.head, error.busy) == (
        f"it has 46 fields and list entries in {len(body)} bytes of JSON, with all defaults;"
        " write fewer, such as ports, env, volumes, tolerations",
        body[:4096],
        False,
    )


def test_what_finds_no_room_may_come_again_and_ordinary_bodies_never_wait(shared: Intake) -> None:
    body = review(b'"' + b"x" * 800 + b'"')
    with shared.body(io.BytesIO(body), len(body), ROOMY):
        error = refused(shared, io.BytesIO(body), len(body))
        assert str(error) == "other large requests are being looked at; try again"
        assert (error.head, error.busy) == (body[:4096], True)
    with shared.body(io.BytesIO(body), len(body), ROOMY) as found:
        assert found == body
    body = review(b'"' + b"x" * 800 + b'"')
    with shared.body(io.BytesIO(body), len(body), ROOMY), shared.body(io.BytesIO(b"{}"), 2, ROOMY) as found:
        assert found == b"{}"


def test_a_body_for_which_there_is_no_room_is_not_even_read(shared: Intake) -> None:
    body = review(b'"' + b"x" * 6000 + b'"')
    stream = io.BytesIO(body)
    assert refused(shared, stream, len(body)).busy
    assert stream.tell() == 4096
    body = review(b'"' + b"x" * 800 + b'"')
    with pytest.raises(RefusedBodyError) as caught, shared.body(io.BytesIO(body), len(body), ROOMY, busy=True):
        pass
    assert (caught.value.busy, caught.value.head) == (True, body[:4096])
    assert shared.budget.left == 10_000


def test_all_room_is_given_back_whatever_happens(shared: Intake) -> None:
    body = review(b'"' + b"x" * 800 + b'"')

    def uses() -> Iterator[None]:
        with pytest.raises(ZeroDivisionError), shared.body(io.BytesIO(body), len(body), ROOMY):
            raise ZeroDivisionError
        yield
        refused(shared, io.BytesIO(body), len(body), Limit(body=10**6, weight=10))
        yield
        with pytest.raises(ConnectionResetError), shared.body(Broken(), len(body), ROOMY):
            pass
        yield

    for _ in uses():
        with shared.body(io.BytesIO(body), len(body), ROOMY):
            pass


class Broken:
    def read(self, size: int, /) -> bytes:
        raise ConnectionResetError


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
