"""Every measurement on a machine with a GPU, one after another, in Markdown. See each for what it does.

python -m bench.gpu [--mps] [--nvidia-ctk PATH]
"""

import argparse
import subprocess
import sys

from deviceplugin.nvml.driver import library


def driver() -> str:
    nvml = library()
    nvml.nvmlInit()
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--nvidia-ctk", default="nvidia-ctk")
    arguments = parser.parse_args()
    programs = {
        "Inventory": ["inventory"],
        "Hand-over by CDI": ["hand_over", f"--nvidia-ctk={arguments.nvidia_ctk}"],
        "Limits": ["limits", *(["--mps"] if arguments.mps else [])],
        "Watchdog": ["watchdog"],
        "Frameworks": ["frameworks"],
    }
    print(f"Driver {driver()}")
    failed = []
    for title, (name, *flags) in programs.items():
        print(f"\n## {title}\n", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.gpu.{name}", *flags], check=False).returncode:
            failed.append(title)
    print(f"\nFailed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
