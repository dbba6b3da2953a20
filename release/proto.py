"""Write `*_pb2.py` beside the `.proto` files of `deviceplugin/api`: `python -m release.proto`.

Needs grpcio-tools, a development dependency. Generated code runs with the protobuf that generated it or a newer one,
so `pyproject.toml` names at least that version.
"""

import sys
from pathlib import Path


def main(root: Path) -> int:
    """From the directory above the package, so that file names in the descriptors are import paths."""
    from grpc_tools import protoc  # development only; nothing at run time imports this module

    sources = sorted(str(path.relative_to(root)) for path in root.glob("deviceplugin/api/*.proto"))
    commands = [["protoc", f"--proto_path={root}", f"--python_out={root}", str(root / source)] for source in sources]
    return int(sum(protoc.main(command) for command in commands) > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[1])))
