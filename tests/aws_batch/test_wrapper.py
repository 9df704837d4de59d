"""The script around a program, run by real shells: forwarded signals, exit codes, and lines in the log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.aws_batch import wrapper
from airflow_provider_launch.schedulers.aws_batch.wrapper import REPLICA, Script

SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]
ODD = (
    "it's",
    'say "x"',
    "a  b",
    "$HOME $(id) `id`",
    "two\nlines\n",
    "",
    "*",
    "\\n",
    "naïve 日本",
    "Ref::x",
    "-n",
    "$((1))",
)
PRINT = 'for text; do printf "<%s>" "$text"; done'


@pytest.fixture(params=SHELLS)
def shell(request) -> list[str]:
    return ["busybox", "sh"] if request.param == "busybox" else [request.param]


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESULT_PATH", "ERROR_PATH"):
        monkeypatch.setattr(wrapper, name, str(tmp_path / name))


def script(index: str = "0", exports: Mapping[str, str] | None = None, **how) -> Script:
    known = {
        "odd_env": {},
        "working_dir": None,
        "has_result": True,
        "counts_attempts": False,
        "is_node": False,
        "linger_s": 0,
    }
    return Script(":m", index, exports or {}, **{**known, **how})


def run(shell: Sequence[str], command: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
    assert command[:2] == ["sh", "-c"]
    done = subprocess.run(
        [*shell, *command[1:]], capture_output=True, text=True, check=False, timeout=30, env={**os.environ, **env}
    )
    # Each stream has at least this line, so that there is one of a silent program, too.
    assert done.stdout.startswith(":m-begin\n")
    done.stdout = done.stdout.removeprefix(":m-begin\n")
    return done


@pytest.mark.parametrize("program", ["sh"])
def test_arguments_arrive_byte_for_byte(shell, program) -> None:
    done = run(shell, script().command(program, ["-c", PRINT, "sh", *ODD]))

    assert done.stdout.startswith("".join(f"<{text}>" for text in ODD) + ":m-exit:0\n")


def test_the_number_of_the_replica_is_put_into_arguments_and_variables(shell) -> None:
    command = script("I-2", {"WHO": f"it's {REPLICA}", "EMPTY": ""}).command(
        "sh",
        ["-c", f'{PRINT}; printf "<%s>" "$WHO" "${{EMPTY-unset}}" $LAUNCH_REPLICA_ID', "sh", f"a {REPLICA} 'b'", *ODD],
    )
    done = run(shell, command, I="5")

    expected = ["a 3 'b'", *ODD, "it's 3", "", "3"]
    assert done.stdout.startswith("".join(f"<{text}>" for text in expected))


@pytest.mark.parametrize("code", [0, 1, 7, 127, 255])
def test_the_exit_code_is_that_of_the_program(shell, code) -> None:
    done = run(shell, script().command("sh", ["-c", f"exit {code}"]))

    assert done.returncode == code
    assert done.stdout == f":m-exit:{code}\n:m-end\n"
    assert done.stderr == f":m-exit:{code}\n"


def test_a_missing_program_is_127_and_named(shell) -> None:
    done = run(shell, script().command("no such program", []))

    assert done.returncode == 127
    assert "no such program" in done.stderr


@pytest.mark.parametrize(("trap", "code"), [("", 143), ("trap 'echo bye; exit 5' TERM; ", 5)], ids=["none", "polite"])
def test_a_signal_reaches_the_program_and_its_code_counts(shell, trap, code) -> None:
    command = script().command("sh", ["-c", f"{trap}echo up; while :; do sleep 0.1; done"])
    process = subprocess.Popen([*shell, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [":m-begin\n", "up\n"]
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=20)

    assert process.returncode == code
    assert rest == ("bye\n" if trap else "") + f":m-exit:{code}\n:m-end\n"


def test_a_program_killed_by_the_kernel_is_137(shell) -> None:
    done = run(shell, script().command("sh", ["-c", "kill -KILL $$"]))

    assert done.returncode == 137


def test_result_and_error_are_written_to_the_log(shell) -> None:
    write = 'printf "{\\n \\"a\\": 1\\n}" > $LAUNCH_RESULT_PATH; echo oops > $TORCHELASTIC_ERROR_FILE; printf rest'
    done = run(shell, script().command("sh", ["-c", write]))

    lines = ["rest:m-exit:0", ":m-error:oops", ":m-result:{", ':m-result: "a": 1', ":m-result:}", ":m-end"]
    assert done.stdout.splitlines() == lines


def test_a_large_result_is_only_named(shell) -> None:
    done = run(shell, script().command("sh", ["-c", "printf '%05000d' 0 > $LAUNCH_RESULT_PATH"]))

    assert ":m-result-large" in done.stdout
    assert "0000" not in done.stdout


def test_variables_whose_names_no_shell_takes_reach_the_program(shell) -> None:
    odd = {"my.dots": "it's $HOME", "worker-id": f"w{REPLICA}", "1st": "", "f%%": "x"}
    done = run(shell, script("I", odd_env=odd).command("env", []), I="1")

    assert {"my.dots=it's $HOME", "worker-id=w1", "1st=", "f%%=x"} <= {*done.stdout.splitlines()}


def test_each_replica_may_have_a_result(shell) -> None:
    done = run(shell, script("I").command("sh", ["-c", "echo 5 > $LAUNCH_RESULT_PATH"]), I="1")

    assert ":m-result:5\n" in done.stdout


def test_the_main_node_stays_after_its_success_and_ends_at_once_when_it_is_asked_to(shell) -> None:
    began = time.monotonic()
    assert run(shell, script("I", linger_s=1).command("true", []), I="0").returncode == 0
    assert time.monotonic() - began >= 1
    for code, index in ((3, "0"), (0, "1")):
        began = time.monotonic()
        assert run(shell, script("I", linger_s=20).command("sh", ["-c", f"exit {code}"]), I=index).returncode == code
        assert time.monotonic() - began < 10
    process = subprocess.Popen(
        [*shell, *script(linger_s=30).command("true", [])[1:]], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while process.stdout.readline() != ":m-end\n":
        pass
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_node_knows_the_address_of_the_main_node(shell) -> None:
    """The main node lacks this variable, and other nodes cannot reach a server that binds to `localhost`."""
    command = script("I", is_node=True).command("sh", ["-c", "echo $TORCHX_RANK0_HOST"])
    hosts = [line.split() for line in Path("/etc/hosts").read_text().splitlines()]
    name = Path("/etc/hostname").read_text().strip()
    own = [words[0] for words in hosts if words[1:2] == [name]]

    other = run(shell, command, I="1", AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS="10.0.0.7")
    assert other.stdout.startswith("10.0.0.7\n")
    assert run(shell, command, I="0").stdout.splitlines()[0] == (own[-1] if own else "localhost")


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("mkdir $f", ""),
        ("mkfifo $f", ""),
        ("ln -s /dev/zero $f", ""),
        ("dd of=$f bs=1 count=0 seek=900000000 2>/dev/null", ""),
        ("head -c 20000000 /dev/zero | tr '\\000' 9 >$f", ":m-result-large\n"),
    ],
)
def test_a_file_that_is_no_document_is_no_work(shell, act, expected) -> None:
    """The shell reads one byte at a time: a sparse file once kept the job running for ever."""
    done = run(shell, script().command("sh", ["-c", f"f=$LAUNCH_RESULT_PATH; {act}"]))

    assert done.stdout == f":m-exit:0\n{expected}:m-end\n"
