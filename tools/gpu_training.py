"""Train with PyTorch on the GPUs of this machine, by local processes, in at most five minutes: `make gpu`.

It checks that the replicas of a role are one training with NCCL, that each sees only its own GPU, that an app which
wants a GPU of a running app is refused, and that torchrun starts a process for each GPU.
Without a GPU it reports that and tests nothing; `--cpu` runs the same on CPUs, with gloo and pretended devices.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.local.scheduler import _driver_gpus
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from airflow_provider_launch.specs.errors import SchedulerRejectedError

PROGRAM = str(Path(__file__).parent / "gpu_training_program.py")
TRAINING_LIMIT_S = 100.0
_MARGIN_S = 20.0
"""A training that does not end is cancelled. Two of them and the check of the leases take at most 300 seconds."""
ENV = {"OMP_NUM_THREADS": "1"}


def missing() -> str:
    """Return why nothing can be tested here; empty if there is a GPU that torch can use."""
    if not _driver_gpus():
        return "the NVIDIA driver lists no GPU on this machine"
    try:
        import torch
    except ImportError:
        return "torch is not installed; make torch installs it, 5 GB"
    return "" if torch.cuda.is_available() else "torch cannot use the GPUs: its build has no CUDA, or the driver is old"


def trained(runner: Runner, app: AppDef) -> Any:
    """Run the app, and return its result.

    Raises:
        SystemExit: it has not succeeded; the text has its last lines.
    """
    handle = runner.run(app, "local", {"time_limit_s": TRAINING_LIMIT_S})
    status = runner.wait(handle, 0.2, timeout=TRAINING_LIMIT_S + _MARGIN_S)
    if status is None or status.state is not AppState.SUCCEEDED:
        lines = [f"  {line.rstrip()}" for line in runner.log_lines(handle, app.roles[0].name, 0)][-20:]
        raise SystemExit("\n".join([f"{app.name} has not succeeded: {status}", *lines]))
    return runner.scheduler("local").result(handle.rpartition("/")[2])


def by_replicas(gpus: list[str], backend: str) -> AppDef:
    """Return a training with one replica for each GPU, up to four."""
    role = Role(
        name="trainer",
        image="",
        entrypoint=sys.executable,
        args=[PROGRAM, backend],
        env=dict(ENV),
        num_replicas=min(len(gpus), 4),
        resource=Resource(cpu=1, gpu=1, memMB=2048),
        torch_env=True,
    )
    return AppDef("replicas", [role])


def by_torchrun(gpus: list[str], backend: str) -> AppDef:
    """Return a training with one process of torchrun for each GPU."""
    role = Role(
        name="torchrun",
        image="",
        entrypoint=sys.executable,
        args=["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(len(gpus)), PROGRAM, backend],
        env=dict(ENV),
        resource=Resource(cpu=1, gpu=len(gpus), memMB=2048),
    )
    return AppDef("torchrun", [role])


def check_leases(runner: Runner, gpus: list[str]) -> str:
    """Return the refusal of an app that wants a GPU of a running app."""
    sleeper = Role(
        name="holder", image="", entrypoint="sleep", args=["60"], resource=Resource(cpu=1, gpu=len(gpus), memMB=64)
    )
    holder = runner.run(AppDef("holder", [sleeper]), "local")
    try:
        deadline = time.monotonic() + 30
        while (status := runner.status(holder)) is None or status.state is not AppState.RUNNING:
            if time.monotonic() > deadline:
                raise SystemExit(f"the app that holds the GPUs does not run: {status}")
            time.sleep(0.1)
        try:
            runner.run(AppDef("second", [Role("second", "", entrypoint="true", resource=Resource(1, 1, 64))]), "local")
        except SchedulerRejectedError as error:
            return str(error)
        raise SystemExit("a second app got a GPU that another app has")
    finally:
        runner.cancel(holder)
        runner.wait(holder, 0.2, timeout=30)


def check(gpus: list[str], backend: str) -> None:
    """Run all checks, and print one line for each.

    Raises:
        SystemExit: a check has failed.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        params = {"local": {"root": root, "gpus": gpus}}
        with Runner("gpu", scheduler_params=params) as runner:
            found = trained(runner, by_replicas(gpus, backend))
            world = min(len(gpus), 4)
            visible = [rank["visible"] for rank in found["ranks"]]
            if (found["world"], found["backend"], sorted(visible)) != (world, backend, sorted(gpus[:world])):
                raise SystemExit(f"the replicas were not one training with {world} different GPUs: {found}")
            if backend == "nccl" and {rank["count"] for rank in found["ranks"]} != {1}:
                raise SystemExit(f"a replica sees more than its own GPU: {found}")
            print(f"{world} replicas, {backend}, loss {found['loss']:.4f}, each with its own GPU")
            print(f"refused as it should be: {check_leases(runner, gpus)}")
            found = trained(runner, by_torchrun(gpus, backend))
            if (found["world"], found["backend"]) != (len(gpus), backend):
                raise SystemExit(f"torchrun has not started a process for each GPU: {found}")
            print(f"torchrun with {len(gpus)} processes, {backend}, loss {found['loss']:.4f}")
    print(f"done in {time.monotonic() - started:.0f} s")


def main() -> None:
    """Run the checks, or report why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="pretend that this machine has two GPUs, and train on CPUs")
    if parser.parse_args().cpu:
        check(["0", "1"], "gloo")
    elif why := missing():
        print(f"skipped, nothing was tested: {why}")
    else:
        check(_driver_gpus(), "nccl")


if __name__ == "__main__":
    main()
