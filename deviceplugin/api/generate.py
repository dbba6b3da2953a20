"""Write `*_pb2.py` beside the `.proto` files: `python -m deviceplugin.api.generate`.

Needs grpcio-tools, a development dependency. Generated code runs with the protobuf that generated it or a newer one,
so `pyproject.toml` names at least that version.
"""

import sys
from pathlib import Path


def main() -> int:
    """Run protoc from the directory above the package, so that file names in the descriptors are import paths."""
    from grpc_tools import protoc  # development only; nothing at run time imports this module

    here = Path(__file__).resolve().parent
    root = here.parent.parent
    sources = sorted(str(path.relative_to(root)) for path in here.glob("*.proto"))
    failures = [
        protoc.main(
            [
                "protoc",
                f"--proto_path={root}",
                f"--python_out={root}",
                str(root / source),
            ]
        )
        for source in sources
    ]
    return int(any(failures))


if __name__ == "__main__":
    sys.exit(main())
