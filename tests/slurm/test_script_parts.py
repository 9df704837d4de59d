"""Functions of the script of a job, with stand-ins for the commands of Slurm. No engine is needed."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers import slurm

SCRIPTS = Path(slurm.__file__).parent / "scripts"
SCRIPT, REPLICA = (SCRIPTS / "launch.sh").read_text(), (SCRIPTS / "replica.sh").read_text()


def function(name: str, script: str = SCRIPT) -> str:
    begin = script.index(f"\n{name}() {{")
    return script[begin : script.index("\n}\n", begin) + 3]


RUNNING = "echo 'JobId=7 JobName=x JobState=RUNNING Reason=None Requeue=1 Restarts=1 BatchFlag=1 '"


@pytest.mark.parametrize(
    ("scontrol", "is_current"),
    [
        (RUNNING, True),
        (f"echo 'scontrol: a warning' >&2; {RUNNING}", True),
        (RUNNING.replace("Restarts=1 ", "Restarts=2 "), False),
        (RUNNING.replace("RUNNING", "PENDING"), False),
        (RUNNING.replace("RUNNING", "NODE_FAIL"), False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", True),
        ("sleep 300", True),
        ("exit 1", True),
    ],
)
def test_a_controller_that_gives_no_answer_has_not_given_up_the_job(scontrol: str, is_current: bool) -> None:
    """The script left without an end or a retry, and the app was lost, when the controller was busy for 5 s."""
    parts = [
        "is_stopped() { return 1; }; sleep() { :; }",
        'timeout() { shift; command timeout 1 bash -c "$scontrol"; }',
        function("is_current"),
        "is_current",
    ]
    env = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "scontrol": scontrol, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", "\n".join(parts)], env=env, timeout=120, check=False)

    assert (done.returncode == 0) is is_current


POLICIES = "0:2:APPLICATION:0 1:1:APPLICATION:0"
ENDS = {"ok": "0,0", "failed": "3,0", "stopped": "143,1"}


def ran(names: str, call: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run functions of the script with records of ends: `<role>,<replica>=<end>`, by blanks."""
    records = []
    for name in names.split():
        at, _, end = name.partition("=")
        records += [f"start,0,{at},0,host,1.0", *([f"exit,0,{at},0,{ENDS[end]},{len(records)}.5"] if end else [])]
    text = "\n".join(["ls() { printf '%s\\n' $records; }", function("only_services_run"), function("outcome"), call])
    given = {"records": " ".join(records), "launch_policies": POLICIES, "PATH": "/usr/bin:/bin", **env}
    return subprocess.run(["bash", "-c", text], env=given, timeout=60, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("ends", "services", "expected"),
    [
        ("0,0=ok 0,1=ok 1,0=", "1", True),
        ("0,0=ok 0,1=ok 1,0=failed", "1", True),
        ("0,0=ok 0,1= 1,0=", "1", False),
        ("0,0=ok 0,1=failed 1,0=", "1", False),
        ("0,0=ok 0,1=stopped 1,0=", "1", False),
        ("0,0=ok 0,1=ok 1,0=", "", False),
        ("0,0= 0,1= 1,0=ok", "0", True),
    ],
)
def test_services_are_stopped_when_all_others_have_succeeded(ends: str, services: str, expected: bool) -> None:
    done = ran(ends, "only_services_run 0", launch_services=services)

    assert (done.returncode == 0, done.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("ends", "services", "expected"),
    [
        ("0,0=ok 0,1=ok 1,0=ok", "", "SUCCEEDED"),
        ("0,0=ok 0,1=ok 1,0=failed", "", "FAILED,1,0,3,0"),
        ("0,0=ok 0,1=ok 1,0=stopped", "", "STOPPED"),
        ("0,0=ok 0,1=ok 1,0=", "", "LOST,1,0,137,0"),
        ("0,0=ok 0,1=ok 1,0=stopped", "1", "SUCCEEDED"),
        ("0,0=ok 0,1=ok 1,0=failed", "1", "SUCCEEDED"),
        ("0,0=ok 0,1=ok 1,0=", "1", "SUCCEEDED"),
        ("0,0=ok 0,1=stopped 1,0=failed", "1", "FAILED,1,0,3,0"),
        ("0,0=ok 0,1=stopped 1,0=stopped", "1", "STOPPED"),
    ],
)
def test_the_outcome_of_an_attempt(ends: str, services: str, expected: str) -> None:
    done = ran(ends, "outcome 0 0", launch_services=services)

    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize("name", [b"08", b"x[$(touch evil)]", b"x\xff", b"9999999", b"1 2"])
def test_other_entries_of_a_program_are_no_attempts(tmp_path: Path, name: bytes) -> None:
    """In arithmetic, bash would run commands in a name, and leave the loop of the script at `08`."""
    for each in (b"0", b"2", name):
        (tmp_path / "run" / os.fsdecode(each)).mkdir(parents=True)
    text = function("last_attempt") + "while :; do attempt=$(last_attempt); echo $((attempt + 1)); break; done"
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert done.stdout == "3\n", done.stderr


def test_the_index_of_times_is_fine_at_first_and_coarse_later(tmp_path: Path) -> None:
    """Lines of short apps are ordered by it, and an index of days has a few MB."""
    parts = [
        "take_signals() { :; }; keep_grace() { :; }; check_at=99",
        "exec 5>>stdout 6>>stderr 7>>times 8<> <(:)",
        '(for n in $(seq 130); do echo "$n" >&5; sleep 0.05; done; echo 0 >&8) &',
        "pid=$!",
        function("note_times", REPLICA),
        function("await_program", REPLICA),
        "await_program; note_times",
        'exit "$code"',
    ]
    subprocess.run(["bash", "-c", "\n".join(parts)], cwd=tmp_path, timeout=120, check=True)

    times = [float(line.split()[0]) for line in (tmp_path / "times").read_text().splitlines()]
    assert 4 <= sum(0 < time - times[0] <= 1 for time in times) <= 10
    # The last one is written at the end of the program.
    late = [time for time in times[:-1] if time - times[0] > 5.5]
    assert len(late) > 1
    assert all(second - first > 0.45 for first, second in pairwise(late))
    assert int((tmp_path / "times").read_text().split()[-2]) == (tmp_path / "stdout").stat().st_size
