"""The weight of a body is never below the memory that parsing it takes, whatever it is made of."""

import subprocess
import sys

import pytest

from gpushare.runtime import intake

_PARSE = """
import sys, orjson

def status(field):
    text = open("/proc/self/status").read()
    return int(text.split(field + ":")[1].split()[0]) * 1024

body = sys.stdin.buffer.read()
before = status("VmRSS")
parsed = orjson.loads(body)
print(status("VmHWM") - before)
"""
_SIZE = 8 * 2**20
_NOISE = 2 * 2**20


def filled(entry: str) -> bytes:
    data = entry.encode()
    return b"[" + b",".join([data] * (_SIZE // (len(data) + 1))) + b"]"


BODIES = {
    "ports": filled('{"containerPort":0,"protocol":"TCP"}'),
    "empty objects": filled("{}"),
    "empty lists": filled("[]"),
    "lists in lists": filled("[[[[]]]]"),
    "one field": filled('{"":0}'),
    "objects in objects": filled('{"":{}}'),
    "six fields": filled('{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0}'),
    "numbers": filled("300"),
    "fractions": filled("0.1"),
    "short strings": filled('"ab"'),
    "strings that are not ASCII": filled('"é"'),
    "one wide string": '"{}😀"'.format("a" * _SIZE).encode(),
    "one object": b"{" + b",".join(b'"%x":0' % i for i in range(_SIZE // 10)) + b"}",
    "variables": filled('{"name":"a"}'),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", BODIES)
def test_the_weight_bounds_what_parsing_takes(kind: str) -> None:
    body = BODIES[kind]
    done = subprocess.run([sys.executable, "-c", _PARSE], input=body, capture_output=True, check=True, timeout=120)
    assert int(done.stdout) <= intake.weight(body) + _NOISE
