"""`make bench`: every measurement of docs/performance.md, one after another."""

import subprocess
import sys

PROGRAMS = (
    ("device plugin: process start to registered, and memory", ["bench.plugin_start"]),
    ("device plugin: a container's start, 100 GPU pods on the node", ["bench.hand_over"]),
    ("device plugin: reading what 100 pods use", ["bench.usage"]),
    ("webhook: reviews over TLS, beside the floor", ["bench.webhook"]),
    ("filter: 1,000 and 5,000 nodes of 8 GPUs", ["bench.filter"]),
    ("start of a leader: the first list of 50,000 pods", ["bench.start"]),
    ("start of a leader: 5,000 nodes and 50,000 pods, real API server and etcd", ["bench.start_server"]),
    ("bind: the controller alone, API server in memory", ["bench.bind_fake"]),
    ("bind: real API server and etcd", ["bench.bind"]),
)


def main() -> int:
    for title, arguments in PROGRAMS:
        print(f"\n== {title}", flush=True)
        if subprocess.run([sys.executable, "-m", *arguments], check=False).returncode != 0:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
