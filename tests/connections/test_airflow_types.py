"""Connections of Airflow's own types launch apps: each of their fields is used, or refused by name."""

from __future__ import annotations

import json
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from airflow_provider_launch.connections import extras
from airflow_provider_launch.connections.airflow_types import extras_of
from airflow_provider_launch.connections.definition import Definition, read_definition
from airflow_provider_launch.connections.deployment import Deployment
from airflow_provider_launch.connections.extras import CONNECTIONS_GROUP
from airflow_provider_launch.connections.launch import LaunchConnection
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException, MissingDependencyError

KUBECONFIG = {"apiVersion": "v1", "kind": "Config", "contexts": [], "clusters": [], "users": []}


def connection(conn_type: str, *others: Definition, extra: Any = None, **fields: Any) -> LaunchConnection:
    found = {each.conn_id: each for each in others}
    return LaunchConnection(Definition("c", conn_type, extra, fields), Deployment(), lambda _: None, found.get)


def params(*args: Any, **kwargs: Any) -> dict[str, Any]:
    given = connection(*args, **kwargs).options.params
    return {name: value for name, value in given.items() if value is not None}


def test_a_kubernetes_connection_has_cluster_context_and_namespace() -> None:
    extra = {
        "extra__kubernetes__kube_config_path": "/k/config",
        "cluster_context": "prod",
        "namespace": "team",
        "in_cluster": "false",
        "disable_verify_ssl": False,
        "disable_tcp_keepalive": None,
        "xcom_sidecar_container_image": "alpine",
    }
    found = connection("kubernetes", extra=extra).options

    assert found.backend == "kubernetes"
    assert (found.params["kubeconfig_path"], found.params["context"]) == ("/k/config", "prod")
    assert (found.params["namespace"], found.params["in_cluster"]) == ("team", False)
    assert found.identity == "kubernetes kubeconfig_path=/k/config context=prod namespace=team"


@pytest.mark.parametrize("text", [json.dumps(KUBECONFIG), KUBECONFIG])
def test_a_kubeconfig_in_the_connection_is_used(text: Any) -> None:
    assert params("kubernetes", extra={"kube_config": text})["kubeconfig_secret"] == json.dumps(KUBECONFIG)


def test_a_kubeconfig_in_the_connection_may_not_start_programs() -> None:
    """As in a launch connection."""
    user = {"name": "u", "user": {"exec": {"command": "sh"}}}
    with pytest.raises(InvalidAppError, match="allow_kubeconfig_exec"):
        params("kubernetes", extra={"kube_config": {**KUBECONFIG, "users": [user]}})
    own = Definition("own", "kubernetes", {"kube_config": {**KUBECONFIG, "users": [user]}})
    with pytest.raises(InvalidAppError, match="allow_kubeconfig_exec"):
        params("launch_kubernetes", own, extra={"kubernetes_conn_id": "own"})


@pytest.mark.parametrize("name", ["kubeconfig_secret", "kubeconfigSecret"])
@pytest.mark.parametrize("how", ["type of the engine", "scheduler by name", "plug-in by name", "type of a plug-in"])
def test_no_spelling_of_a_kubeconfig_may_start_programs(monkeypatch, name: str, how: str) -> None:
    """A plug-in may extend the scheduler of Kubernetes, with its connection."""
    user = {"name": "u", "user": {"exec": {"command": "sh"}}}
    extra: dict[str, Any] = {name: json.dumps({**KUBECONFIG, "users": [user]})}
    conn_type = {"type of the engine": "launch_kubernetes", "type of a plug-in": "launch_more"}.get(how, "launch")
    of_plug_in = EntryPoint("launch_more", f"{KubernetesScheduler.__module__}:KubernetesScheduler", CONNECTIONS_GROUP)
    monkeypatch.setattr(extras, "_types_on", lambda _path: {"launch_more": of_plug_in})
    if conn_type == "launch":
        extra = {"scheduler": "kubernetes" if "scheduler" in how else "more_kubernetes", "params": extra}
    with pytest.raises(InvalidAppError, match="allow_kubeconfig_exec"):
        params(conn_type, extra=extra)


def test_any_spelling_names_another_connection() -> None:
    """Without its host, the commands of Slurm would run on the worker."""
    own = Definition("own", "ssh", None, {"host": "h", "login": "me"})

    assert params("launch_slurm", own, extra={"sshConnId": "own"})["ssh_host"] == "h"


@pytest.mark.parametrize(
    ("scheduler", "name", "is_refused"),
    [("local_docker", "docker", True), ("local_docker", "local_docker", True), ("of_a_plug_in", "kubernetes", True),
     ("docker", "docker", True), ("docker", "kubernetes", False)],
)  # fmt: skip
def test_no_overlay_that_a_scheduler_applies_overrides_locked_options(
    scheduler: str, name: str, is_refused: bool
) -> None:
    """`local_docker` applies the overlays of `docker`, as a plug-in may that extends a built-in scheduler."""
    found = connection("launch", extra={"scheduler": scheduler, "cfg": {"privileged": False}, "locked": ["privileged"]})
    role = Role("main", "image", metadata={name: {"Container": {"HostConfig": {"Privileged": True}}}})
    expected = pytest.raises(InvalidAppError, match=f"an overlay for '{name}'") if is_refused else nullcontext()
    with expected:
        found.refuse_overlays(AppDef("app", [role]))


def test_a_docker_connection_is_the_login_of_a_registry() -> None:
    fields = {"host": "registry.example", "port": 5000, "login": "me", "password": "pw"}
    found = params("docker", extra={"email": "a@b.c", "reauth": False}, **fields)

    assert (found["registry"], found["registry_username"], found["registry_password"]) == (
        "registry.example:5000", "me", "pw",
    )  # fmt: skip


def test_an_ssh_connection_is_a_login_node() -> None:
    extra = {
        "private_key": "-----KEY",
        "private_key_passphrase": "pp",
        "host_key": "AAAA",
        "conn_timeout": 20,
        "no_host_key_check": "false",
        "look_for_keys": "false",
        "compress": True,
    }
    found = params("ssh", extra=extra, host="login", port=2222, login="me", password="pw")

    assert (found["ssh_host"], found["ssh_port"], found["ssh_user"]) == ("login", 2222, "me")
    assert (found["ssh_key_secret"], found["ssh_key_password"], found["ssh_password"]) == ("-----KEY", "pp", "pw")
    assert (found["ssh_host_key"], found["timeout_s"]) == ("ssh-rsa AAAA", 20.0)


def test_an_aws_connection_is_used_by_its_id() -> None:
    assert params("aws", login="key", password="secret")["aws_conn_id"] == "c"


@pytest.mark.parametrize(
    ("conn_type", "fields", "text"),
    [
        ("kubernetes", {"extra": {"disable_verify_ssl": True}}, "'disable_verify_ssl' cannot be used; set insecure"),
        ("kubernetes", {"extra": {"new_field": 1}}, "'new_field' cannot be used; it reads in_cluster, "),
        (
            "kubernetes",
            {"extra": {"namespaces": ["b"]}},
            "'namespaces' cannot be used; list them in a .* kubernetes_conn_id",
        ),
        ("kubernetes", {"host": "x"}, "'host' cannot be used"),
        ("docker", {"host": "unix:///var/run/docker.sock"}, "the login is missing.*launch_docker, or in DOCKER_HOST"),
        ("docker", {"host": "r", "login": "a", "schema": "x"}, "'schema' cannot be used"),
        ("ssh", {"host": "h", "extra": {"no_host_key_check": "true"}}, "'no_host_key_check' cannot be used; the key"),
        ("ssh", {"host": "h", "extra": {"allow_host_key_change": True}}, "'allow_host_key_change' cannot be used"),
        ("ssh", {"host": "h", "extra": {"host_proxy_cmd": "ssh -W x"}}, "cannot be used; name the jump host in ssh_ju"),
        ("ssh", {"host": "h", "extra": {"ciphers": ["a"]}}, "'ciphers' cannot be used"),
        ("ssh", {"host": "h", "extra": {"conn_timeout": "soon-hush"}}, "'conn_timeout' has a wrong value of type str"),
        ("ssh", {"host": "h", "extra": {"conn_timeout": ["hush"]}}, "'conn_timeout' has a wrong value of type list"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(conn_type: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidAppError, match=text) as caught:
        params(conn_type, **fields)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("assume_role_kwargs", "set external_id, role_session_name"),
        ("session_kwargs", "set profile_name"),
        ("s3_config_file", "set profile_name; AWS_CONFIG_FILE names another file"),
        ("aws_iam_role", "set role_arn"),
        ("assume_role_with_saml", "install apache-airflow-providers-amazon"),
    ],
)
def test_an_extra_of_aws_in_a_launch_connection_is_refused_with_the_fix(name: str, cure: str) -> None:
    """Users copy the extras of their connection of type aws; an ignored role would launch as another user."""
    with pytest.raises(
        InvalidAppError, match=f"'c': the extra '{name}' exists only in connections of type aws; {cure}"
    ):
        params("launch_aws_batch", extra={name: "hush"})


def test_a_launch_connection_names_another_one_and_overrides_it() -> None:
    own = Definition("own", "kubernetes", {"namespace": "team", "cluster_context": "prod"})
    extra = {"kubernetes_conn_id": "own", "namespace": "other", "locked": ["security"], "security": "restricted"}
    found = connection("launch_kubernetes", own, extra=extra)

    assert (found.options.params["namespace"], found.options.params["context"]) == ("other", "prod")
    with pytest.raises(InvalidRunConfigException, match="'security' is locked"):
        found.merged_cfg({"security": "none"})


@pytest.mark.parametrize(
    ("conn_type", "extra", "own"),
    [
        ("launch_docker", {"docker_conn_id": "own"}, Definition("own", "docker", None, {"host": "r", "login": "me"})),
        ("launch_slurm", {"ssh_conn_id": "own"}, Definition("own", "ssh", None, {"host": "h", "login": "me"})),
    ],
)
def test_each_engine_names_connections_of_its_type(conn_type: str, extra: dict[str, Any], own: Definition) -> None:
    found = params(conn_type, own, extra=extra)

    assert "me" in {found.get("registry_username"), found.get("ssh_user")}
    with pytest.raises(InvalidAppError, match="'own' is not a connection; create it"):
        params(conn_type, extra=extra)
    with pytest.raises(InvalidAppError, match="'own' has type 'http', not "):
        params(conn_type, Definition("own", "http"), extra=extra)


def test_a_wrong_option_of_a_connection_is_named_when_it_is_checked() -> None:
    wrong = connection("launch", extra={"scheduler": "local", "cfg": {"grace_s": "soon"}})

    for act in (wrong.check, lambda: wrong.merged_cfg({})):
        with pytest.raises(InvalidRunConfigException, match=r"^cfg of connection 'c': .*grace_s") as caught:
            act()
        assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("root", "option 'root' defines where apps run; set it in connection 'c'"),
        ("grace", "unknown option 'grace'; did"),
    ],
)
def test_a_wrong_option_of_one_launch_is_named_with_its_giver(name: str, text: str) -> None:
    with pytest.raises(InvalidRunConfigException, match=f"^-cfg: {text}"):
        connection("launch_local", extra={"root": "/r"}).merged_cfg({name: 1}, "-cfg")


def test_a_plug_in_that_cannot_be_imported_is_named_with_its_type(monkeypatch) -> None:
    broken = EntryPoint("launch_broken", "surely_not_installed:Scheduler", CONNECTIONS_GROUP)
    monkeypatch.setattr(extras, "plugin_types", lambda: {"launch_broken": broken})

    with pytest.raises(MissingDependencyError, match="connection type 'launch_broken' cannot be imported: No module"):
        extras.plugin_scheduler("launch_broken")


def test_a_limit_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InvalidAppError, match=r"extra 'max_time_limit_s' must be .*, not str"):
        extras.common_extras({"max_time_limit_s": "soon"})


def test_a_uri_has_quoted_fields() -> None:
    found = extras_of(read_definition("c", "docker://me%40x:p%2Fw@registry.example:5000", "here"))

    assert found == {"registry": "registry.example:5000", "registry_username": "me@x", "registry_password": "p/w"}
