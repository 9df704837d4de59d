"""What a role asks for, it gets."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.api import Capability, Stream
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import (
    AppDef,
    AppState,
    BindMount,
    InvalidAppError,
    LaunchError,
    Resource,
    RetryPolicy,
    Role,
    UnknownAppException,
    macros,
)
from tests.support.local import Apps, sh


def test_roles_and_replicas_run_and_are_reported(apps: Apps) -> None:
    before = int(time.time())
    app_id = apps.start(sh("exit 0", "a", num_replicas=5), sh("echo $LAUNCH_ROLE", "b", num_replicas=2))
    found = apps.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert {r.role: len(r.replicas) for r in found.roles_statuses} == {"a": 5, "b": 2}
    for role in found.roles_statuses:
        for replica in role.replicas:
            assert (replica.exit_code, replica.hostname, replica.num_restarts) == (0, socket.gethostname(), 0)
            assert before <= (replica.start_time or 0) <= (replica.end_time or 0) <= time.time()
    assert apps.lines(app_id, "b", 1) == ["b\n"]


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 7", 7, None),
        ("kill -9 $$$$", 137, "SIGKILL"),
        ("kill -TERM $$$$", 143, "SIGTERM"),
        ("kill -40 $$$$", 168, "signal 40"),
        ("nothing-here", 127, None),
    ],
)
def test_exit_code_and_signal_are_told(apps: Apps, script: str, code: int, reason: str | None) -> None:
    found = apps.run(sh(script))

    assert found.state is AppState.FAILED
    assert (found.roles_statuses[0].replicas[0].exit_code, found.roles_statuses[0].replicas[0].reason) == (code, reason)
    assert "main/0" in found.msg


def test_missing_program_is_127_with_the_reason_in_its_log(apps: Apps) -> None:
    app_id = apps.start(Role("main", "", entrypoint="no-such-program"))

    assert apps.end(app_id).roles_statuses[0].replicas[0].exit_code == 127
    assert "no-such-program" in "".join(apps.lines(app_id, streams=Stream.STDERR))


ODD = [
    "it's",
    'say "x"',
    "$HOME",
    "a\nb",
    "naïve 日本語",
    "a,b;c=d",
    "",
    " lead",
    "-n",
    "`id`",
    "\\",
    "\t\r",
    "x" * 100_000,
]


def test_odd_text_reaches_the_job_unchanged(apps: Apps) -> None:
    program = "import os,sys,json; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    escaped = [macros.escape(text) for text in ODD]
    for odd in ODD:
        role = Role(
            "main", "", entrypoint=sys.executable, args=["-c", program, *escaped], env={"ODD": macros.escape(odd)}
        )
        app_id = apps.start(role)
        apps.end(app_id)
        assert json.loads("".join(apps.lines(app_id))) == [ODD, odd]
        if len(odd) > 6:
            break


def test_macros_are_replaced_in_args_and_env(apps: Apps, tmp_path) -> None:
    args = [
        "-c",
        f"echo {macros.app_id} {macros.replica_id} {macros.img_root} $R0 $$${macros.rank0_env} '${{unknown}}'",
    ]
    role = Role("main", str(tmp_path), entrypoint="sh", args=args, env={"R0": macros.rank0_env}, num_replicas=2)
    app_id = apps.start(role)
    apps.end(app_id)

    assert apps.lines(app_id, k=1)[0].split()[:4] == [app_id, "1", str(tmp_path), "TORCHX_RANK0_HOST"]
    assert apps.lines(app_id, k=1)[0].rstrip().endswith("${unknown}")


def test_image_is_the_working_directory_and_in_path(apps: Apps, tmp_path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o755)
    (tmp_path / "sub").mkdir()
    app_id = apps.start(Role("main", str(tmp_path), entrypoint="tool"), working_dir="sub")
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
        (sh("x", max_retries=1, retry_policy=RetryPolicy.ROLE), ["main", "ROLE", "REPLICA or APPLICATION"]),
        (sh("x", mounts=[BindMount("/a", "/b")]), ["main", "mounts", "local"]),
        (sh("x", resource=Resource(cpu=1, gpu=1, memMB=1)), ["main", "resource.gpu=1", "none"]),
        (sh("x", resource=Resource(cpu=1, gpu=0, memMB=1, devices={"efa": 1})), ["main", "efa"]),
        (Role("main", "no/such/dir", entrypoint="x"), ["main", "no/such/dir", "directory"]),
        (Role("main", "repo/image:1", entrypoint="x"), ["repo/image:1"]),
    ],
)
def test_what_local_processes_cannot_do_is_refused_at_dry_run(apps: Apps, role: Role, words: list[str]) -> None:
    with pytest.raises(InvalidAppError) as caught:
        apps.start(role)

    assert all(word in str(caught.value) for word in words)
    assert not apps.root.exists()


def test_dry_run_touches_nothing_and_masks_secrets(apps: Apps) -> None:
    app = AppDef("app", [sh("x", env={"API_TOKEN": "hush", "LEVEL": "info"})])
    before = repr(app)
    text = str(apps.scheduler.submit_dryrun(app, {"grace_s": 3}))

    assert "hush" not in text
    assert "LEVEL=info" in text
    assert "not enforced" in text
    assert repr(app) == before
    assert not apps.root.exists()


def test_bad_ids_and_options_are_refused(apps: Apps) -> None:
    with pytest.raises(InvalidAppError, match=r"app id '\.\./x'"):
        apps.start(sh("true"), app_id="../x")
    with pytest.raises(InvalidAppError, match="grace_s"):
        apps.start(sh("true"), grace_s=-1)
    assert apps.scheduler.describe("../../etc") is None


def test_result_is_handed_back(apps: Apps) -> None:
    good = apps.start(sh("echo '{\"n\": 3}' > $LAUNCH_RESULT_PATH"))
    none = apps.start(sh("true"))
    broken = apps.start(sh("echo nope > $LAUNCH_RESULT_PATH"))
    large = apps.start(sh("head -c 5000 /dev/zero > $LAUNCH_RESULT_PATH"))
    for app_id in (good, none, broken, large):
        apps.end(app_id)

    assert Capability.RESULT in apps.scheduler.capabilities
    assert apps.scheduler.result(good) == {"n": 3}
    assert apps.scheduler.result(none) is None
    with pytest.raises(LaunchError, match="no JSON"):
        apps.scheduler.result(broken)
    with pytest.raises(LaunchError, match="5000 bytes"):
        apps.scheduler.result(large)
    with pytest.raises(UnknownAppException):
        apps.scheduler.result("unknown")


def test_reply_file_of_a_failed_replica_is_told(apps: Apps) -> None:
    found = apps.run(sh('echo \'{"message": "boom"}\' > $TORCHELASTIC_ERROR_FILE; exit 1'))

    assert json.loads(found.roles_statuses[0].replicas[0].structured_error_msg) == {"message": "boom"}


def test_native_request_is_kept(apps: Apps) -> None:
    app_id = apps.start(sh("true"))
    native = apps.scheduler.describe_native(app_id)

    assert native is not None
    assert native.request.roles[0].replicas[0].args == ["-c", "true"]
    assert apps.scheduler.describe_native("unknown") is None


def test_current_directory_is_the_default_image(apps: Apps) -> None:
    app_id = apps.start(sh("pwd"))
    apps.end(app_id)

    assert apps.lines(app_id) == [f"{Path.cwd()}\n"]
