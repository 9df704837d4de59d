"""`@task.launch_python` through the real task runner, on real local processes, in both modes."""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
import os
import re
import socket
import sys
import time
import zlib
from pathlib import Path

import pytest
from airflow.sdk import Variable, task
from airflow.sdk._shared.secrets_masker import reset_secrets_masker
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.comms import DeferTask
from airflow.sdk.log import mask_secret

from airflow_provider_launch._task.places import checked_places, hidden_values, places_of
from airflow_provider_launch.decorators.launch_python import _plain, launch_python_task
from airflow_provider_launch.functions import Replica
from airflow_provider_launch.functions.result import values_of
from airflow_provider_launch.specs import AppState, Resource
from airflow_provider_launch.specs.errors import AppFailedError, InvalidAppError
from tests.airflow.guarantees import in_modes
from tests.airflow.support import FakeExecutionApi, Ran, a_dag, run_task, run_to_end

pytestmark = pytest.mark.engine("local")

FACTOR = 3


def scaled(number: float) -> float:
    return number * FACTOR


def train(lr: float, data: list[str], replica: Replica) -> dict:
    print(f"replica {replica.id} of {replica.count} has {replica.part(data)}")
    return {"loss": scaled(lr), "data": data, "rank": replica.id}


def fails(lr: float) -> float:
    return scaled_badly(lr)


def scaled_badly(number: float) -> float:
    raise ValueError(f"{number} is too bad")


def made(function, *args, options=None, **kwargs):
    """The task that a decorated function makes."""
    with a_dag():
        return launch_python_task(function, **(options or {}))(*args, **kwargs).operator


def value(api: FakeExecutionApi, task_id: str = "train"):
    return api.xcoms[task_id, "return_value"]


def run(operator, api: FakeExecutionApi, **where) -> Ran:
    return run_to_end(operator, api, **where)[0]


def test_airflow_finds_it() -> None:
    assert task.launch_python is launch_python_task


@in_modes
def test_the_value_of_replica_0_is_the_value_of_the_task(deferrable) -> None:
    api = FakeExecutionApi()
    options = {"num_replicas": 4, "deferrable": deferrable, "resource": Resource(cpu=1, gpu=0, memMB=64)}
    ran = run(made(train, 0.5, data=["a", "{{ run_id }}", "c", "d"], options=options), api)

    assert ran.error is None, ran.lines
    assert value(api) == {"loss": 1.5, "data": ["a", "test_run", "c", "d"], "rank": 0}
    assert ran.logged("[train/1] replica 1 of 4 has ['test_run']")
    found = api.xcoms["train", "app"]
    assert (found["state"], found["attempts"], found["roles"]) == ("SUCCEEDED", 1, {"train": [0, 0, 0, 0]})
    assert found["handle"] == api.xcoms["train", "handle"]
    assert "result" not in found


@in_modes
def test_gather_returns_the_values_of_all_replicas(deferrable) -> None:
    api = FakeExecutionApi()

    def share(items: list, replica: Replica):
        return replica.part(items)

    options = {"num_replicas": 3, "gather": True, "deferrable": deferrable}
    assert run(made(share, [*range(7)], options=options), api).error is None
    assert value(api, "share") == [[0, 1], [2, 3], [4, 5, 6]]


@in_modes
def test_an_error_shows_the_lines_of_the_dag_file(deferrable) -> None:
    api = FakeExecutionApi()
    ran = run(made(fails, 0.5, options={"deferrable": deferrable}), api)
    line = scaled_badly.__code__.co_firstlineno + 1

    assert isinstance(ran.error, AppFailedError)
    assert "ValueError: 0.5 is too bad" in str(ran.error)
    assert f"test_launch_python.py:{line}, in scaled_badly: raise ValueError(" in str(ran.error)
    assert ran.logged(f'File "{__file__}", line {line}, in scaled_badly')
    assert ran.logged('raise ValueError(f"{number} is too bad")')
    assert ("fails", "return_value") not in api.xcoms
    assert api.xcoms["fails", "app"]["state"] == "FAILED"
    assert api.xcoms["fails", "app"]["roles"] == {"fails": [1]}


@in_modes
def test_it_maps_and_another_task_branches_on_the_value(deferrable) -> None:
    api = FakeExecutionApi()
    with a_dag():

        @task.launch_python(deferrable=deferrable, retries=0)
        def score(lr: float, scale: float, run_id: str) -> dict:
            return {"lr": lr * scale, "run": run_id}

        mapped = score.partial(scale=10).expand(lr=[0.1, 0.2]).operator
    for index in range(2):
        api.store = {}  # the store of each task instance is its own
        ran = run(mapped, api, map_index=index)
        assert ran.error is None, ran.lines
    assert [api.xcoms["score", "return_value", index]["lr"] for index in range(2)] == [1.0, 2.0]
    # The annotation says that each key is pushed.
    assert api.xcoms["score", "run", 1] == "test_run"


def test_the_output_of_another_task_is_an_argument() -> None:
    api = FakeExecutionApi()
    api.xcoms["count", "return_value"] = [3, "$HOME {{ run_id }} ${app_id} $$ '\"\\"]
    with a_dag():

        @task
        def count() -> list:
            return []

        @task.launch_python
        def echo(items: list, more: list) -> list:
            return [items, more]

        operator = echo(count(), more=["$$ ${replica_id}", None, True, 1.5, {"a": {}}]).operator

    assert operator.upstream_task_ids == {"count"}
    assert run(operator, api).error is None
    assert value(api, "echo") == [
        [3, "$HOME {{ run_id }} ${app_id} $$ '\"\\"], ["$$ ${replica_id}", None, True, 1.5, {"a": {}}],
    ]  # fmt: skip


def test_texts_of_the_context_come_by_name() -> None:
    api = FakeExecutionApi()

    def named(run_id, params, word="x"):
        return [run_id, params, word]

    assert run(made(named, options={"params": {"depth": 3}}), api).error is None
    assert value(api, "named") == ["test_run", {"depth": 3}, "x"]


def test_an_app_of_its_own_retries() -> None:
    api = FakeExecutionApi()

    def second_time(replica: Replica):
        if not replica.attempt:
            raise OSError("the first time")
        return replica.attempt

    assert run(made(second_time, options={"max_retries": 1}), api).error is None
    assert value(api, "second_time") == 1
    assert api.xcoms["second_time", "app"]["attempts"] == 2


def test_a_bound_of_disruptions_is_that_of_the_role() -> None:
    def trained():
        return 1

    ran = run(made(trained, options={"max_disruptions": 3}), FakeExecutionApi())
    assert "role 'trained'" in str(ran.error)
    assert "max_disruptions" in str(ran.error)
    assert run(made(trained, options={"max_disruptions": 0}), FakeExecutionApi()).error is None


def test_variables_ports_and_the_python_are_those_of_the_role() -> None:
    api = FakeExecutionApi()

    def seen(replica: Replica):
        return [os.environ["WORD"], replica.port("my-port") > 0, replica.rank0_host, sys.executable,
                [name for name in os.environ if name.startswith("LAUNCH_FUNCTION")]]  # fmt: skip

    options = {"env": {"WORD": "{{ run_id }} ${replica_id}"}, "port_map": {"my-port": 0}}
    assert run(made(seen, options=options), api).error is None
    assert value(api, "seen") == ["test_run 0", True, "localhost", sys.executable, []]
    assert run(made(seen, options={**options, "python": "/no/python"}), FakeExecutionApi()).error is not None


@in_modes
def test_torch_gets_its_variables_and_the_replicas_meet(deferrable) -> None:
    api = FakeExecutionApi()

    def meet(replica: Replica):
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        known = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NNODES")]
        if replica.id == 0:
            with socket.create_server(address) as server, server.accept()[0] as other:
                return [known, other.recv(10).decode()]
        for _ in range(200):
            try:
                with socket.create_connection(address) as connection:
                    connection.sendall(f"from {replica.id}".encode())
                    return None
            except OSError:
                time.sleep(0.05)
        raise TimeoutError

    options = {"num_replicas": 2, "torch": True, "deferrable": deferrable}
    ran = run(made(meet, options=options), api)
    assert ran.error is None, ran.lines
    assert value(api, "meet") == [["0", "2", "0", "2"], "from 1"]


def test_a_workspace_brings_modules_next_to_the_file(tmp_path, monkeypatch) -> None:
    """Without one this is refused when the DAG is read."""
    api = FakeExecutionApi()
    (tmp_path / "nearby.py").write_text("WORD = 'here'\n")
    (tmp_path / "dag.py").write_text("import nearby\n\ndef word():\n    return nearby.WORD\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = __import__("dag").word
    monkeypatch.delitem(sys.modules, "dag")
    monkeypatch.delitem(sys.modules, "nearby")

    with pytest.raises(AirflowFailException, match=r"'nearby' lies next to its file; send it with workspace='\.'"):
        made(function)
    assert run(made(function, options={"workspace": str(tmp_path)}), api).error is None
    assert value(api, "word") == "here"


def test_an_exit_code_may_skip_the_task() -> None:
    api = FakeExecutionApi()

    def nothing():
        sys.exit(99)

    ran = run(made(nothing, options={"skip_on_exit_code": 99}), api)

    assert ran.state == "skipped"
    assert api.xcoms["nothing", "app"]["roles"] == {"nothing": [99]}


@in_modes
@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("{'at': [datetime.datetime(2026, 1, 1)]}", r"value\['at'\]\[0\] is a datetime \(datetime.datetime\(2026"),
        ("{1: 2}", "value has the key 1, which is not a text"),
        ("list(range(30_000))", "returned more than 65536 bytes; store it, and return its address"),
        ("os.urandom(6000).hex()", "12002 bytes, and packed more than 4096; store it, and return its address"),
        ("{'__classname__': 1}", "'__classname__'.*, which Airflow reserves"),
        ("os._exit(0)", r"returned no value, although its process succeeded: it was left by os\._exit"),
    ],
)
def test_an_impossible_value_ends_the_task_without_retries(deferrable, returned, text, launch_home) -> None:
    """The app stays, so that its work is not lost."""

    def bad(code: str):
        return eval(code, {"datetime": dt, "os": os})

    options = {"deferrable": deferrable, "retries": 3, "on_finish": "delete"}
    api = FakeExecutionApi(retries=3)
    ran = run(made(bad, returned, options=options), api)

    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    with pytest.raises(AirflowFailException, match=text):
        raise ran.error
    assert api.xcoms["bad", "app"]["state"] == "SUCCEEDED"
    assert len([*launch_home.glob("**/apps/*")]) == 1


@pytest.mark.parametrize("key", ["handle", "app", "launch_link_scheduler"])
def test_a_function_does_not_overwrite_the_xcoms_of_the_launcher(key: str) -> None:
    """A sensor follows the app in `handle`, and links lead to addresses in others."""
    api = FakeExecutionApi()

    def bad(key: str):
        return {key: "of the program"}

    ran = run(made(bad, key, options={"multiple_outputs": True}), api)

    assert ran.state == "failed"
    assert f"the function returned {key!r}, under which the launcher stores an XCom" in str(ran.error)
    assert "of the program" not in str(api.xcoms)
    kept = run(made(bad, key, options={"multiple_outputs": False}), FakeExecutionApi())
    assert kept.error is None


def test_a_large_value_is_packed() -> None:
    api = FakeExecutionApi()

    def epochs(count: int):
        return [{"epoch": epoch, "loss": round(1 / (epoch + 1), 4)} for epoch in range(count)]

    assert run(made(epochs, 300), api).error is None
    assert value(api, "epochs") == epochs(300)
    assert len(json.dumps(value(api, "epochs"))) > 9000


class WorkerDiedError(BaseException):
    """The worker was lost."""


@in_modes
def test_a_lost_worker_does_not_run_the_function_again(deferrable, tmp_path) -> None:
    """The app succeeded and was removed, and the worker died before Airflow recorded the success."""
    runs = tmp_path / "runs"
    api = FakeExecutionApi(retries=1)

    def once(path: str):
        with open(path, "a") as file:  # noqa: PTH123 - the function has no other import
            file.write("x")
        return {"n": 7}

    def die(method, parts, _body) -> None:
        if (method, parts[0], parts[-1]) == ("POST", "xcoms", "return_value"):
            raise WorkerDiedError

    options = {"deferrable": deferrable, "on_finish": "delete", "retries": 1}
    operator = made(once, str(runs), options=options)
    api.on_call = die
    assert isinstance(run(operator, api).error, WorkerDiedError)
    api.on_call = lambda *_: None
    api.resume = {}
    ran = run_task(operator, api, try_number=2)

    assert not isinstance(ran.msg, DeferTask)
    assert value(api, "once") == {"n": 7}
    assert api.xcoms["once", "app"]["state"] == str(AppState.SUCCEEDED)
    assert runs.read_text() == "x"


def test_what_the_function_logs_and_prints_is_in_the_log() -> None:
    """Its logging too, which `@task.docker` loses."""
    api = FakeExecutionApi()

    def talk():
        logging.getLogger("mine").info("a line")
        logging.info("another")  # noqa: LOG015 - as functions do
        logging.debug("nothing")  # noqa: LOG015 - the same

    ran = run(made(talk), api)

    assert ran.logged("[talk/0] INFO mine: a line")
    assert ran.logged("[talk/0] INFO root: another")
    assert not ran.logged("nothing")
    assert value(api, "talk") is None if ("talk", "return_value") in api.xcoms else True


def test_the_request_shows_no_arguments(monkeypatch) -> None:
    """They may have a megabyte, or a secret."""
    api = FakeExecutionApi()

    def seen(word):
        return word

    assert run(made(seen, "in-the-arguments"), api).error is None
    assert "(function and arguments, " in api.rendered["request"]
    assert "in-the-arguments" not in api.rendered["request"]


SECRETS = [
    "hush-hush",
    'a "quoted" one',
    "with $1 $$ ${app_id}",
    "back\\\\slash\\\\n",
    "first line\nsecond line",
    "gräßlich",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_in_arguments_are_masked_by_a_triggerer_too(secret) -> None:
    """It has not fetched them: it knows only where they stand in the variables of the app."""
    reset_secrets_masker()
    mask_secret(secret)
    shows_no_secret(made(train, 0.1, [{"key": f"Bearer {secret}"}]), secret)


TOKENS: object = []


def with_a_global_value():
    return TOKENS


VALUES = {
    "list": lambda text: [text],
    "tuple": lambda text: (text, 1),
    "set": lambda text: {text},
    "frozenset": lambda text: {"x": frozenset({text})},
    "bytes": lambda text: text.encode(),
    "dict": lambda text: {1: text},
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", [*VALUES, "closure"])
def test_secrets_in_values_of_the_file_are_masked_by_a_triggerer_too(secret, place, monkeypatch) -> None:
    """Such as `TOKEN = Variable.get("token")` at the top of the DAG file."""
    monkeypatch.setitem(globals(), "TOKENS", VALUES.get(place, str)(f"Bearer {secret}"))
    header = {"Authorization": f"Bearer {secret}"}

    def with_closure():
        return header

    reset_secrets_masker()
    mask_secret(secret)
    shows_no_secret(made(with_closure if place == "closure" else with_a_global_value), secret)


def shows_no_secret(operator, secret: str) -> None:
    app = operator._rendered_app()
    places = checked_places(json.loads(json.dumps(places_of(app))))
    assert places is not None
    reset_secrets_masker()

    assert not any(secret in str(place) for place in places)
    # Which of overlapping forms Airflow's masker finds first depends on the order of a set.
    shown = f"x {secret} y"
    for value in sorted(hidden_values(app.roles, {}, places), key=len, reverse=True):
        shown = shown.replace(value, "***")
    assert not [word for word in re.findall(r"\w{3,}", secret) if word in shown], shown


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (lambda: 1, {"task_id": "t"}, "needs a function made with 'def', not a lambda"),
        (train, {"app": 1}, "leave `app` out"),
        (train, {"component": "x"}, "leave `component` out"),
        (train, {"wait": False}, "leave `wait` out"),
        (train, {"results": "all"}, "use `gather=True`"),
        (train, {"requirements": ["torch"]}, "build them into the image, for example by `Dockerfile.torchx`"),
        (train, {"num_replicas": 0}, "must be at least 1"),
        (train, {"on_kill": "no"}, "on_kill='no'"),
    ],
)
def test_impossible_options_are_refused_when_the_dag_is_read(function, options, text) -> None:
    with pytest.raises(InvalidAppError, match=text):
        made(function, 0.1, [], options=options)


def of_context(ti):
    return ti


@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (
            train,
            ({"a": [dt.date(2026, 1, 1)]}, []),
            r"argument lr\['a'\]\[0\] is a date \(.*; use .isoformat\(\)",
        ),
        (train, (Path("/x"), []), r"argument lr is a PosixPath, .*; use str\(\)"),
        (train, (float("inf"), []), "argument lr is a float"),
        (of_context, (), "parameter 'ti' of 'of_context' is a part of Airflow's context that stays on the worker"),
    ],
)
def test_impossible_arguments_are_refused_when_the_dag_is_read(function, args, text) -> None:
    with pytest.raises(InvalidAppError, match=text):
        made(function, *args)


def tuned(lr: float, words: list[str], replica: Replica) -> float:
    return lr


DAY = dt.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("expand", "text"),
    [
        (lambda f: f.expand(lr=[0.1, {"a": [DAY]}]), r"argument lr\[1\]\['a'\]\[0\] is a date .*; use .isoformat\(\)"),
        (lambda f: f.expand(lr={"a": 1, "b": Path("/x")}), r"argument lr\['b'\] is a PosixPath, .*; use str\(\)"),
        (lambda f: f.expand(lr={DAY: 1}), r"argument lr, key datetime.date\(2026, 1, 1\), is a date"),
        (lambda f: f.expand(lr=(1, float("nan"))), r"argument lr\[1\] is a float \(nan\)"),
        (
            lambda f: f.expand_kwargs([{"lr": 1}, {"lr": [1, {2}]}]),
            r"argument expand_kwargs\[1\]\['lr'\]\[1\] is a set",
        ),
        (lambda f: f.expand_kwargs([{"lr": {1: 2}}]), r"argument expand_kwargs\[0\]\['lr'\], key 1, is a int"),
        (lambda f: f.override(retries=2).expand(lr=[DAY]), r"argument lr\[0\] is a date"),
        (lambda f: f.partial(words=[DAY]).expand(lr=[1]), r"argument words\[0\] is a date"),
        (lambda f: f.expand(replica=[]), "argument 'replica' of 'tuned' is given by the launcher; leave it out"),
        (lambda f: f.expand_kwargs([{"replica": 1}]), "argument 'replica' of 'tuned' is given by the launcher"),
        (lambda f: f.override(wait=False).expand(lr=[1]), "@task.launch_python: the task returns the value"),
    ],
    ids=range(11),
)
def test_impossible_arguments_of_a_mapped_task_are_refused_when_the_dag_is_read(expand, text) -> None:
    """Airflow creates the operator of a mapped task only in a run."""
    with a_dag() as dag, pytest.raises(InvalidAppError, match=f"^task 'tune': {text}"):
        expand(launch_python_task(tuned, task_id="tune"))
    assert not dag.tasks


def test_a_mapped_parameter_of_the_context_is_refused_unless_a_run_may_give_it() -> None:
    with a_dag():

        @task
        def rows() -> list:
            return [{"ti": 1}]

        with pytest.raises(InvalidAppError, match="parameter 'ti' of 'of_context' is a part of Airflow's context"):
            launch_python_task(of_context).expand_kwargs([{}])
        assert launch_python_task(of_context).expand_kwargs([{"ti": 1}, rows()])
        assert launch_python_task(of_context, task_id="later").expand_kwargs(rows())


def test_mapped_arguments_that_json_can_hold_arrive() -> None:
    """Each kind of `expand`: a range, a dict, whose items are pairs, outputs of tasks, and dicts of arguments."""
    found = []
    with a_dag():

        @task
        def rows() -> list:
            return []

        def seen(x, y=None):
            return [x, y]

        mapped = [
            launch_python_task(seen, task_id="range").expand(x=range(1, 3)).operator,
            launch_python_task(seen, task_id="dict").expand(x={1: "{{ run_id }}", "b": [None]}).operator,
            launch_python_task(seen, task_id="output").partial(y=2).expand(x=rows()).operator,
            launch_python_task(seen, task_id="parts").expand(x=[rows(), 3]).operator,
            launch_python_task(seen, task_id="kwargs").expand_kwargs([{"x": 1}, {"x": 2, "y": {"a": 1.5}}]).operator,
        ]
    for operator in mapped:
        api = FakeExecutionApi()
        api.xcoms["rows", "return_value"] = [8, 9]
        assert run(operator, api, map_index=1).error is None
        found.append(api.xcoms[operator.task_id, "return_value", 1])
    assert found == [[2, None], [["b", [None]], None], [9, 2], [3, None], [2, {"a": 1.5}]]


def test_parameters_of_a_dag_are_a_dict_for_the_function() -> None:
    """`dag.params` is an object of Airflow, which no image needs to have."""
    found = _plain({"all": ParamsDict({"depth": 3})})

    assert found == {"all": {"depth": 3}}
    assert type(found["all"]) is dict


def test_parts_of_airflow_stay_on_the_worker() -> None:
    with a_dag():

        @task
        def count() -> int:
            return 1

        number = count()

        def calls_a_task():
            return count()

        def uses_an_output():
            return number

        def uses_airflow():
            return Variable.get("x")

        def imports_airflow():
            from airflow.sdk import conf

            return conf

        def calls_itself(n: int):
            return n and again(n - 1)

        again = launch_python_task(calls_itself, task_id="again")
        texts = {
            calls_a_task: "it uses the task 'count'; call that outside, and pass its output as an argument",
            uses_an_output: "'number' is the output of a task, which stays on the worker; pass what it needs",
            uses_airflow: "'Variable' is a part of Airflow, which stays on the worker; pass what it needs",
            imports_airflow: "'airflow.sdk' is a part of Airflow, which stays on the worker; pass what it needs",
            calls_itself: "it calls 'calls_itself' by another name, 'again'; use one name",
        }
        for function, text in texts.items():
            with pytest.raises(InvalidAppError, match=f"function '{function.__name__}' .* cannot travel: {text}"):
                launch_python_task(function)


def test_a_task_calls_itself_by_its_own_name() -> None:
    api = FakeExecutionApi()
    with a_dag():

        @task.launch_python
        def halves(n: int, found: list = []) -> list:  # noqa: B006 - a default that JSON can hold
            return halves(n // 2, [*found, n]) if n else found

        operator = halves(5, []).operator
    assert run(operator, api).error is None
    assert value(api, "halves") == [5, 2, 1]


def test_the_replica_is_not_an_argument_of_the_task() -> None:
    with pytest.raises(InvalidAppError, match="argument 'replica' of 'train' is given by the launcher"):
        made(train, 0.1, [], replica=None)
    with pytest.raises(TypeError, match="missing a required argument: 'data'"):
        made(train, 0.1)


def test_a_dry_run_shows_the_request(capsys) -> None:
    made(train, 0.1, ["a"]).dry_run()

    assert "(function and arguments, " in capsys.readouterr().out


def test_the_values_of_all_replicas_have_a_limit_after_they_are_unpacked() -> None:
    """Each document of 150 bytes became 64 KB in Airflow's database."""
    text = "[" + ",".join(["[]"] * 20_000) + "]"
    document = {"packed": base64.b85encode(zlib.compress(text.encode(), 9)).decode()}
    unpacked = []

    def documents():
        for _ in range(1000):
            unpacked.append(1)
            yield document

    with pytest.raises(InvalidAppError, match="let each replica return less"):
        values_of(documents(), 200_000)
    assert len(unpacked) == 4
    assert len(values_of([document] * 3, 200_000)) == 3
