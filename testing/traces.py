"""A trace that is small enough to count."""

import gzip
from pathlib import Path

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{i},32000,65536,2,{'T4' if i < 4 else 'G2'}\n" for i in range(8)
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n" + "".join(
    [f"half{i},4000,4096,1,500,,{i},{i + 90}\n" for i in range(6)]
    + [f"whole{i},8000,8192,1,1000,T4,{i},{i + 900}\n" for i in range(3)]
    + [f"wide{i},8000,8192,2,1000,T4|G2,{i},{i + 60}\n" for i in range(2)]
    + ["cpu,4000,4096,0,0,,5,600\n"]
)


def small(directory: Path) -> Path:
    """The directory with a trace of the name `small`."""
    (directory / "openb_node_list_gpu_node.csv").write_text(NODES)
    (directory / "openb_pod_list_small.csv.gz").write_bytes(gzip.compress(PODS.encode()))
    return directory
