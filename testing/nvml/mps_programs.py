"""Programs that answer as NVIDIA's MPS control daemon and nvidia-smi do, for machines without a GPU."""

from pathlib import Path
from typing import Final

CONTROL: Final = """#!/bin/sh
pid=$CUDA_MPS_PIPE_DIRECTORY/control.pid
if [ "$1" = -f ]; then
    [ -e {state}/broken ] && exit 7
    echo "start $* $CUDA_DEVICE_ORDER $CUDA_MPS_LOG_DIRECTORY" >> {state}/log
    [ -e {state}/deaf ] && trap "" TERM
    echo $$ > $pid
    exec sleep 600
fi
kill -0 "$(cat $pid 2>/dev/null)" 2>/dev/null || {{ echo "Cannot find MPS control daemon process" >&2; exit 1; }}
while read -r line; do
    echo "$line" >> {state}/log
    case $line in
        get_default_active_thread_percentage) echo 100.0;;
        get_server_list) cat {state}/servers 2>/dev/null;;
        quit) kill "$(cat $pid)";;
    esac
done
exit 0
"""
SMI: Final = """#!/bin/sh
case $1 in
    --compute-mode=*) echo "${{1#*=}}" >> {state}/log; echo Exclusive_Process > {state}/mode;;
    *)
        echo >> {state}/queries
        for gpu in 0 1 2 3; do echo "$gpu, $(cat {state}/mode 2>/dev/null || echo Default)"; done;;
esac
"""


def install(state: Path) -> Path:
    """Write the programs; the directory for PATH. Args: state: where they note what they were told."""
    directory = state / "bin"
    directory.mkdir()
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", SMI)):
        (directory / name).write_text(text.format(state=state), encoding="ascii")
        (directory / name).chmod(0o755)
    return directory
