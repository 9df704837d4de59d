"""Variables and arguments reach the program byte for byte, or the dry run refuses them."""

from __future__ import annotations

import fnmatch

import pytest

from airflow_provider_launch.runner.api import Runner
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, replicas

NAMES = (
    "plain",
    "_",
    "lower_and_UPPER9",
    "my.dots",
    "worker-id",
    "1st",
    "a b",
    "ünï",
    "it's",
    'x"y',
    "a$b",
    "a;b",
    "f%%",
)
VALUES = (
    "",
    "$",
    "$$",
    "$$$$ $ ${ $} $()",
    "${app_id} ${replica_id} ${rank0_env} ${img_root}",
    "$(LAUNCH_REPLICA_ID) %(x)s {x}",
    "one\ntwo\n  three",
    'it\'s "quoted" `id`',
    "\\ \\n \\\\ #",
    " blanks ",
    "naïve 日本語",
)
LONGEST = 131_071
"""Maximum bytes of an argument, or of a variable with its name and `=`, in Linux, without the final NUL."""
_OF_THE_LAUNCHER = "of-the-launcher"
_OF_THE_SYSTEM = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG*", "LC_*", "TZ", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "TERM",
    "LD_*", "PYTHON*", "MODULE*", "LMOD*", "XDG_*", "*_CONF", "SSL_*", "CUDA_HOME", "CUDA_PATH",
)  # fmt: skip
"""Variables that are not about the replica, and those that the launcher needs to find programs."""


class ValueTests(ContractBase):
    """Values of the user arrive unchanged, and variables of the launcher do not override those of the scheduler."""

    def test_names_and_values_of_variables_arrive_or_are_refused(self, apps: Apps) -> None:
        """If a shell drops a variable, only the program notices, after hours in a queue."""
        taken = [name for name in NAMES if self._is_taken(apps, name)]
        texts = {f"{name}{number}": text for name in taken for number, text in enumerate(VALUES)}
        env = {name: macros.escape(text) for name, text in texts.items()}
        numbered = {f"{name}k": f"it's {macros.replica_id}" for name in taken}
        app_id = apps.start(apps.role("main", "env", env={**env, **numbered}))
        found = apps.end(app_id)
        shown = "\n" + "".join(apps.lines(app_id))
        texts |= dict.fromkeys(numbered, "it's 0")

        assert found.state is AppState.SUCCEEDED, found.msg
        assert [f"{name}={text}" for name, text in texts.items() if f"\n{name}={text}\n" not in shown] == []

    def _is_taken(self, apps: Apps, name: str) -> bool:
        refusals = {
            (text, refusal)
            for text in ("", "x", macros.replica_id)
            if (refusal := apps.refusal(apps.role("main", "env", env={name: text})))
        }
        for _, refusal in refusals:
            _, _, cure = refusal.partition(";")
            assert repr(name) in refusal, f"{refusal} does not name {name!r}"
            assert len(cure.split()) > 1, f"{refusal} names no cure, such as '...; rename it'"
        return not refusals

    def test_values_in_arguments_arrive(self, apps: Apps) -> None:
        """Values from other tasks may contain any characters, and macros in them are plain text."""
        role = apps.role("main", "printf", "<%s>\\n", *map(macros.escape, VALUES))
        app_id = apps.start(role)
        apps.end(app_id)

        assert "".join(apps.lines(app_id)) == "".join(f"<{text}>\n" for text in VALUES)

    @pytest.mark.parametrize("where", ["argument", "variable"])
    def test_the_longest_text_of_a_kernel_arrives_or_is_refused(self, apps: Apps, where: str) -> None:
        """Longer texts fail on every host and at every retry."""
        fitting, longer = _counting(apps, where, LONGEST), _counting(apps, where, LONGEST + 1)
        backend = apps.scheduler.backend
        runner = Runner("contract", {backend: lambda *_, **__: apps.another()})
        with runner, pytest.raises(InvalidAppError, match=str(LONGEST)):
            runner.dryrun(AppDef("contract", [longer]), backend, apps.cfg, app_id=apps.new_id())
        if apps.refusal(fitting):
            return  # by an engine that takes less
        app_id = apps.start(fitting)
        found = apps.end(app_id)

        assert replicas(found)["main", 0].exit_code == 0, found.msg
        assert "".join(apps.lines(app_id)).split() == [str(LONGEST - (len("LONG=") if where == "variable" else 0))]

    def test_variables_of_the_launcher_do_not_replace_those_of_the_scheduler(
        self, apps: Apps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A launcher inside a job has its own rank, job id and GPUs, which must not reach the replicas."""
        self.needs_option(apps, "copy_env", is_optional=True)
        roles = [apps.role("main", "env", num_replicas=2), apps.role("peer", "env")]
        app_id = apps.start(*roles)
        apps.end(app_id)
        lines = [line for k in range(2) for line in apps.lines(app_id, k=k)] + apps.lines(app_id, "peer")
        given = {line.partition("=")[0] for line in lines if "=" in line}
        names = [name for name in given if not any(fnmatch.fnmatchcase(name, known) for known in _OF_THE_SYSTEM)]
        for name in names:
            monkeypatch.setenv(name, _OF_THE_LAUNCHER)
        app_id = apps.start(*roles, **apps.options(copy_env=names))
        found = apps.end(app_id)
        lines = [line for k in range(2) for line in apps.lines(app_id, k=k)] + apps.lines(app_id, "peer")

        assert found.state is AppState.SUCCEEDED, found.msg
        assert [line for line in lines if _OF_THE_LAUNCHER in line] == []

    def test_variables_of_odd_names_of_the_launcher_do_not_disturb(
        self, apps: Apps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pattern may match more than intended: exported bash functions, names with dots."""
        self.needs_option(apps, "copy_env", is_optional=True)
        for name in ("LAUNCHER_%%", "LAUNCHER.x", "LAUNCHER-y", "LAUNCHER z", "LAUNCHER_é", "LAUNCHER_plain"):
            monkeypatch.setenv(name, "")
            monkeypatch.setenv(f"{name}1", "it's")
        app_id = apps.start(apps.role("main", "env"), **apps.options(copy_env=["LAUNCHER*"]))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED, found.msg
        assert "LAUNCHER_plain1=it's\n" in apps.lines(app_id)


def _counting(apps: Apps, where: str, size: int) -> Role:
    """Return a role that prints the number of bytes of a text, which ends with a two-byte letter."""
    text = "x" * (size - 2 - (len("LONG=") if where == "variable" else 0)) + "é"
    if where == "variable":
        return apps.sh('printf %s "$LONG" | wc -c', env={"LONG": text})
    return apps.role("main", "sh", "-c", 'printf %s "$1" | wc -c', "sh", text)
