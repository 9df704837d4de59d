"""`dist.ddp` with real torchrun: arguments whose effect only a run shows. The programs start quickly without torch."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, AppState, Role, Workspace
from airflow_provider_launch.specs.handles import parse_app_handle

pytestmark = [pytest.mark.timeout(600), pytest.mark.engine("torch"), pytest.mark.engine("local")]

PROGRAM = """
import json, os, sys, time
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
most = os.environ["TORCHELASTIC_MAX_RESTARTS"]
# With its end in one text, because print writes that by itself, and several processes write here.
sys.stdout.write(f"rank {rank} of {os.environ['WORLD_SIZE']}, restart {restarts} of {most}\\n")
if "fail" in sys.argv and rank == "0" and restarts == "0":
    sys.exit("fails once")
if "slow" in sys.argv:
    time.sleep(10)
if rank == "0":
    with open(os.environ["LAUNCH_RESULT_PATH"], "w") as file:
        json.dump({"world": int(os.environ["WORLD_SIZE"]), "file": os.path.relpath(__file__)}, file)
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that trains with these arguments, from a folder that does not have the script.

    With several lists of arguments of the script it trains at once with each of them.
    """
    (tmp_path / "code/src").mkdir(parents=True)
    (tmp_path / "code/src/train.py").write_text(PROGRAM)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with Runner("s", scheduler_params={"local": {"root": str(tmp_path / "root")}}) as runner:

        def launch(script_args: tuple[str, ...], given: dict[str, object]) -> str:
            arguments = {"script": "src/train.py", "script_args": [*script_args], **given}
            workspace = Workspace({str(tmp_path / "code"): ""})
            return runner.run_component("dist.ddp", arguments, "local", workspace=workspace)

        def train(*script_args: str, **given: object) -> tuple[dict, str]:
            (ended,) = trained([script_args], **given)
            return ended

        def trained(several: list[tuple[str, ...]], **given: object) -> list[tuple[dict, str]]:
            return [result_of(handle) for handle in [launch(script_args, given) for script_args in several]]

        def result_of(handle: str) -> tuple[dict, str]:
            status = runner.wait(handle, 0.2, timeout=500)
            log = "".join(
                line for one in status.roles[0].replicas for line in runner.log_lines(handle, "train", one.id)
            )
            assert status.state is AppState.SUCCEEDED, log
            return runner.scheduler("local").result(parse_app_handle(handle).app_id), log

        train.at_once = trained
        yield train


def test_a_script_is_a_path_in_the_workspace(train) -> None:
    """The worker starts the app in any directory, so the script must not be searched there."""
    result, _ = train(j="2x1", max_retries=0)

    assert result == {"world": 2, "file": "src/train.py"}


def test_torchrun_restarts_its_processes_without_a_retry_of_the_scheduler(train) -> None:
    result, log = train("fail", j="1x2", max_restarts=1)

    assert result["world"] == 2
    assert "fails once" in log
    assert "rank 1 of 2, restart 1 of 1" in log


def test_only_the_lines_of_chosen_ranks_are_in_the_log(train) -> None:
    """With eight processes on each node the log would otherwise have each line eight times."""
    _, log = train(j="1x3", local_ranks_filter="0,2")

    assert "rank 0 of 3" in log
    assert "rank 1 of 3" not in log
    assert "rank 2 of 3" in log


def test_auto_is_a_process_for_each_cpu_of_a_node_without_gpus(train) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs, and auto counts them")
    result, _ = train(j="auto")

    assert result["world"] == os.cpu_count()


def test_trainings_on_one_host_do_not_share_a_rendezvous(train) -> None:
    """With one port for all, the longer ones lost their store when the first one ended.

    torchrun numbers its processes itself, so that rank 0, which writes the result, may be on any replica.
    """
    ended = train.at_once([(), ("slow",), ("slow",)], j="2x1")

    assert [result for result, _ in ended] == 3 * [{"world": 2, "file": "src/train.py"}]
    assert all(log.count(f"rank {rank} of 2, restart 0") == 1 for _, log in ended for rank in (0, 1))


def test_torchrun_reads_the_variables_of_a_role_with_torch_env(tmp_path: Path) -> None:
    """A program that calls torchrun itself needs no address on its command line, and rank 0 is on replica 0."""
    (tmp_path / "train.py").write_text(PROGRAM)
    args = ["--nproc-per-node", "2", str(tmp_path / "train.py")]
    role = Role(
        "train", "", entrypoint=f"{sysconfig.get_path('scripts')}/torchrun", args=args, num_replicas=2, torch_env=True
    )
    with Runner("s", scheduler_params={"local": {"root": str(tmp_path / "root")}}) as runner:
        handle = runner.run(AppDef("x", [role]), "local")
        try:
            status = runner.wait(handle, 0.2, timeout=500)
        finally:
            runner.cancel(handle)
        lines = [[*runner.log_lines(handle, "train", k)] for k in range(2)]

    assert status.state is AppState.SUCCEEDED, lines
    ranks = [sorted(line for line in each if line.startswith("rank ")) for each in lines]
    assert ranks == [[f"rank {rank} of 4, restart 0 of 0\n" for rank in each] for each in ([0, 1], [2, 3])]
