"""The variables of one PyTorch training, the macros for addresses, and the warnings of a dry run."""

from __future__ import annotations

import copy

import pytest

from airflow_provider_launch.components.dist import ddp
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.specs import AppDef, Resource, RetryPolicy, Role, app_from_dict, app_to_dict, check_app
from airflow_provider_launch.specs.check import warnings_of
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import address_macros, macros, port_macros
from airflow_provider_launch.specs.torch_env import with_torch_env


def trainer(**fields) -> Role:
    return Role("my trainer", "i", **{"entrypoint": "python", "args": ["train.py"], **fields})


BY_REPLICA = {"num_replicas": 2, "max_retries": 1, "retry_policy": RetryPolicy.REPLICA}


def values(**fields) -> macros.Values:
    return macros.Values("", "app-1", "1", "HOST", **fields)


def test_a_role_with_torch_env_gets_variables_and_a_port():
    app = AppDef("x", [trainer(num_replicas=4, resource=Resource(1, 2, 3), torch_env=True, env={"A": "1"})])
    role = with_torch_env(app).roles[0]
    filled = values(rank0_host="h0", ports={"my trainer.torch": "29501"}).apply(role).env

    assert role.port_map == {"torch": 0}
    assert filled == {
        "A": "1",
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": "29501",
        "TORCHELASTIC_RUN_ID": "app-1",
        "PET_NNODES": "4",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "h0",
        "PET_MASTER_PORT": "29501",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": "app-1",
    }


def test_the_apps_of_the_caller_do_not_change_and_its_values_win():
    given = trainer(torch_env=True, env={"PET_NPROC_PER_NODE": "8"}, port_map={"torch": 29500})
    app = AppDef("x", [given, Role("peer", "i", entrypoint="x")])
    before = copy.deepcopy(app)
    role, peer = with_torch_env(app).roles

    assert app == before
    assert (role.env["PET_NPROC_PER_NODE"], role.port_map) == ("8", {"torch": 29500})
    assert peer is app.roles[1]
    assert with_torch_env(with_torch_env(app)).roles[0] == role
    plain = AppDef("x", [trainer()])
    assert with_torch_env(plain) is plain


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        (f"--addr={macros.rank0_host}:{macros.port('a.b c', 'p-1')}", "--addr=h:1"),
        ("$${rank0_host} $${port.a.b c.p-1}", "${rank0_host} ${port.a.b c.p-1}"),
        ("${port.a.none} ${port} $port ${port.}", "${port.a.none} ${port} $port ${port.}"),
        ("${HOME} $(x) $1", "${HOME} $(x) $1"),
    ],
)
def test_macros_of_addresses_are_replaced(text, filled):
    assert values(rank0_host="h", ports={"a.b c.p-1": "1"}).substitute(text) == filled


def test_a_scheduler_that_does_not_know_them_leaves_them():
    assert values().substitute("${rank0_host} ${port.a.p}") == "${rank0_host} ${port.a.p}"


def test_macros_of_addresses_are_found():
    role = trainer(args=["a ${rank0_host} $${rank0_host}", "$$${rank0_host}"], env={"P": "${port.r.p}:${port.r.p}"})

    assert address_macros(role) == ["${rank0_host}", "${port.r.p}"]
    assert port_macros("${port.r.p} $${port.r.q} ${rank0_host}") == ["r.p"]


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ([Role("a", "i", entrypoint="x"), trainer(torch_env=True)], "roles.1.torch_env: is for the first role"),
        ([trainer(args=["${port.my trainer.x}"])], "roles.0.args.0: names port 'my trainer.x', but the app has none"),
        ([trainer(env={"P": "${port.b.q}"}, port_map={"p": 0})], "the app has my trainer.p; add it to port_map"),
        ([trainer(service=True)], "all roles are services"),
    ],
)
def test_mistakes_are_found_before_the_launch(roles, text):
    with pytest.raises(InvalidAppError, match=text):
        check_app(AppDef("x", roles))


def test_ports_of_the_training_and_of_other_roles_may_be_named():
    ps = Role("ps", "i", entrypoint="x", port_map={"grpc": 0}, service=True)
    check_app(AppDef("x", [trainer(torch_env=True, args=["${port.my trainer.torch}", "${port.ps.grpc}"]), ps]))


def test_later_fields_change_no_record_and_no_hash_by_their_defaults():
    """A triggerer of an older version reads the records, and a retry after an upgrade must find its app."""
    plain, marked = AppDef("x", [trainer()]), AppDef("x", [trainer(torch_env=True, service=True)])

    assert {"service", "torch_env"}.isdisjoint(app_to_dict(plain)["roles"][0])
    assert app_from_dict(app_to_dict(marked)) == marked
    assert spec_hash(plain, {}) == "1d11a92cda7103d2"
    assert spec_hash(marked, {}) != spec_hash(plain, {})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"env": {"MASTER_PORT": "$LAUNCH_PORT_X_Y"}}, "env MASTER_PORT: no shell expands $LAUNCH_PORT_X_Y"),
        ({"env": {"A": "x-${TORCHX_RANK0_HOST}"}, "entrypoint": "sh"}, "no shell expands ${TORCHX_RANK0_HOST}"),
        ({"args": ["--rank", "$(LAUNCH_REPLICA_ID)"]}, "args[1]: no shell expands $(LAUNCH_REPLICA_ID)"),
        (
            {"entrypoint": "sh", "args": ["-c", "#!/bin/sh\n#SBATCH --time=00:05:00\n#SBATCH --mem=64\ntrue"]},
            "'#SBATCH --time=00:05:00' in its script is not read; the options of sbatch belong into cfg",
        ),
        ({"args": ["${replicaid}"]}, "did you mean ${replica_id}?"),
        (
            {**BY_REPLICA, "torch_env": True},
            "the ranks of the others are fixed (torch_env): they fail as well, and each failure uses up a retry",
        ),
    ],
)
def test_a_dry_run_warns(fields, text):
    (warning,) = warnings_of(AppDef("x", [trainer(**{"entrypoint": "python", **fields})]))

    assert warning.startswith("role 'my trainer': ")
    assert text in warning


@pytest.mark.parametrize(
    "fields",
    [
        {"entrypoint": "/bin/bash", "args": ["-c", "echo $LAUNCH_PORT_X_Y $(date)"]},
        # The ENTRYPOINT of the image may be a shell.
        {"entrypoint": None, "args": ["echo $LAUNCH_PORT_X_Y"]},
        {"env": {"PATH": "$HOME/bin"}, "args": ["costs 5$ (more)"]},
        {"torch_env": True, "num_replicas": 2, "retry_policy": RetryPolicy.REPLICA},
        BY_REPLICA,
        {**BY_REPLICA, "args": ["--rank", macros.replica_id, "LOCAL_RANK=0", "--x-node-rank"], "env": {"XRANK": "1"}},
        {**BY_REPLICA, "env": {"RANK": macros.replica_id}, "retry_policy": RetryPolicy.APPLICATION},
        {**BY_REPLICA, "env": {"RANK": macros.replica_id}, "num_replicas": 1},
        {**BY_REPLICA, "env": {"RANK": macros.replica_id}, "max_retries": 0},
    ],
)
def test_a_dry_run_does_not_warn_without_a_reason(fields):
    assert warnings_of(AppDef("x", [trainer(**{"entrypoint": "python", **fields})])) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"env": {"RANK": macros.replica_id}}, "env RANK"),
        ({"env": {"A": "1", "MASTER_ADDR": macros.rank0_host}}, "env MASTER_ADDR"),
        ({"entrypoint": "sh", "args": ["-c", "export RANK=$LAUNCH_REPLICA_ID; exec x"]}, "'RANK=' in args[1]"),
        ({"entrypoint": None, "args": ["env", "WORLD_SIZE=2", "x"]}, "'WORLD_SIZE=' in args[1]"),
        ({"entrypoint": "torchrun", "args": [f"--node-rank={macros.replica_id}", "x"]}, "'--node-rank' in args[0]"),
    ],
)
def test_a_dry_run_warns_if_only_some_processes_of_a_training_restart(fields, reason):
    """Also without `torch_env`, as in apps that set these variables themselves."""
    (warning,) = warnings_of(AppDef("x", [trainer(**BY_REPLICA, **fields)]))

    assert f"the ranks of the others are fixed ({reason})" in warning
    assert "use APPLICATION" in warning


@pytest.mark.parametrize(("backend", "count"), [("static", 1), ("c10d", 0)])
def test_nodes_of_torchrun_have_fixed_ranks_without_c10d(backend, count):
    app = ddp(script="train.py", j="2x1", max_retries=1, retry_policy="REPLICA", rdzv_backend=backend)

    assert ["'--node_rank' in args[1]" in text for text in warnings_of(app)] == [True] * count
