"""The effects of options and fields on the cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError
from tests.slurm.conftest import Place

pytestmark = pytest.mark.engine("slurm")

WAITS = "echo up; while :; do sleep 0.1; done"


def test_a_submission_killed_at_any_step_starts_one_app(slurm_cluster, slurm_root, slurm_commands) -> None:
    """Even at its end, when the worker does not know the outcome. The next launch adopts or submits."""
    place = Place(slurm_cluster, slurm_root, slurm_bin=str(slurm_commands.dir))
    launched = {}
    for name in ("squeue", "sbatch", "scontrol"):
        for step in (name, f"after-{name}"):
            runs = slurm_root.parent / f"runs-{step}"
            info = place.info(place.sh(f"echo $LAUNCH_REPLICA_ID >>{runs}", num_replicas=2))
            with slurm_commands.killed(step), pytest.raises(SchedulerUnavailableError):
                place.scheduler.schedule(info)
            launched[place.scheduler.schedule(info)] = runs

    for app_id, runs in launched.items():
        assert place.end(app_id).state is AppState.SUCCEEDED, runs
        assert sorted(runs.read_text().split()) == ["0", "1"], runs


def test_a_signal_before_the_time_limit_lets_a_program_write_a_checkpoint(place) -> None:
    """Both replicas get the signal, and end in time: success. A replica that continues is ended at the limit."""
    trap = "trap 'echo checkpoint; exit 0' USR2"
    saves = place.start(place.sh(f"{trap}; {WAITS}", num_replicas=2), time_limit_s=7, signal_s=4, signal="USR2")
    goes_on = place.start(place.sh(f"trap 'echo checkpoint' USR1; {WAITS}"), time_limit_s=5, signal_s=3, grace_s=1)

    assert place.end(saves).state is AppState.SUCCEEDED
    for k in (0, 1):
        assert "checkpoint\n" in [*place.scheduler.log_iter(saves, "main", k)]
    found = place.end(goes_on)
    assert (found.state, found.msg) == (AppState.FAILED, "time limit of 5 s reached")
    assert [*place.scheduler.log_iter(goes_on, "main")].count("checkpoint\n") == 1


def test_setup_lines_run_in_a_login_shell_before_the_program(place) -> None:
    setup = ["shopt -q login_shell && export LOGIN=yes", "module() { export LOADED=$2; }", "module load 'a b'"]
    app_id = place.start(place.sh('echo "$LOGIN $LOADED $OWN"', env={"OWN": "x"}), setup=setup)

    assert place.end(app_id).state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main")] == ["yes a b x\n"]


def test_a_setup_line_that_ends_the_shell_is_the_end_of_the_replica(place) -> None:
    app_id = place.start(place.sh("echo ran"), setup=["module load missing || exit 9"])
    found = place.end(app_id)

    assert (found.state, found.roles_statuses[0].replicas[0].exit_code) == (AppState.FAILED, 9)
    assert "ran\n" not in [*place.scheduler.log_iter(app_id, "main")]


@pytest.mark.parametrize(
    ("line", "command", "code"),
    [
        ("false", "false", 1),
        ("source /no/such/venv/bin/activate", "source /no/such/venv/bin/activate", 1),
        ("module load cuda/99", "module load cuda/99", 127),
        ("for one in 1 2\ndo test $one = 1\ndone", "test $one = 1", 1),
        ('test "a\\b" = "c"', 'test "a\\b" = "c"', 1),
    ],
)
def test_a_setup_line_that_fails_ends_the_replica_with_the_line_in_its_error(place, line, command, code) -> None:
    """Otherwise the program would succeed with a wrong compiler, interpreter or library."""
    role = place.sh("echo ran")
    app_id = place.start(role, setup=["true", line])
    goes_on = place.start(role, setup=["true", line], on_setup_failure="continue")
    found = place.end(app_id)
    text = f"setup: '{command}' failed with {code}"

    assert (found.state, found.roles_statuses[0].replicas[0].exit_code) == (AppState.FAILED, code)
    assert json.loads(found.structured_error_msg)["message"] == text
    assert f"{text}\n" in [*place.scheduler.log_iter(app_id, "main")]
    assert "ran\n" not in [*place.scheduler.log_iter(app_id, "main")]
    assert place.end(goes_on).state is AppState.SUCCEEDED


def test_setup_lines_that_handle_a_failure_do_not_fail(place, tmp_path) -> None:
    """As with `set -e`; commands in sourced files are not checked."""
    file = place.root.parent / "activate"
    file.write_text("false\nfind_it() { false; true; }\nfind_it\nexport FOUND=yes\n")
    setup = ["false || true", "if false", "then exit 9", "fi", "test -e /none && exit 9", f"source {file}", "! true"]
    app_id = place.start(place.sh("echo $FOUND; false; echo ran"), setup=setup)

    assert place.end(app_id).state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main")] == ["yes\n", "ran\n"]


def test_a_number_that_squeue_does_not_list_is_not_released(slurm_cluster, slurm_root, slurm_commands) -> None:
    """Another cluster has created the job, and here its number belongs to a held job of the user."""
    held = slurm_cluster.run("sbatch", "--parsable", "--hold", "--wrap=true", "--output=/dev/null").strip()
    place = Place(slurm_cluster, slurm_root, slurm_bin=str(slurm_commands.dir))
    try:
        for answer, error, text in (
            (f"{held};b", SchedulerRejectedError, "held on another cluster; use a connection with"),
            ("slurm-wlm 22.05.8", SchedulerRejectedError, "held on another cluster; use a connection with"),
            (held, SchedulerUnavailableError, "squeue does not list job"),
        ):
            (slurm_commands.dir / "sbatch").write_text(f"#!/bin/sh\necho '{answer}'\n")
            with pytest.raises(error, match=text):
                place.start(place.sh("true"))

            assert slurm_cluster.run("squeue", "-h", "-j", held, "-o", "%T|%r").strip() == "PENDING|JobHeldUser"
    finally:
        slurm_cluster.run("scancel", held)


def test_a_step_that_slurm_refuses_shows_why(slurm_cluster, slurm_root, slurm_commands) -> None:
    """The author of the DAG cannot reach the files of the app."""
    srun = slurm_commands.dir / "srun"
    srun.write_text(
        "#!/bin/sh\necho 'srun: error: Unable to create step: Memory required is not available' >&2; exit 1\n"
    )
    srun.chmod(0o755)
    place = Place(slurm_cluster, slurm_root, slurm_bin=str(slurm_commands.dir))
    found = place.end(place.start(place.sh("true")))

    assert found.state is AppState.FAILED
    assert found.msg == (
        "Slurm could not start any replica: srun: error: Unable to create step: Memory required is not available"
    )


def test_a_waiting_app_shows_its_reason_and_its_expected_start(place) -> None:
    """The overlay passes options of sbatch that have no option here."""
    app_id = place.start(place.sh("true"), overlay={"begin": "now+1hour", "nice": 77}, comment="for Ada | Bob")
    shown = place.cluster.run("squeue", "-h", f"--name={app_id}", "-o", "%y|%k")
    deadline = time.monotonic() + 30
    while (
        "BeginTime" not in (found := place.scheduler.describe(app_id)).msg
    ):  # known after a round of Slurm's scheduler
        assert time.monotonic() < deadline, found
        time.sleep(0.5)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("waits in the queue: BeginTime; expected to start at ")
    assert "77|" in shown
    assert shown.strip().endswith("for Ada | Bob")


def test_replicas_inherit_what_is_listed_and_secrets_are_on_no_command_line(place, monkeypatch) -> None:
    monkeypatch.setenv("WORKER_SECRET", "hush")
    monkeypatch.setenv("HF_HOME", "/hf")
    monkeypatch.setenv("AIRFLOW_HF_HOME", "hush")
    role = place.sh("env; sleep 2", env={"OWN_SECRET": "hush-hush"})
    app_id = place.start(role, copy_env=["HF_*", "AIRFLOW_*"])
    place.written(app_id, "OWN_SECRET")
    seen = b"".join(file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists())
    place.end(app_id)
    names = {line.partition("=")[0] for line in place.scheduler.log_iter(app_id, "main")}

    assert b"hush-hush" not in seen
    assert {"OWN_SECRET", "HF_HOME", "PATH", "HOME", "LAUNCH_APP_ID", "SLURM_PROCID"} <= names
    assert not names & {"WORKER_SECRET", "AIRFLOW_HF_HOME"}
    for file in (place.root / "apps" / app_id).glob("role-*"):
        assert file.stat().st_mode & 0o077 == 0


def test_roles_with_different_needs_are_one_app_with_exact_retries(place) -> None:
    """The parts of a heterogeneous job start and end together."""
    counts = place.root.parent / "counts"
    script = f"echo $LAUNCH_ROLE >>{counts}; exit 3"
    small = place.sh("sleep 60", "small")
    large = place.sh(script, "large", max_retries=1)
    large.resource.cpu = 2
    found = place.end(place.start(small, large))

    assert found.state is AppState.FAILED
    assert counts.read_text().split() == ["large"] * 2
    assert found.msg == "large/0 exited with code 3"


def test_apps_that_ended_long_ago_are_removed_when_somebody_lists(place) -> None:
    place.params["keep_days"] = 0
    place.scheduler.close()
    app_id = place.start(place.sh("true"))
    place.end(app_id)
    time.sleep(1.1)
    other = type(place)(place.cluster, place.root, keep_days=0)
    other.scheduler.list()

    assert place.scheduler.describe(app_id) is None
    assert not (place.root / "apps" / app_id).exists()
