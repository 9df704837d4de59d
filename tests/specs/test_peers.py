"""Names of other launchers: the table is complete, its counterparts exist, and errors name them."""

from __future__ import annotations

import dataclasses
import inspect
import io

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.runner import config
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.schedulers.local.options import LocalCwdOpts
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.specs.peers import counterpart, peers

OPERATORS = {
    "kubernetes-pod-operator": ("airflow.providers.cncf.kubernetes.operators.pod", "KubernetesPodOperator", ()),
    "docker-operator": ("airflow.providers.docker.operators.docker", "DockerOperator", ()),
    "batch-operator": (
        "airflow.providers.amazon.aws.operators.batch",
        "BatchOperator",
        ("aws_conn_id", "region_name", "region", "verify", "botocore_config"),
    ),
}
ROWS = [(page, name) for page, peer in peers().items() for name in peer.arguments]


@pytest.mark.parametrize("page", OPERATORS)
def test_the_table_has_each_argument_of_an_operator(page):
    """A new version of a provider adds arguments; a missing one would get an error without a cure."""
    module, name, of_base = OPERATORS[page]
    operator = getattr(pytest.importorskip(module), name)

    known = set(inspect.signature(operator.__init__).parameters) - {"self", "kwargs", "args"}
    assert known | set(of_base) <= set(peers()[page].arguments)


@pytest.mark.parametrize(("page", "name"), ROWS)
def test_the_counterpart_of_a_name_exists(page, name):
    """An error that proposes an option which does not exist costs more time than none."""
    peer = peers()[page]
    found = peer.arguments[name]
    backends = [BACKENDS[scheduler] for scheduler in peer.schedulers]
    names = {
        "cfg": {option for one in backends for option, _ in one.launch_options().as_runopts()}
        | {option for option, _ in LocalCwdOpts.as_runopts()},
        "connection": {option for one in backends for option, _ in one.connection_options().as_runopts()},
        "operator": set(inspect.signature(LaunchAppOperator.__init__).parameters) | {"do_xcom_push"},
        "app": {field.name for field in dataclasses.fields(AppDef)},
        "role": {field.name for field in dataclasses.fields(Role)},
        "resource": {field.name for field in dataclasses.fields(Resource)},
    }

    if found.place == "overlay":
        assert found.name
    elif found.place == "none":
        assert found.note
    else:
        assert found.name in names[found.place]


@pytest.mark.parametrize(
    ("backend", "name", "cure"),
    [
        ("kubernetes", "image_pull_policy", "here it is option 'pull'"),
        ("kubernetes", "imagePullPolicy", "here it is option 'pull'"),
        ("kubernetes", "cmds", "here it is field 'entrypoint' of the role"),
        ("kubernetes", "config_file", "here it is option 'kubeconfig_path' of the connection"),
        ("docker", "docker_url", "here it is option 'host' of the connection"),
        ("docker", "xcom_all", "without a counterpart here"),
        ("aws_batch", "region_name", "here it is option 'region_name' of the connection"),
        ("slurm", "ssh_conn_id", "here it is argument 'launch_conn_id' of the operator"),
        ("slurm", "remote_host", "here it is option 'ssh_host' of the connection"),
        ("aws_batch", "share_id", "here it is option 'share_identifier'"),
        ("slurm", "time", "here it is option 'time_limit_s' (in seconds)"),
        ("slurm", "mail-user", "here it is option 'mail_user'"),
    ],
)
def test_an_option_of_another_launcher_is_answered_with_ours(backend, name, cure):
    schema = BACKENDS[backend].launch_options().as_runopts()

    with pytest.raises(InvalidRunConfigException) as refused:
        schema.resolve({name: "x"}, strict=True)

    assert cure in str(refused.value)


def test_an_extra_of_another_launcher_is_answered_with_ours():
    from airflow_provider_launch.connections.extras import split_extras

    info = BACKENDS["docker"]
    with pytest.raises(InvalidAppError, match="here it is option 'host' of the connection"):
        split_extras({"docker_url": "x"}, info.connection_options(), info.launch_options())


def test_an_option_of_another_scheduler_is_not_proposed():
    """A proposal that the scheduler would refuse is worse than the closest name."""
    assert counterpart("reservation", ["network"]) is None
    assert counterpart("docker_url", ["network", "namespace"]) is None
    assert counterpart("docker_url", dict(BACKENDS["kubernetes"].launch_options().as_runopts())) is None


@pytest.mark.parametrize("make", [LaunchAppOperator, LaunchAppOperator.partial])
def test_an_argument_of_another_operator_is_answered_with_ours(make):
    with pytest.raises(TypeError, match=r"'image' is a name of .*here it is field 'image' of the role"):
        make(task_id="t", image="busybox")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Airflow's, for an unused partial
def test_a_mapped_argument_of_another_operator_is_answered_with_ours():
    with pytest.raises(TypeError, match=r"'arguments' is a name of .*here it is field 'args' of the role"):
        LaunchAppOperator.partial(task_id="t").expand(arguments=[["a"], ["b"]])


def test_an_unknown_argument_of_no_launcher_is_refused_by_airflow():
    with pytest.raises(TypeError, match="Invalid arguments were passed to LaunchAppOperator"):
        LaunchAppOperator(task_id="t", app=AppDef("a", [Role("r", "", entrypoint="true")]), frobnicate=1)


def test_a_configuration_file_of_torchx_is_translated():
    """A skipped line would launch a job without its mail, or under another share."""
    cfg = {}
    config.load("slurm", io.StringIO("[slurm]\nmail-user = ann@example.org\n"), cfg)

    assert cfg == {"mail_user": "ann@example.org"}


@pytest.mark.parametrize(
    ("scheduler", "line", "cure"),
    [
        ("slurm", "time = 01:00:00", "here it is option 'time_limit_s' (in seconds)"),
        ("kubernetes", "reserved_memmb = 1024", "without a counterpart here"),
        ("docker", "env = A:b", "here it is field 'env' of the role"),
    ],
)
def test_a_line_that_cannot_be_translated_is_refused(scheduler, line, cure):
    """A job without its time limit is not the same job."""
    with pytest.raises(InvalidRunConfigException) as refused:
        config.load(scheduler, io.StringIO(f"[{scheduler}]\n{line}\n"), {})

    assert cure in str(refused.value)
