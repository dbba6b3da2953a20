"""A program that takes GPU memory until it gets no more, as any CUDA program could. It needs libcuda and no compiler.

    python -m bench.gpu.cuda [--chunk-mib 64] [--most-mib N] [--hold]

Prints one JSON object (see Taken). With --hold it keeps what it has until its standard input ends.
"""

import argparse
import ctypes
import json
import sys
from dataclasses import asdict, dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class Taken:
    """What a program got."""

    total_mib: int
    """As CUDA reports it, and as frameworks take fractions of it."""
    free_mib: int
    """After CUDA has its own."""
    taken_mib: int
    error: str
    """Why it got no more; empty if it asked for no more."""


class CudaError(Exception):
    """A call failed."""


class Cuda:
    """The first GPU that this process sees."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size: int) -> None:
        """Allocate so many bytes forever, and write to them."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size))

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'').decode() or code}")


def take(chunk_mib: int, most_mib: int) -> Taken:
    """Chunks, and then smaller ones, until CUDA refuses even one MiB, or `most_mib` are taken."""
    taken, error, total, free = 0, "", 0, 0
    try:
        cuda = Cuda()
        free, total = cuda.memory()
        while taken < most_mib and chunk_mib:
            chunk = min(chunk_mib, most_mib - taken)
            try:
                cuda.take(chunk * MIB)
                taken += chunk
            except CudaError as problem:
                error, chunk_mib = str(problem), chunk_mib // 2
    except CudaError as problem:
        error = str(problem)
    return Taken(total_mib=total // MIB, free_mib=free // MIB, taken_mib=taken, error=error if taken < most_mib else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chunk-mib", type=int, default=64)
    parser.add_argument("--most-mib", type=int, default=1 << 40)
    parser.add_argument("--hold", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(asdict(take(arguments.chunk_mib, arguments.most_mib))), flush=True)
    if arguments.hold:
        sys.stdin.read()


if __name__ == "__main__":
    main()
