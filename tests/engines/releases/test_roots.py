"""A command in another root directory sees its own network and processes, and the folders that it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.engines.docker.daemon import EngineError
from tests.engines.docker.packages import needs_libraries
from tests.engines.releases import roots

BUSYBOX = shutil.which("busybox")


@pytest.fixture
def root(tmp_path) -> Path:
    """A root directory with the programs of a static busybox."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can enter a root directory")
    if BUSYBOX is None or needs_libraries(BUSYBOX):
        pytest.skip("no static busybox: Debian's package busybox-static")
    made = tmp_path / "root"
    for name in ("bin", "etc", "proc", "sys", "dev", "run"):
        (made / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, made / "bin/busybox")
    for name in ("sh", "ip", "cat", "ls", "ps", "mount", "stat", "test"):
        (made / "bin" / name).symlink_to("busybox")
    return made


def run(root: Path, script: str, *bound: Path, cwd: Path) -> list[str]:
    env = {**os.environ, "PATH": f"/bin:{os.environ['PATH']}", "ENTER_BIND": ":".join(map(str, bound))}
    command = roots.entering(root, ["/bin/sh", "-ec", script])
    done = subprocess.run(command, env=env, cwd=cwd, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_command_sees_the_folders_of_the_host_below_tmp_too(root, tmp_path) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "file").write_text("text\n")

    assert run(root, "cat file", folder, cwd=folder) == ["text"]


def test_it_has_processes_and_a_network_of_its_own(root) -> None:
    script = "test $$ -lt 20; ls /sys/class/net; ip -o -4 address show dev launch0; cat /etc/resolv.conf"

    shown = run(root, script, cwd=Path("/"))

    assert {"launch0", "lo"} <= set(shown)
    assert not {each.name for each in Path("/sys/class/net").iterdir() if each.name != "lo"} & set(shown)
    assert any("10.213.99.1/24" in line for line in shown)
    assert shown[-1] == "nameserver 127.0.0.1"


def test_nothing_is_left_mounted(root) -> None:
    run(root, "test -e /dev/null", cwd=Path("/"))

    assert str(root) not in Path("/proc/self/mountinfo").read_text()


def test_the_status_is_that_of_the_command(root) -> None:
    assert subprocess.run(roots.entering(root, ["/bin/sh", "-c", "exit 7"]), cwd="/", check=False).returncode == 7


def test_each_folder_is_bound_once() -> None:
    found = roots.bound_folders(["/work/checkout/.build/venv", "/opt/python"], Path("/work/checkout"))

    assert found == [Path("/work/checkout"), Path("/opt/python")]


def test_a_python_of_the_system_is_refused() -> None:
    with pytest.raises(EngineError, match="Python below /usr cannot be used in another release"):
        roots.bound_folders(["/work/checkout/.build/venv", "/usr"], Path("/work/checkout"))


def test_a_release_that_was_not_made_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(roots, "_BASE", tmp_path)

    with pytest.raises(EngineError, match=r"python -m tests\.engines\.releases make forky"):
        roots.enter("forky", ["true"])
