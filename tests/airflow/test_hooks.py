"""Connections: their meaning, and refused content."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.log import redact

from airflow_provider_launch._airflow import AirflowNotFoundException
from airflow_provider_launch.hooks.aws_batch import AwsBatchLaunchHook, clients_of_aws_connection
from airflow_provider_launch.hooks.docker import DockerLaunchHook
from airflow_provider_launch.hooks.kubernetes import KubernetesLaunchHook
from airflow_provider_launch.hooks.launch import HOOKS, LaunchHook
from airflow_provider_launch.hooks.local import LocalLaunchHook
from airflow_provider_launch.hooks.slurm import SlurmLaunchHook
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    InvalidRunConfigException,
    MissingDependencyError,
    SchedulerRejectedError,
)
from tests.airflow.plugin import OPENED
from tests.engines.docker.private import PrivateDocker
from tests.support.fake_scheduler import FakeScheduler


@pytest.fixture
def define(monkeypatch):
    def define(conn_type: str = "launch_local", conn_id: str = "c", **fields) -> LaunchHook:
        extra = fields.pop("extra", {})
        text = extra if isinstance(extra, str) else json.dumps(extra)
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, "extra": text, **fields})
        )
        return LaunchHook.for_connection(conn_id)

    return define


def test_the_default_connection_needs_no_definition() -> None:
    hook = LaunchHook.for_connection("launch_local_default")

    assert isinstance(hook, LocalLaunchHook)
    assert hook.options.cfg == {}


def test_any_other_connection_must_exist() -> None:
    with pytest.raises(AirflowNotFoundException):
        LaunchHook.for_connection("launch_local_other")


def test_extras_are_cast_and_null_is_unset(define, tmp_path) -> None:
    hook = define(extra={"root": str(tmp_path), "keep_days": "3", "grace_s": "2.5", "time_limit_s": None})

    assert hook.options.params["keep_days"] == 3
    assert hook.options.cfg == {"grace_s": 2.5}
    assert hook.options.identity == f"local root={tmp_path}"
    assert hook.runner.name() == "c"


def test_a_uri_connection_works(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", "launch-local://?keep_days=5&prepend_cwd=true")
    options = LaunchHook.for_connection("c").options

    assert options.params["keep_days"] == 5
    assert options.cfg == {"prepend_cwd": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extra": {"rot": "/x"}}, "root"),
        ({"extra": {"keep_days": "many"}}, "keep_days"),
        ({"extra": {"keep_days": -1}}, "keep_days"),
        ({"extra": {"grace_s": [1]}}, "grace_s"),
        ({"extra": {"placeholders": ["big"]}}, "'placeholders' must be an object of values by name, not list"),
        ({"extra": "{no json"}, "JSON"),
        ({"extra": "[1]"}, "object"),
        ({"host": "h", "login": "me"}, "host, login"),
        ({"conn_type": "launch_docker", "extra": {"hots": "tcp://h:1"}}, "host"),
        ({"conn_type": "launch_docker", "extra": {"pull": "sometimes"}}, "pull"),
        ({"conn_type": "launch_docker", "extra": {"tls_verify": "perhaps"}}, "tls_verify"),
        ({"conn_type": "launch_docker", "extra": {"timeout_s": 0}}, "timeout_s"),
        ({"conn_type": "launch_docker", "password": "p"}, "password"),
        ({"conn_type": "http"}, "launch_local"),
        ({"conn_type": "launch"}, "scheduler"),
        ({"conn_type": "launch", "extra": {"scheduler": "x", "quue": 1}}, "quue"),
        ({"conn_type": "launch", "extra": {"scheduler": "x", "cfg": "y"}}, "cfg"),
    ],
)
def test_errors_in_a_connection_are_named(define, fields, message) -> None:
    with pytest.raises(InvalidAppError, match=message):
        define(**fields).options  # noqa: B018 - the reading is the act


@pytest.mark.parametrize("page", ["quickstart", "docker", "kubernetes", "aws_batch", "plugins"])
def test_the_connections_in_the_docs_are_accepted(define, checkout, page) -> None:
    """Whoever copies a command must not learn from the first task that an extra is unknown."""
    text = (checkout / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"connections add \w+ --conn-type (\w+) --conn-extra '(.+?)'", text, re.DOTALL)

    assert found
    for conn_type, extra in found:
        assert define(conn_type, extra=extra).options.backend


def test_a_type_of_ours_means_our_scheduler(define, engine, tmp_path, monkeypatch) -> None:
    """Another installed plug-in cannot get the credentials of a connection of a built-in type."""
    info = tmp_path / "other_local-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-local\nVersion: 1.0\n")
    group = "airflow_provider_launch.schedulers"
    (info / "entry_points.txt").write_text(f"[{group}]\nlocal = tests.airflow.plugin:create_scheduler\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    extra = {"scheduler": "local", "params": {"engine": engine.name}}

    hook = define("launch", extra=extra)
    assert isinstance(hook.scheduler, FakeScheduler)
    hook.close()
    assert isinstance(define(extra={"root": str(tmp_path)}).scheduler, LocalScheduler)


def test_cfg_wins_over_the_connection(define) -> None:
    hook = define(extra={"grace_s": 1, "working_dir": "w"})

    assert hook.merged_cfg({"graceS": 2.0}) == {"grace_s": 2.0, "working_dir": "w"}


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        ({"root": "/x"}, "cfg of the task: option 'root' defines where apps run; set it in connection 'c'"),
        ({"grace": 1}, "cfg of the task: unknown option 'grace'; did you mean 'grace_s'?"),
    ],
)
def test_errors_in_cfg_are_reported_as_errors_of_the_task(define, cfg, text) -> None:
    with pytest.raises(InvalidRunConfigException) as caught:
        define(extra={"grace_s": 1}).merged_cfg(cfg)

    assert str(caught.value).startswith(text)
    # One traceback in the log, not three.
    assert caught.value.__suppress_context__


def test_the_connection_test_names_its_checks(define, tmp_path) -> None:
    is_fine, text = define(extra={"root": str(tmp_path)}).test_connection()

    assert is_fine
    assert str(tmp_path) in text
    assert "extras are valid" in text


def test_the_connection_test_shows_errors(define) -> None:
    is_fine, text = define(extra={"rooot": "x"}).test_connection()

    assert not is_fine
    assert "rooot" in text


WRONG = [
    *({"conn_type": conn_type, "extra": {"no_such_option": 1}} for conn_type in HOOKS),
    *({"conn_type": conn_type, "extra": "{no json"} for conn_type in HOOKS),
    *({"conn_type": conn_type, "login": "me"} for conn_type in HOOKS),
    {"conn_type": "launch_docker", "extra": {"host": "unix:///no/such.sock"}},
    {"conn_type": "launch_docker", "extra": {"docker_conn_id": "no_such_connection"}},
    {"conn_type": "launch_kubernetes", "extra": {"kubeconfig_path": "/no/such/file"}},
    {"conn_type": "launch_aws_batch", "extra": {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9"}},
    {"conn_type": "launch_slurm", "extra": {"root": "/no/such/root", "slurm_bin": "/no/such/bin"}},
    {"conn_type": "launch_local", "extra": {"grace_s": 1, "locked": ["no_such_option"]}},
    {"conn_type": "launch", "extra": {}},
    {"conn_type": "launch", "extra": {"scheduler": "no_such_scheduler"}},
]


@pytest.mark.parametrize("fields", WRONG, ids=range(len(WRONG)))
def test_the_connection_test_does_not_name_the_id_under_which_airflow_tests(define, fields) -> None:
    """The page tests under a random id, which the user has never seen."""
    is_fine, text = define(conn_id="zqxjkv", **fields).test_connection()

    assert not is_fine
    assert "zqxjkv" not in text.lower()


@pytest.mark.parametrize("conn_type", HOOKS)
def test_airflow_can_make_each_hook_for_its_connection_test(conn_type) -> None:
    hook_class = {
        "launch": LaunchHook,
        "launch_local": LocalLaunchHook,
        "launch_aws_batch": AwsBatchLaunchHook,
        "launch_docker": DockerLaunchHook,
        "launch_kubernetes": KubernetesLaunchHook,
        "launch_slurm": SlurmLaunchHook,
    }[conn_type]

    assert hook_class(**{hook_class.conn_name_attr: "temporary"}).conn_type == conn_type


def test_options_of_the_docker_engine_are_separate_from_launch_options(define) -> None:
    tls = {"host": "tcp://h:2376", "tls_ca": "/ca.pem", "tls_cert": "/cert.pem", "tls_key": "/key.pem"}
    options = define("launch_docker", extra={**tls, "tls_verify": False, "pull": "never", "user": None}).options

    assert isinstance(LaunchHook.for_connection("c"), DockerLaunchHook)
    assert {name: options.params[name] for name in tls} == tls
    assert options.params["tls_verify"] is False
    assert options.params["registry"] is None
    assert options.cfg == {"pull": "never"}


def test_a_registry_password_is_masked_and_not_in_the_identity(define) -> None:
    options = define("launch_docker", extra={"host": "tcp://h:1", "registry_password": "hunter2hunter2"}).options

    assert options.identity == "docker host=tcp://h:1"
    assert redact({"registry_password": "hunter2hunter2"}) == {"registry_password": "***"}


def test_a_docker_connection_may_be_a_uri(monkeypatch) -> None:
    uri = "launch-docker://?host=unix%3A%2F%2F%2Frun%2Fother.sock&tls_verify=false&shm_size_mb=64&copy_env=A%2CB"
    monkeypatch.setenv("AIRFLOW_CONN_C", uri)
    options = LaunchHook.for_connection("c").options

    assert (options.params["host"], options.params["tls_verify"]) == ("unix:///run/other.sock", False)
    assert options.cfg == {"shm_size_mb": 64, "copy_env": ["A", "B"]}


@pytest.mark.engine("docker")
def test_the_docker_test_creates_a_container_and_leaves_nothing(define, docker_engine, docker_proxy) -> None:
    is_fine, text = define("launch_docker", extra={"host": docker_proxy.url}).test_connection()

    assert is_fine, text
    assert docker_proxy.url in text
    (created,) = docker_proxy.matching("POST", r"/containers/create$")
    (removed,) = docker_proxy.matching("DELETE", r"/containers/")
    assert created.query["name"].startswith("launch-probe-")
    assert removed.path
    assert not docker_engine.client.api.containers(all=True, filters={"name": created.query["name"]})
    assert not docker_proxy.matching("POST", r"/start$")


@pytest.mark.engine("dockerd")
def test_the_docker_test_works_on_an_engine_without_images(define) -> None:
    with PrivateDocker() as docker:
        is_fine, text = define("launch_docker", extra={"host": docker.host}).test_connection()

        assert is_fine, text
        with contextlib.closing(docker.client()) as client:
            assert client.api.images(all=True) == []
            assert client.api.containers(all=True) == []


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"host": "unix:///no/such.sock"}, "unix:///no/such.sock does not answer.*No such file"),
        ({"host": "tcp://127.0.0.1:1"}, "tcp://127.0.0.1:1 does not answer.*refused"),
        ({"host": "tcp://127.0.0.1:1", "tls_ca": "/no/such.pem"}, "TLS files"),
        ({"host": "ssh://me@127.0.0.1"}, "the extra 'ssh'"),
        ({"hots": "x"}, "host"),
    ],
)
def test_the_docker_test_shows_errors(define, monkeypatch, extra, message) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    is_fine, text = define("launch_docker", extra=extra).test_connection()

    assert not is_fine
    assert re.search(message, text)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.engine("docker")
def test_the_docker_test_names_a_missing_right(define, docker_engine) -> None:
    if not docker_engine.host.startswith("unix://"):
        pytest.skip("rights are those of a Unix socket")
    hook = define("launch_docker", extra={"host": docker_engine.host})
    os.seteuid(65534)
    try:
        is_fine, text = hook.test_connection()
    finally:
        os.seteuid(0)

    assert not is_fine
    assert "Permission denied" in text
    assert "may use it" in text


@pytest.mark.parametrize(
    ("conn_type", "fields", "hook_class"),
    [
        ("kubernetes", {"extra": {"namespace": "team"}}, KubernetesLaunchHook),
        ("docker", {"host": "registry.example", "login": "me", "password": "hush"}, DockerLaunchHook),
        ("ssh", {"host": "login"}, SlurmLaunchHook),
        ("aws", {"extra": {"region_name": "eu-west-1"}}, AwsBatchLaunchHook),
    ],
)
def test_a_connection_of_airflows_own_type_is_a_launch_connection(define, conn_type, fields, hook_class) -> None:
    hook = define(conn_type, f"{conn_type}_default", **fields)

    assert type(hook) is hook_class
    assert hook.options.backend == hook_class.backend
    assert hook.runner.name() == f"{conn_type}_default"


def test_a_launch_connection_names_one_of_airflow(define) -> None:
    define("kubernetes", "own", extra={"namespace": "team"})
    hook = define("launch_kubernetes", "c", extra={"kubernetes_conn_id": "own"})

    assert hook.options.params["namespace"] == "team"
    with pytest.raises(InvalidAppError, match="kubernetes_conn_id='other' is not a connection"):
        _ = define("launch_kubernetes", "d", extra={"kubernetes_conn_id": "other"}).options


def test_a_connection_of_the_database_is_found_in_a_script(monkeypatch) -> None:
    """`LaunchHook` may also be used outside of a task; Airflow's own lookup finds only variables there."""
    # Not that of the SDK, which does not read the database.
    kind = importlib.import_module("airflow.models").Connection
    stored = kind(conn_id="in_the_database", conn_type="launch_local", extra='{"keep_days": 3}')
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)
    monkeypatch.setattr(kind, "get_connection_from_secrets", lambda _conn_id: stored)

    assert LaunchHook.for_connection("in_the_database").options.params["keep_days"] == 3


def test_the_connection_test_closes_its_client(engine, api) -> None:
    LaunchHook.for_connection("cluster").test_connection()

    assert [scheduler.closed for scheduler in OPENED] == [1]


# ---- clients of Airflow's AWS connection -----------------------------------------------------------------------------


def aws_clients(**fields):
    return clients_of_aws_connection(AwsBatchConnection(aws_conn_id="own", region_name="eu-west-1", **fields))


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"config_kwargs": {"no_such_option": 1}}, "no_such_option"),
        ({"service_config": {"batch": {"endpoint_url": "no-address"}}}, "Invalid endpoint: no-address"),
    ],
)
def test_an_aws_connection_that_cannot_be_used_is_named(define, extra, text) -> None:
    pytest.importorskip("airflow.providers.amazon")
    define("aws", "own", login="key", password="secret-of-aws", extra=extra)

    with pytest.raises(InvalidAppError, match=f"aws_conn_id='own' cannot be used: .*{text}"):
        aws_clients().batch()


def test_a_missing_aws_connection_is_named() -> None:
    pytest.importorskip("airflow.providers.amazon")

    with pytest.raises(SchedulerRejectedError, match="aws_conn_id='own' is not a connection of Airflow; create it"):
        aws_clients()


def test_a_missing_amazon_provider_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.base_aws", None)

    with pytest.raises(MissingDependencyError, match="install apache-airflow-providers-amazon"):
        aws_clients()
