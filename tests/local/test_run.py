"""The fields of a role on local processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.components import dist
from airflow_provider_launch.schedulers.local import layout, leases, processes
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import (
    AppDef,
    AppState,
    InvalidAppError,
    LaunchError,
    Resource,
    RetryPolicy,
    Role,
    SchedulerRejectedError,
    macros,
)
from tests.support.apps import until
from tests.support.local import Apps, Gate, processes_below, sh
from tests.support.processes import parent_of


def test_host_and_signal_without_a_name_are_reported(apps: Apps) -> None:
    found = apps.run(sh("kill -40 $$$$"))
    replica = found.roles_statuses[0].replicas[0]

    assert (replica.exit_code, replica.reason, replica.hostname) == (168, "signal 40", socket.gethostname())
    assert "main/0" in found.msg


def test_macros_name_the_image_and_the_variable_of_rank_0(apps: Apps, tmp_path) -> None:
    role = Role("main", str(tmp_path), entrypoint="echo", args=[macros.img_root, macros.rank0_env])
    app_id = apps.start(role)
    apps.end(app_id)

    assert apps.lines(app_id) == [f"{tmp_path} TORCHX_RANK0_HOST\n"]


def test_image_is_the_working_directory_and_in_path(apps: Apps, tmp_path) -> None:
    program = tmp_path / "my tool"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o755)
    (tmp_path / "sub").mkdir()
    app_id = apps.start(Role("main", str(tmp_path), entrypoint="my tool"), working_dir="sub")
    apps.end(app_id)

    assert apps.lines(app_id) == [f"{tmp_path}/sub\n"]


def test_a_port_is_leased_while_its_app_runs(apps: Apps, tmp_path) -> None:
    gate = Gate(tmp_path / "gate")
    app_id = apps.start(sh(f"echo $LAUNCH_PORT_MAIN_P; {gate.wait}", port_map={"p": 0}))
    gate.reached()
    lease = apps.root / "ports" / f"{apps.lines(app_id)[0].strip()}.lock"
    while_it_ran = processes.is_locked(str(lease))
    gate.open()
    apps.end(app_id)

    assert while_it_ran
    until(lambda: not processes.is_locked(str(lease)))


def test_a_fixed_port_of_a_running_app_is_refused_by_the_name_of_that_app(apps: Apps, tmp_path) -> None:
    """Two trainings with one rendezvous would meet, and the longer one would fail when the other one ends."""
    ports = dist.ddp(script="train.py", j="2x1", rdzv_port=29732).roles[0].port_map
    gate = Gate(tmp_path / "gate")
    first = apps.start(sh(gate.wait, port_map=ports))
    gate.reached()
    second = apps.scheduler.submit_dryrun(AppDef("app", [sh("true", port_map=ports)]), {})
    with pytest.raises(SchedulerRejectedError, match=f"wants port 29732, which app '{first}' has on .*use port 0"):
        apps.scheduler.schedule(second)
    gate.open()
    apps.end(first)

    assert apps.run(sh("true", port_map=ports)).state is AppState.SUCCEEDED


def test_environment_of_the_launcher_is_not_inherited(apps: Apps, monkeypatch) -> None:
    """A worker's environment has the URL of Airflow's database and other secrets."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "secret")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("HF_HOME", "/models")
    app_id = apps.start(sh("env"), copy_env=["HF_*", "AIRFLOW*"])
    apps.end(app_id)
    text = "".join(apps.lines(app_id))

    assert "secret" not in text
    assert "HF_HOME=/models" in text
    assert "PATH=" in text


def test_gpus_are_leased_one_app_each(tmp_path) -> None:
    scheduler = create_scheduler("gpus", root=str(tmp_path / "root"), gpus=["GPU-a", "GPU-b"])
    apps = Apps(scheduler, tmp_path / "root")
    role = sh("echo $CUDA_VISIBLE_DEVICES; sleep 30", num_replicas=2, resource=Resource(cpu=1, gpu=1, memMB=1))
    app_id = apps.start(role)
    while not all(apps.lines(app_id, k=k) for k in range(2)):
        time.sleep(0.02)

    assert {apps.lines(app_id, k=k)[0] for k in range(2)} == {"GPU-a\n", "GPU-b\n"}
    with pytest.raises(LaunchError, match="wants 2 GPUs, 0 of 2 are free"):
        apps.start(role)
    scheduler.cancel(app_id)
    apps.end(app_id)
    deadline = time.monotonic() + 10
    while True:
        try:
            again = apps.start(role)
            break
        except LaunchError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    scheduler.cancel(again)
    apps.end(again)


GPU = Resource(cpu=1, gpu=1, memMB=1)


@pytest.fixture
def gpu_apps(tmp_path: Path) -> Iterator[Callable[..., Apps]]:
    made: list[Apps] = []

    def make(*gpus: str) -> Apps:
        made.append(Apps(create_scheduler("gpus", root=str(tmp_path / "root"), gpus=list(gpus)), tmp_path / "root"))
        return made[-1]

    yield make
    for apps in made:
        for row in apps.scheduler.list():
            apps.scheduler.cancel(row.app_id)
        until(lambda apps=apps: not processes_below(apps.root), 30)


def shim_of(apps: Apps, app_id: str, k: int = 0) -> int:
    path = str(apps.dir(app_id) / f"run/0/0-main/{k}/0/pid")
    until(lambda: layout.read_json(path))
    return int(layout.read_json(path)["shim"])


def test_the_next_app_may_have_the_gpu_and_the_port_of_an_app_that_has_just_ended(
    gpu_apps: Callable[..., Apps],
) -> None:
    """The second of two tasks starts within milliseconds, and a supervisor releases them when it exits."""
    apps = gpu_apps("GPU-a")
    for _ in range(5):
        assert apps.run(sh("true", resource=GPU, port_map={"fixed": 29731})).state is AppState.SUCCEEDED


def test_gpu_that_another_app_got_meanwhile_is_lost(gpu_apps: Callable[..., Apps]) -> None:
    """The out-of-memory killer ended the whole first app, and the next app was faster than its retry."""
    apps = gpu_apps("GPU-a", "GPU-b")
    script = "echo $CUDA_VISIBLE_DEVICES; test $LAUNCH_ATTEMPT = 1 || exec sleep 330"
    first = apps.start(sh(script, resource=GPU, max_retries=1))
    until(lambda: apps.lines(first) == ["GPU-a\n"])
    shim = shim_of(apps, first)
    os.kill(parent_of(shim), signal.SIGKILL)
    os.kill(shim, signal.SIGKILL)
    until(lambda: not processes_below(apps.dir(first)))
    second = apps.start(sh(script, resource=GPU))
    until(lambda: apps.lines(second) == ["GPU-a\n"])

    assert apps.end(first).state is AppState.SUCCEEDED
    assert apps.lines(first) == ["GPU-a\n", "GPU-b\n"]


def test_app_without_a_gpu_left_reports_it(gpu_apps: Callable[..., Apps]) -> None:
    apps = gpu_apps("GPU-a")
    role = sh("echo up; exec sleep 331", resource=GPU, max_retries=1)
    first = apps.start(role)
    shim = shim_of(apps, first)
    os.kill(parent_of(shim), signal.SIGKILL)
    os.kill(shim, signal.SIGKILL)
    until(lambda: not processes_below(apps.dir(first)))
    second = apps.start(role)
    until(lambda: apps.lines(second) == ["up\n"])
    found = apps.end(first)

    assert found.state is AppState.FAILED
    assert "another app took the GPUs" in found.msg


def test_next_supervisor_takes_the_lease_over_from_shims(gpu_apps: Callable[..., Apps], tmp_path: Path) -> None:
    """The shim that had all GPUs ends, and a replica that was started later still uses one."""
    apps = gpu_apps("GPU-a", "GPU-b")
    script = (
        f"until test -e {tmp_path}/go$LAUNCH_REPLICA_ID; do sleep 0.05; done; "
        "case $LAUNCH_REPLICA_ID$LAUNCH_ATTEMPT in 10) exit 1;; 11) exec sleep 332;; esac"
    )
    retried = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
    app_id = apps.start(sh(script, num_replicas=2, resource=GPU, **retried))
    first, second = (shim_of(apps, app_id, k) for k in range(2))
    os.kill(parent_of(first), signal.SIGKILL)
    (tmp_path / "go1").touch()
    until(lambda: processes.start_time(second) == "")
    apps.scheduler.describe(app_id)
    again = str(apps.dir(app_id) / "run/0/0-main/1/1/pid")
    until(lambda: layout.read_json(again))
    (tmp_path / "go0").touch()
    until(lambda: processes.start_time(first) == "")
    time.sleep(1)

    assert leases.free_gpus(str(apps.root), ["GPU-a", "GPU-b"]) == []


def test_poll_at_a_gpu_does_not_keep_an_app_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check for free GPUs locks them for a moment."""
    roles = [{"name": "main", "replicas": [{}], "gpu": 1}]
    (tmp_path / "gpus").mkdir()
    observer = processes.try_lock(str(tmp_path / "gpus/GPU-a.lock"))
    assert observer is not None
    monkeypatch.setattr(time, "sleep", lambda _: os.close(observer))
    found = leases.Leases(str(tmp_path), str(tmp_path)).gpus(roles, ["GPU-a"], lambda: False)

    assert found == {"main/0": ["GPU-a"]}


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (sh("x", resource=Resource(cpu=1, gpu=1, memMB=1)), ["main", "resource.gpu=1", "none"]),
        (Role("main", "no/such/dir", entrypoint="x"), ["main", "no/such/dir", "directory"]),
        (Role("main", "repo/image:1", entrypoint="x"), ["repo/image:1"]),
    ],
)
def test_what_local_processes_cannot_do_is_refused_at_dry_run(apps: Apps, role: Role, words: list[str]) -> None:
    with pytest.raises(InvalidAppError) as caught:
        apps.start(role)

    assert all(word in str(caught.value) for word in words)
    assert not apps.root.exists()


def test_dry_run_makes_no_files_and_shows_what_is_not_enforced(apps: Apps) -> None:
    text = str(apps.scheduler.submit_dryrun(AppDef("app", [sh("x")]), {}))

    assert "not enforced" in text
    assert not apps.root.exists()


def test_negative_grace_is_refused(apps: Apps) -> None:
    with pytest.raises(InvalidAppError, match="grace_s"):
        apps.start(sh("true"), grace_s=-1)


def test_reply_file_of_a_failed_replica_is_reported(apps: Apps) -> None:
    found = apps.run(sh('echo \'{"message": "boom"}\' > $TORCHELASTIC_ERROR_FILE; exit 1'))

    assert json.loads(found.roles_statuses[0].replicas[0].structured_error_msg) == {"message": "boom"}


def test_current_directory_is_the_default_image(apps: Apps) -> None:
    app_id = apps.start(sh("pwd"))
    apps.end(app_id)

    assert apps.lines(app_id) == [f"{Path.cwd()}\n"]
