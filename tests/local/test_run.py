"""What a role asks for, it gets."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import (
    AppDef,
    AppState,
    InvalidAppError,
    LaunchError,
    Resource,
    Role,
    macros,
)
from tests.support.local import Apps, sh


def test_host_and_signal_without_a_name_are_told(apps: Apps) -> None:
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


def test_replicas_agree_on_a_chosen_port_and_reach_rank_0(apps: Apps) -> None:
    """A distributed app meets at replica 0 of its first role; the port must be the same for all and free."""
    server = (
        "import os,socket; s=socket.create_server(('', int(os.environ['LAUNCH_PORT_HEAD_RPC'])));"
        "print([s.accept()[0].recv(9).decode() for _ in range(2)])"
    )
    client = (
        "import os,socket,time\nfor i in range(200):\n try:\n"
        "  s=socket.create_connection((os.environ[os.environ['R0']], int(os.environ['LAUNCH_PORT_HEAD_RPC']))); break\n"
        " except OSError: time.sleep(.05)\ns.send(b'hi')"
    )
    head = Role("head", "", entrypoint=sys.executable, args=["-c", server], port_map={"rpc": 0, "fixed": 12345})
    env = {"R0": macros.rank0_env}
    worker = Role("worker", "", entrypoint=sys.executable, args=["-c", client], env=env, num_replicas=2)
    app_id = apps.start(head, worker)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id, "head") == ["['hi', 'hi']\n"]


def test_two_apps_get_different_ports(apps: Apps) -> None:
    role = sh("echo $LAUNCH_PORT_MAIN_P; sleep 1", port_map={"p": 0})
    ids = [apps.start(role) for _ in range(4)]
    for app_id in ids:
        apps.end(app_id)

    assert len({apps.lines(app_id)[0] for app_id in ids}) == 4


def test_environment_of_the_launcher_is_not_inherited(apps: Apps, monkeypatch) -> None:
    """A worker's environment holds the URL of Airflow's database and other secrets."""
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


def test_dry_run_makes_no_files_and_says_what_is_not_enforced(apps: Apps) -> None:
    text = str(apps.scheduler.submit_dryrun(AppDef("app", [sh("x")]), {}))

    assert "not enforced" in text
    assert not apps.root.exists()


def test_negative_grace_is_refused(apps: Apps) -> None:
    with pytest.raises(InvalidAppError, match="grace_s"):
        apps.start(sh("true"), grace_s=-1)


def test_reply_file_of_a_failed_replica_is_told(apps: Apps) -> None:
    found = apps.run(sh('echo \'{"message": "boom"}\' > $TORCHELASTIC_ERROR_FILE; exit 1'))

    assert json.loads(found.roles_statuses[0].replicas[0].structured_error_msg) == {"message": "boom"}


def test_current_directory_is_the_default_image(apps: Apps) -> None:
    app_id = apps.start(sh("pwd"))
    apps.end(app_id)

    assert apps.lines(app_id) == [f"{Path.cwd()}\n"]
