"""Running apps: roles, replicas, their inputs and results."""

from __future__ import annotations

import copy
import time

import pytest

from airflow_provider_launch.schedulers.api import Capability, has_own
from airflow_provider_launch.specs.errors import AppConflictError, LaunchError, UnknownAppException
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.owner import OWNER
from airflow_provider_launch.specs.roles import AppDef, RetryPolicy
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import NODE_CLOCK_S, Apps, ContractBase, replicas

ODD_TEXTS = (
    "a,b;c=d",
    "it's",
    'print "x"',
    "two\nlines\n",
    "naïve 日本語 🚀",
    " blanks  around ",
    "",
    "-n",
    "$HOME ${HOME} $(id) `id`",
    "\\ \\n %s %%",
    "*",
    "tab\tand\rreturn",
    "a [FIELD_PATH]metadata.name",
    "{{ ds }}",
    "x" * 100_000,
)
"""Texts that a shell, a template, a config file or a wire format may change on the way."""

_WRITES_ITS_NUMBER = f"echo '{{\"replica\": {macros.replica_id}}}' > $LAUNCH_RESULT_PATH"

TALK = """
if command -v nc >/dev/null && nc --help 2>&1 | grep -q BusyBox; then N=nc
elif command -v busybox >/dev/null; then N='busybox nc'
elif command -v python3 >/dev/null; then N=
else exit 77; fi
serve() {
    if [ "$N" ]; then $N -l -p "$1" <&3; else python3 -c '
import socket, sys
connection, _ = socket.create_server(("", int(sys.argv[1]))).accept()
sys.stdout.write(connection.makefile().readline())' "$1"; fi
}
send() {
    if [ "$N" ]; then $N -w 5 "$1" "$2"; else python3 -c '
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).sendall(sys.stdin.buffer.read())' "$1" "$2" 2>/dev/null; fi
}
"""
"""`serve PORT` prints the line that it receives, `send HOST PORT` sends its input: by busybox's nc, else by Python.

Other versions of nc have other options. Exit code 77 means that the image has neither.
"""


class RunningTests(ContractBase):
    """Roles and replicas run with the promised arguments and variables."""

    def test_one_role_runs_to_its_end(self, apps: Apps) -> None:
        """The minimum for a scheduler."""
        app_id = apps.start(apps.sh("echo hello"))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert found.app_id == app_id
        assert replicas(found)["main", 0].exit_code == 0
        assert apps.lines(app_id) == ["hello\n"]
        apps.expect_starts(app_id, 1)

    def test_several_roles_run_at_the_same_time(self, apps: Apps) -> None:
        """The replicas of a distributed app talk to each other; started one after the other they wait for ever."""
        app_id = apps.start(apps.sh("echo up; sleep 120", "a", num_replicas=2), apps.sh("echo up; sleep 120", "b"))
        places = [("a", 0), ("a", 1), ("b", 0)]
        for role, k in places:
            apps.until_written(app_id, "up", role, k)
        apps.until_running(app_id, *places)
        found = apps.scheduler.describe(app_id)

        assert found is not None
        assert sorted(replicas(found)) == places
        assert apps.engine.alive(app_id) is None or (apps.engine.alive(app_id) or 0) >= 3

    @pytest.mark.parametrize("count", [1, 5, 50])
    def test_each_replica_runs_once(self, apps: Apps, count: int) -> None:
        """An extra replica trains on the same data twice, a missing one leaves the others waiting."""
        app_id = apps.start(apps.sh(f"echo replica {macros.replica_id}", num_replicas=count))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert sorted(replicas(found)) == [("main", k) for k in range(count)]
        assert [apps.lines(app_id, k=k) for k in range(count)] == [[f"replica {k}\n"] for k in range(count)]
        apps.expect_starts(app_id, count)

    def test_a_replica_learns_who_it_is(self, apps: Apps) -> None:
        """Programs that do not use macros read their identity from these variables."""
        text = "echo $LAUNCH_APP_ID $LAUNCH_ROLE $LAUNCH_REPLICA_ID $LAUNCH_NUM_REPLICAS $LAUNCH_ATTEMPT"
        app_id = apps.start(apps.sh("true", "head"), apps.sh(text, "worker", num_replicas=2))
        apps.succeed(app_id)

        assert apps.lines(app_id, "worker", 1) == [f"{app_id} worker 1 2 0\n"]

    @pytest.mark.parametrize("code", [0, 3])
    def test_start_and_end_of_a_replica_are_reported(self, apps: Apps, code: int) -> None:
        """The times show the first failure, which caused the others, and the slow replicas."""
        before = time.time()
        app_id = apps.start(apps.sh(f"sleep 1; exit {code}"))
        apps.end(app_id)
        found = apps.another().describe(app_id)
        assert found is not None
        replica = replicas(found)["main", 0]
        started, ended = replica.start_time, replica.end_time

        assert started is not None
        assert ended is not None
        assert before - NODE_CLOCK_S <= started <= ended <= time.time() + NODE_CLOCK_S

    # ---- exit codes ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("code", [1, 7, 127, 255])
    def test_exit_code_is_reported(self, apps: Apps, code: int) -> None:
        """The exit code is often the only information about a failure."""
        found = apps.run(apps.sh(f"exit {code}"))

        assert found.state is AppState.FAILED
        assert replicas(found)["main", 0].state is AppState.FAILED
        assert replicas(found)["main", 0].exit_code == code
        assert str(code) in found.msg

    @pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("TERM", 143)])
    def test_signal_is_reported(self, apps: Apps, name: str, code: int) -> None:
        """A signal shows that another process ended the program."""
        found = apps.run(apps.sh(f"kill -{name} $$$$; sleep 120"))
        replica = replicas(found)["main", 0]

        assert found.state is AppState.FAILED
        assert replica.exit_code == code
        assert f"SIG{name}" in f"{replica.reason} {found.msg}"

    def test_what_a_program_writes_about_its_failure_is_reported(self, apps: Apps) -> None:
        """PyTorch writes the exception to this file; without it users must search the logs."""
        script = (
            'test -n "$TORCHELASTIC_ERROR_FILE" || exit 9; '
            'echo \'{"message": "no such column"}\' > $TORCHELASTIC_ERROR_FILE; exit 3'
        )
        found = apps.run(apps.sh(script), apps.sh("true", "other"))
        if replicas(found)["main", 0].exit_code == 9:
            pytest.skip("the scheduler does not set TORCHELASTIC_ERROR_FILE")

        assert "no such column" in found.structured_error_msg
        assert "no such column" in replicas(found)["main", 0].structured_error_msg

    def test_each_replica_has_its_own_exit_code(self, apps: Apps) -> None:
        """Only the exit code of the right replica shows the cause."""
        script = f"test {macros.replica_id} = 1 || exit 0; sleep 1; exit 9"
        found = apps.run(apps.sh("exit 0", "first"), apps.sh(script, "second", num_replicas=2))
        codes = {place: replica.exit_code for place, replica in replicas(found).items()}

        assert codes == {("first", 0): 0, ("second", 0): 0, ("second", 1): 9}

    def test_missing_program_fails_the_app_and_is_named(self, apps: Apps) -> None:
        """A misspelt program is the most common mistake; a name with a blank must not be split into two words."""
        app_id = apps.start(apps.role("main", "echo no-such-program"))
        found = apps.end(app_id)
        replica = replicas(found)["main", 0]
        shown = "".join([found.msg, replica.error_msg or "", replica.reason or "", *apps.lines(app_id)])

        assert found.state is AppState.FAILED
        assert replica.exit_code == 127
        assert "echo no-such-program" in shown

    def test_a_program_with_a_space_in_its_name_runs(self, apps: Apps, program_with_a_space: str | None) -> None:
        """An entrypoint is a path, not a shell command: `/opt/My Tools/train` is one program."""
        if program_with_a_space is None:
            pytest.skip("the backend has no `program_with_a_space`")
        app_id = apps.start(apps.role("main", program_with_a_space, "a  b", "it's"))
        found = apps.end(app_id)

        assert apps.lines(app_id) == ["<a  b>\n", "<it's>\n"]
        assert found.state is AppState.SUCCEEDED
        assert replicas(found)["main", 0].exit_code == 0

    # ---- macros and texts ------------------------------------------------------------------------------------

    def test_macros_are_replaced_per_replica_in_args_and_env(self, apps: Apps) -> None:
        """Replicas of a role are distinguished by macros."""
        # Without the capability the macro may be refused.
        rank0 = f'"$${macros.rank0_env}"' if Capability.RANK0 in self.capabilities else "none"
        role = apps.sh(
            f'echo {macros.app_id} {macros.replica_id} "$WHO" {rank0}',
            num_replicas=2,
            env={"WHO": f"{macros.replica_id}@{macros.app_id}"},
        )
        app_id = apps.start(role)
        apps.end(app_id)

        for k in range(2):
            found_id, number, who, host = apps.lines(app_id, k=k)[0].rstrip("\n").split(" ")
            assert (found_id, number, who) == (app_id, str(k), f"{k}@{app_id}")
            # The macro names the variable that holds the host.
            assert host
            assert "{" not in host

    def test_macros_in_metadata_do_not_disturb(self, apps: Apps) -> None:
        """Metadata is for people and tools: it must not be lost or break a launch."""
        note = {"note": f"replica {macros.replica_id}", "nested": {"list": [1, "$$"]}}
        app_id = apps.start(apps.sh("true", metadata=copy.deepcopy(note)))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert [role.metadata for role in found.roles] == [note]

    def test_notes_about_the_app_are_kept(self, apps: Apps) -> None:
        """The metadata shows the owner of an app that was found by its handle."""
        note = {"team": "speech", "ticket": 17}
        app = AppDef("contract", [apps.sh("true")], metadata=dict(note))
        app_id = apps.scheduler.schedule(apps.scheduler.submit_dryrun(app, apps.cfg, app_id=apps.new_id()))
        apps.succeed(app_id)
        found = apps.another().describe(app_id)

        assert found is not None
        assert {key: found.metadata.get(key) for key in note} == note

    def test_dollars_that_are_no_macros_are_kept(self, apps: Apps) -> None:
        """`${HOME}` is for the program's own shell; only `$$` is replaced, by `$`."""
        texts = ["$$HOME", "${unknown}", "$", "100$", "$1", "${unclosed", "$$$$"]
        app_id = apps.start(apps.role("main", "printf", "%s\\n", *texts))
        apps.succeed(app_id)

        assert "".join(apps.lines(app_id)).splitlines() == [text.replace("$$", "$") for text in texts]

    def test_args_reach_the_program_unchanged(self, apps: Apps) -> None:
        """A shell, template or wire format must not interpret parts of them."""
        odd = [macros.escape(text) for text in ODD_TEXTS]
        role = apps.role("main", "sh", "-c", 'for arg; do printf "<%s>\\n" "$arg"; done', "sh", *odd)
        app_id = apps.start(role)
        apps.succeed(app_id)

        assert "".join(apps.lines(app_id)) == "".join(f"<{text}>\n" for text in ODD_TEXTS)

    def test_env_reaches_the_program_unchanged(self, apps: Apps) -> None:
        """Passwords and JSON contain commas, quotes and newlines."""
        env = {f"ODD_{number}": macros.escape(text) for number, text in enumerate(ODD_TEXTS)}
        script = "; ".join(f'printf "<%s>\\n" "$ODD_{number}"' for number in range(len(ODD_TEXTS)))
        app_id = apps.start(apps.sh(script, env=env))
        apps.succeed(app_id)

        assert "".join(apps.lines(app_id)) == "".join(f"<{text}>\n" for text in ODD_TEXTS)

    def test_environment_of_the_launcher_is_not_inherited(self, apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker's environment holds the URL of Airflow's database and other secrets."""
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "secret-of-the-launcher")
        monkeypatch.setenv("SOME_TOKEN", "secret-of-the-launcher")
        app_id = apps.start(apps.role("main", "env", env={"MINE": "yes"}))
        apps.succeed(app_id)
        text = "".join(apps.lines(app_id))

        assert "MINE=yes" in text
        assert "secret-of-the-launcher" not in text

    # ---- names -----------------------------------------------------------------------------------------------

    def test_odd_and_long_names_of_roles_are_kept(self, apps: Apps) -> None:
        """Names are for people; the scheduler converts them to valid names of the engine."""
        names = ["Ünïcode Rolle", "UPPER_case", "with space", "a/b", "..", "-lead", "1", "日本", "x" * 200]
        roles = [apps.sh(f"echo {number}; exit 0", name) for number, name in enumerate(names)]
        app_id = apps.start(*roles)
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert [role.role for role in found.roles_statuses] == names
        assert [apps.lines(app_id, name) for name in names] == [[f"{n}\n"] for n in range(len(names))]

    @pytest.mark.parametrize("name", ["Ünïcode /../ App", "..", "x" * 300, "日本", "$(id)", "-"])
    def test_odd_and_long_names_of_apps_give_valid_ids(self, apps: Apps, name: str) -> None:
        """Without a given id, the id is made from the name of the app."""
        app = AppDef(name, [apps.sh("echo hello")])
        app_id = apps.keep(apps.scheduler.schedule(apps.scheduler.submit_dryrun(app, apps.cfg)))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert apps.lines(app_id) == ["hello\n"]
        assert {row.app_id: row.name for row in apps.scheduler.list()}[app_id] == name

    def test_the_list_names_the_task_of_an_app(self, apps: Apps) -> None:
        """A clean-up can find the apps of a DAG, run or task, even if Airflow no longer has them."""
        task = {"dag_id": "d", "run_id": "manual__2026-01-01T00:00:00+00:00 ü", "task_id": "g.t", "map_index": 3}
        ours = AppDef("owned", [apps.sh("exit 0")], metadata={OWNER: task})
        one, other = (
            apps.keep(apps.scheduler.schedule(apps.scheduler.submit_dryrun(app, apps.cfg)))
            for app in (ours, AppDef("free", [apps.sh("exit 0")]))
        )
        owners = {row.app_id: row.owner for row in apps.another().list()}

        assert owners[one] == {name: str(value) for name, value in task.items()}
        assert owners[other] == {}

    @pytest.mark.parametrize(("one", "other"), [("a/b", "a b"), ("Main", "main"), ("a.b", "a-b"), ("日", "本")])
    def test_roles_whose_names_look_alike_are_kept_apart_or_refused(self, apps: Apps, one: str, other: str) -> None:
        """Engines allow few characters in names; logs and exit codes of two roles must not be mixed up."""
        roles = [apps.sh("echo one; exit 0", one), apps.sh("sleep 1; echo other; exit 5", other)]
        if refusal := apps.refusal(*roles):
            assert repr(one) in refusal
            assert repr(other) in refusal
            return
        app_id = apps.start(*roles)
        found = apps.end(app_id)

        assert {place: replica.exit_code for place, replica in replicas(found).items()} == {(one, 0): 0, (other, 0): 5}
        assert apps.lines(app_id, one) == ["one\n"]
        assert apps.lines(app_id, other) == ["other\n"]

    def test_apps_whose_names_run_together_are_kept_apart(self, apps: Apps) -> None:
        """App `x-y` with role `z`, and app `x` with role `y-z`: joined by hyphens both are `x-y-z`."""
        short = apps.new_id()
        longer = apps.keep(f"{short}-y")
        apps.start(apps.sh("echo short", "y-z"), app_id=short)
        try:
            apps.start(apps.sh("echo longer", "z"), app_id=longer)
        except AppConflictError:
            assert apps.traces(longer) == []
        else:
            assert apps.end(longer).state is AppState.SUCCEEDED
            assert apps.lines(longer, "z") == ["longer\n"]

        assert apps.end(short).state is AppState.SUCCEEDED
        assert apps.lines(short, "y-z") == ["short\n"]

    # ---- together --------------------------------------------------------------------------------------------

    def test_every_replica_reaches_rank_0(self, apps: Apps) -> None:
        """The replicas of a distributed app connect to replica 0 of its first role."""
        self.needs(Capability.RANK0)
        chosen = Capability.PORTS in self.capabilities
        ports = {"p0": 0, "p1": 0} if chosen else {"p0": 29511, "p1": 29512}
        # The input never ends, because a server closes the connection at the end of its input.
        server = "mkfifo silence; exec 3<>silence; rm -f silence; " + " & ".join(
            f"serve {f'$LAUNCH_PORT_HEAD_P{k}' if chosen else ports[f'p{k}']}" for k in range(2)
        )
        port = f"LAUNCH_PORT_HEAD_P{macros.replica_id}"
        client = (
            (f'eval "P=\\${port}"; ' if chosen else f"P=$((29511 + {macros.replica_id})); ")
            + f"H=$${macros.rank0_env}; i=0; "
            + f"until echo hi from {macros.replica_id} | send $H $P; do "
            + "i=$((i + 1)); test $i -lt 150 || exit 1; sleep 0.2; done"
        )
        app_id = apps.start(
            apps.sh(f"{TALK}{server} & wait", "head", port_map=ports if chosen else {}),
            apps.sh(TALK + client, "worker", num_replicas=2),
        )
        found = apps.end(app_id)
        if any(replica.exit_code == 77 for replica in replicas(found).values()):
            pytest.skip("the image has neither busybox nor python3, by which the replicas of this test talk")

        assert found.state is AppState.SUCCEEDED
        assert sorted(apps.lines(app_id, "head")) == ["hi from 0\n", "hi from 1\n"]

    def test_replicas_agree_on_ports(self, apps: Apps) -> None:
        """The scheduler chooses the port, and all replicas must use the same one."""
        script = "echo $LAUNCH_PORT_HEAD_RPC $LAUNCH_PORT_HEAD_WEB $LAUNCH_PORT_HEAD_FIXED"
        ports = {"rpc": 0, "web": 0, "fixed": 12345}
        roles = [apps.sh(script, "head", port_map=ports), apps.sh(script, "worker", num_replicas=2)]
        if Capability.PORTS not in self.capabilities:
            with self.refused("head", "port_map", apps.scheduler.backend):
                apps.dryrun(*roles)
            return
        app_id = apps.start(*roles)
        apps.succeed(app_id)
        seen = [apps.lines(app_id, role, k)[0] for role, k in [("head", 0), ("worker", 0), ("worker", 1)]]
        rpc, web, fixed = map(int, seen[0].split())

        assert len(set(seen)) == 1
        assert fixed == 12345
        assert 0 < rpc < 65536
        assert 0 < web < 65536
        assert len({rpc, web, fixed}) == 3

    # ---- result ----------------------------------------------------------------------------------------------

    def test_result_is_handed_back(self, apps: Apps) -> None:
        """The result of a training run, such as the path of its model, is passed to the next task."""
        self.needs(Capability.RESULT)
        script = 'echo \'{"loss": 0.5, "where": "naïve"}\' > $LAUNCH_RESULT_PATH'
        app_id = apps.start(apps.sh(script), apps.sh("true", "peer"))
        apps.succeed(app_id)

        assert apps.another().result(app_id) == {"loss": 0.5, "where": "naïve"}

    def test_result_is_that_of_the_first_replica(self, apps: Apps) -> None:
        """All replicas run the same program; the selected document must not depend on chance."""
        self.needs(Capability.RESULT)
        script = (
            'test $LAUNCH_ROLE/$LAUNCH_REPLICA_ID = main/0 || sleep 1; test -z "$LAUNCH_RESULT_PATH" || '
            'echo "\\"$LAUNCH_ROLE/$LAUNCH_REPLICA_ID\\"" > $LAUNCH_RESULT_PATH'
        )
        app_id = apps.start(apps.sh(script, num_replicas=2), apps.sh(script, "other", num_replicas=2))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert apps.scheduler.result(app_id) == "main/0"

    def test_every_replica_of_the_first_role_may_write_a_result(self, apps: Apps) -> None:
        """A program that writes in rank 0 needs the path in any replica, because torchrun chooses the rank."""
        self.needs(Capability.RESULT)
        app_id = apps.start(
            apps.sh('test -n "$LAUNCH_RESULT_PATH"', num_replicas=2), apps.sh('test -z "$LAUNCH_RESULT_PATH"', "peer")
        )

        assert apps.end(app_id).state is AppState.SUCCEEDED

    def test_result_is_that_of_the_lowest_replica_that_wrote_one(self, apps: Apps) -> None:
        """The rank 0 of torchrun may be any replica, and only that one writes a result."""
        self.needs(Capability.RESULT)
        script = f"test {macros.replica_id} != 1 || sleep 1; test {macros.replica_id} = 0 || {_WRITES_ITS_NUMBER}"
        app_id = apps.start(apps.sh(script, num_replicas=3))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert apps.another().result(app_id) == {"replica": 1}

    def test_results_of_all_replicas_are_handed_back_in_order(self, apps: Apps) -> None:
        """Each replica of a parameter sweep reports its own number."""
        self.needs(Capability.RESULT)
        if not has_own(apps.scheduler, "iter_results"):
            pytest.skip("the scheduler returns only one document of an app")
        script = f"test {macros.replica_id} != 0 || sleep 1; test {macros.replica_id} = 1 || {_WRITES_ITS_NUMBER}"
        app_id = apps.start(apps.sh(script, num_replicas=3), apps.sh("true", "peer"))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert [*apps.another().iter_results(app_id)] == [{"replica": 0}, None, {"replica": 2}]

    def test_an_empty_result_is_none(self, apps: Apps) -> None:
        """A program without a result may write an empty file."""
        self.needs(Capability.RESULT)
        app_id = apps.start(apps.sh("true > $LAUNCH_RESULT_PATH"))
        apps.end(app_id)

        assert apps.scheduler.result(app_id) is None

    def test_result_of_a_failed_attempt_is_none(self, apps: Apps) -> None:
        """The result of a failed attempt may be wrong."""
        self.needs(Capability.RESULT)
        self.needs(Capability.REPLICA_RETRY)
        script = "test $LAUNCH_ATTEMPT != 0 || { echo 1 > $LAUNCH_RESULT_PATH; exit 3; }"
        app_id = apps.start(apps.sh(script, max_retries=1, retry_policy=RetryPolicy.REPLICA))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert apps.scheduler.result(app_id) is None

    def test_result_of_a_failed_app_is_handed_back(self, apps: Apps) -> None:
        """The metrics of the last epoch before a failure are a result, too."""
        self.needs(Capability.RESULT)
        app_id = apps.start(apps.sh("echo '{\"epoch\": 3}' > $LAUNCH_RESULT_PATH; exit 3"))

        assert apps.end(app_id).state is AppState.FAILED
        assert apps.scheduler.result(app_id) == {"epoch": 3}

    def test_no_result_is_none(self, apps: Apps) -> None:
        """Most apps have no result, which is not an error."""
        app_id = apps.start(apps.sh("true"))
        apps.end(app_id)

        assert apps.scheduler.result(app_id) is None

    @pytest.mark.parametrize(
        "script",
        ["echo nope > $LAUNCH_RESULT_PATH", "printf '\"%05000d\"' 0 > $LAUNCH_RESULT_PATH"],
        ids=["broken", "large"],
    )
    def test_broken_or_large_result_is_an_error(self, apps: Apps, script: str) -> None:
        """Reporting an incomplete result as no result would be worse than an error."""
        self.needs(Capability.RESULT)
        app_id = apps.start(apps.sh(script))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        with pytest.raises(LaunchError, match="result"):
            apps.scheduler.result(app_id)

    def test_result_of_an_unknown_app_is_an_error(self, apps: Apps) -> None:
        """None would mean that the app ran and wrote no result."""
        self.needs(Capability.RESULT)
        with pytest.raises(UnknownAppException):
            apps.scheduler.result(apps.new_id())
