import dataclasses
import pickle

from airflow_provider_launch.specs import (
    MISSING,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    BindMount,
    DeviceMount,
    MountType,
    RetryPolicy,
    Role,
    VolumeMount,
)


def test_the_order_of_fields_is_that_of_torchx():
    assert [field.name for field in dataclasses.fields(Role)] == [
        "name",
        "image",
        "min_replicas",
        "entrypoint",
        "args",
        "env",
        "num_replicas",
        "max_retries",
        "retry_policy",
        "resource",
        "port_map",
        "metadata",
        "mounts",
        "workspace",
        # Ours, after those of TorchX.
        "service",
        "torch_env",
        "max_disruptions",
    ]
    assert [field.name for field in dataclasses.fields(AppDef)] == ["name", "roles", "metadata"]


def test_defaults_of_a_role():
    role = Role("r", "img")

    assert (role.min_replicas, role.entrypoint, role.num_replicas, role.max_retries) == (None, MISSING, 1, 0)
    assert role.retry_policy is RetryPolicy.APPLICATION
    assert role.resource == NULL_RESOURCE
    assert (role.args, role.env, role.port_map, role.metadata, role.mounts, role.workspace) == (
        [],
        {},
        {},
        {},
        [],
        None,
    )


def test_enums_are_their_texts():
    assert [policy.value for policy in RetryPolicy] == [policy.name for policy in RetryPolicy]
    assert RetryPolicy("ROLE") is RetryPolicy.ROLE
    assert [kind.value for kind in MountType] == ["bind", "volume", "device"]


def test_defaults_of_mounts():
    assert BindMount("a", "b") == BindMount("a", "b", read_only=False)
    assert VolumeMount("a", "b") == VolumeMount(src="a", dst_path="b", read_only=False)
    assert DeviceMount("a", "b") == DeviceMount("a", "b", permissions="rwm")
    assert BindMount("a", "b") != VolumeMount("a", "b")


def test_pre_proc_returns_its_input():
    info = AppDryRunInfo("request", str)

    assert Role("r", "").pre_proc("local", info) is info


def test_str_of_an_app_is_one_short_line_without_args_and_env():
    """Airflow stores this text with the DAG; env may hold secrets."""
    app = AppDef(
        "train",
        [
            Role("trainer", "", args=["--secret"], env={"TOKEN": "hunter2"}, num_replicas=4),
            Role("ps", ""),
        ],
        metadata={"m": "hidden"},
    )

    assert str(app) == f"{app}" == "AppDef(train: trainer x4, ps x1)"
    assert repr(app).startswith("AppDef(name='train', roles=[Role(name='trainer', ")
    # Airflow uses it for objects that it cannot serialize.
    assert "hunter2" not in repr(app)


def test_str_of_a_wrong_app_does_not_fail():
    assert str(AppDef("a")) == "AppDef(a: no roles)"
    assert str(AppDef("a\nb", roles=[None, 5])) == "AppDef(a b: ? x?, ? x?)"
    assert str(AppDef("a", roles=None)) == "AppDef(a: no roles)"


def test_apps_compare_by_value_and_survive_pickle():
    app = AppDef("a", [Role("r", "", mounts=[BindMount("a", "b")])])

    assert pickle.loads(pickle.dumps(app)) == app
