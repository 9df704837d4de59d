"""The cluster of the measures: that of the tests, with its own directory and counted commands."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rows import skip
from tests.engines.docker.daemon import EngineError
from tests.engines.slurm import engine
from tests.engines.slurm.fixtures import SlurmCommands

CLUSTER = engine.OURS
ROOT = os.environ.get("BENCH_SLURM_ROOT", "")


@contextmanager
def use(what: str) -> Iterator[SlurmCommands]:
    """Find the cluster and return its counted commands; skip the measure if no cluster answers."""
    global ROOT  # noqa: PLW0603 - found once
    using = engine.Use()
    try:
        using.begin(start=False)
    except EngineError as error:
        skip(what, str(error))
        sys.exit(0)
    base = Path(tempfile.mkdtemp(prefix="bench-", dir=CLUSTER.dir))
    os.environ |= {"PATH": CLUSTER.env["PATH"], "SLURM_CONF": str(CLUSTER.conf)}
    # For the processes of the tasks too.
    ROOT = os.environ["BENCH_SLURM_ROOT"] = str(base / "root")
    try:
        yield SlurmCommands(base / "bin")
    finally:
        shutil.rmtree(base, ignore_errors=True)
        using.end()


def params(*, over_ssh: bool = False, commands: SlurmCommands | None = None) -> dict[str, object]:
    """Return the fields of a connection to it."""
    where: dict[str, object] = {"root": ROOT, "slurm_conf": str(CLUSTER.conf)}
    if commands:
        where["slurm_bin"] = str(commands.dir)
    if over_ssh:
        sshd = CLUSTER.sshd
        where |= {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": "root"}
        where |= {"ssh_key_file": str(sshd.key), "ssh_host_key": sshd.host_key}
    return where
