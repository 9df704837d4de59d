"""A feature without a declared capability is refused, with the role, the scheduler and a fix."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers._kit.refusals import refuse_more_gpus, refuse_other_spec, refuse_unsupported
from airflow_provider_launch.schedulers.capability import Capability
from airflow_provider_launch.specs import (
    AppConflictError,
    AppDef,
    BindMount,
    DeviceMount,
    InvalidAppError,
    Resource,
    RetryPolicy,
    Role,
    UnsupportedError,
    VolumeMount,
    macros,
)

ALL = frozenset(Capability)


def role(**fields: Any) -> Role:
    return Role("main", **{"image": "i", "entrypoint": "run", **fields})


def refuse(given: Role, capabilities: frozenset[Capability], cures: dict[Capability, str] | None = None) -> None:
    refuse_unsupported(AppDef("app", [given]), "mine", capabilities, needs_image=True, cures=cures or {})


USES = [
    (Capability.REPLICA_RETRY, {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}, "REPLICA"),
    (Capability.APPLICATION_RETRY, {"max_retries": 1, "retry_policy": RetryPolicy.APPLICATION}, "APPLICATION"),
    (Capability.ROLE_RETRY, {"max_retries": 1, "retry_policy": RetryPolicy.ROLE}, "ROLE"),
    (Capability.BIND_MOUNT, {"mounts": [BindMount("/a", "/b")]}, "mounts of directories"),
    (Capability.VOLUME_MOUNT, {"mounts": [VolumeMount("a", "/b")]}, "mounts of volumes"),
    (Capability.DEVICE_MOUNT, {"mounts": [DeviceMount("/a", "/b")]}, "mounts of devices"),
    (Capability.GPU, {"resource": Resource(1, 1, 1)}, "resource.gpu"),
    (Capability.PORTS, {"port_map": {"x": 0}}, "port_map"),
    (Capability.RANK0, {"num_replicas": 2, "args": [macros.rank0_env]}, "rank0_env"),
]


@pytest.mark.parametrize(("capability", "fields", "words"), USES)
def test_each_use_needs_its_capability_and_no_other(capability: Capability, fields: dict[str, Any], words: str) -> None:
    refuse(role(**fields), frozenset({capability}))

    with pytest.raises(UnsupportedError, match=rf"'main'.*{words}.*'mine'; \w+"):
        refuse(role(**fields), ALL - {capability})


def test_a_role_alone_needs_no_name_of_the_first_one() -> None:
    refuse(role(args=[macros.rank0_env]), frozenset())


def test_the_offered_retries_are_named() -> None:
    given = role(max_retries=1, retry_policy=RetryPolicy.ROLE)

    with pytest.raises(UnsupportedError, match=r"use REPLICA or APPLICATION$"):
        refuse(given, ALL - {Capability.ROLE_RETRY})
    with pytest.raises(UnsupportedError, match=r"leave max_retries out$"):
        refuse(given, frozenset())


def test_a_backend_may_know_a_better_cure() -> None:
    with pytest.raises(UnsupportedError, match=r"'mine'; use a plugin$"):
        refuse(role(mounts=[DeviceMount("/a", "/b")]), frozenset(), {Capability.DEVICE_MOUNT: "use a plugin"})


def test_an_image_is_needed_where_images_run() -> None:
    app = AppDef("app", [role(image="")])

    refuse_unsupported(app, "mine", ALL, needs_image=False, cures={})
    with pytest.raises(InvalidAppError, match="'main' has no image, which 'mine' needs; name one"):
        refuse_unsupported(app, "mine", ALL, needs_image=True, cures={})


def test_gpus_are_counted_over_all_replicas() -> None:
    app = AppDef("app", [role(num_replicas=2, resource=Resource(1, 2, 1))])

    refuse_more_gpus(app, 4, offer="the host has {}", cure="lower it")
    with pytest.raises(
        UnsupportedError, match=r"'main': resource\.gpu=2, the app wants 4 GPUs, and the host has 3; lower"
    ):
        refuse_more_gpus(app, 3, offer="the host has {}", cure="lower it")
    with pytest.raises(UnsupportedError, match="has none"):
        refuse_more_gpus(app, 0, offer="the host has {}", cure="lower it")


def test_the_entrypoint_counts_and_may_be_that_of_the_image() -> None:
    refuse(role(entrypoint=None), ALL)

    with pytest.raises(InvalidAppError, match=r"have 21\d{5} bytes"):
        refuse(role(entrypoint="x" * 2_100_000), ALL)


@pytest.mark.parametrize("where", ["args", "env"])
def test_more_arguments_and_variables_than_a_program_gets_are_refused(where: str) -> None:
    """The kernel refuses them with a code and no reason, in each attempt."""
    parts = {f"N{number}": "x" * 100_000 for number in range(21)}
    large = role(args=list(parts.values())) if where == "args" else role(env=parts)
    with pytest.raises(
        InvalidAppError, match=r"role 'main': its arguments and variables have 21\d{5} bytes, .*; put them"
    ):
        refuse(large, ALL)

    del parts["N0"]
    refuse(role(args=list(parts.values())), ALL)


def test_only_the_same_definition_is_adopted() -> None:
    refuse_other_spec("mine", "app-1", "abc", "abc")

    for other in ("abd", None):
        with pytest.raises(AppConflictError, match="'mine' has an app 'app-1' with another definition; nothing was"):
            refuse_other_spec("mine", "app-1", "abc", other)
