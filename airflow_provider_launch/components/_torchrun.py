"""Build the command line of torchrun, for `dist.ddp` and the older `ElasticRole`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from airflow_provider_launch.schedulers.environment import port_variable
from airflow_provider_launch.specs.macros import macros

DEBUG_ENV = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}


def parse_nnodes(j: str) -> tuple[int, int, int | str, str]:
    """Return lowest and highest number of nodes, processes per node, and the nodes as a torchrun argument.

    `2` means two processes on one node, `2x4` four on each of two nodes, `1:2x4` the same on one or two nodes.
    Instead of a number of processes, torchrun takes `gpu`, `cpu` or `auto`: one for each GPU or CPU of the node.

    Raises:
        ValueError: the text has another form, or a number is 0.
    """
    found = re.fullmatch(r"(((?P<least>\d+):)?(?P<most>\d+)x)?(?P<processes>\d+|gpu|cpu|auto)", j.strip())
    if found is None:
        raise ValueError(
            f"Invalid format for `-j {j}`; use `[[{{min_nnodes}}:]{{nnodes}}x]{{nproc_per_node}}`, with a number, "
            f"`gpu`, `cpu` or `auto` as the last part"
        )
    most = int(found["most"] or 1)
    least = int(found["least"] or most)
    processes = int(found["processes"]) if found["processes"].isdecimal() else found["processes"]
    if not 1 <= least <= most or processes == 0:
        raise ValueError(f"Invalid numbers in `-j {j}`; each is at least 1, and min_nnodes at most nnodes")
    return least, most, processes, f"{least}:{most}" if found["least"] else str(most)


def rdzv_endpoint(nodes: int, port: int, role_name: str, port_name: str) -> str:
    """Return the rendezvous endpoint for a shell: host of replica 0 of the first role, and the port.

    A single node uses itself and a free port. Port 0 means that the scheduler chooses one.
    """
    if nodes == 1:
        return "localhost:0"
    # The shell of the replica reads the variable, because only the scheduler knows its name.
    number = str(port) if port else f"$${{{port_variable(role_name, port_name)}}}"
    return f"$${{{macros.rank0_env}:=localhost}}:{number}"


def shell_command(*words: str, endpoint: str, rest: Sequence[str]) -> str:
    """Return a line for `bash -c`: all words are quoted, except the value of `--rdzv_endpoint`."""
    quoted = ["torchrun", *map(shlex.quote, words)]
    at = quoted.index("--rdzv_id")
    return " ".join([*quoted[:at], "--rdzv_endpoint", endpoint, *quoted[at:], *map(shlex.quote, rest)])


def log_level() -> str:
    """Return the value of LOGLEVEL for replicas."""
    return os.environ.get("LOGLEVEL", "WARNING")
