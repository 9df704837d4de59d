"""Refuses apps with features that AWS Batch does not have, in addition to the check of capabilities, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_launch.schedulers._kit.refusals import refuse_requests
from airflow_provider_launch.schedulers.aws_batch.job_definition import (
    has_log_result,
    log_driver,
    no_shell,
    size_of,
    uses_shell,
)
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.devices import KNOWN_DEVICES
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import names_rank0
from airflow_provider_launch.specs.named_resources_aws import K8S_ITYPE
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, RetryPolicy, Role

_RESULT_PATH = "LAUNCH_RESULT_PATH"
# An array job has at most 10 000 children, which is the limit of every app.
_NODE_GROUPS, _NODES, _RETRIES = 5, 1000, 9
# https://docs.aws.amazon.com/batch/latest/userguide/fargate.html: vCPUs to memory in MiB, from, to, step
_FARGATE: dict[float, tuple[int, int, int]] = {
    0.25: (512, 2048, 512),
    0.5: (1024, 4096, 1024),
    1: (2048, 8192, 1024),
    2: (4096, 16384, 1024),
    4: (8192, 30720, 1024),
    8: (16384, 61440, 4096),
    16: (32768, 122880, 8192),
}


def refuse_unsupported_layout(
    app: AppDef, opts: AwsBatchOpts, layout: str, role_opts: Mapping[str, AwsBatchOpts]
) -> None:
    """Refuse features that a job of this layout does not have, and options that contradict each other."""
    count = sum(role.num_replicas for role in app.roles)
    if layout == "multi-node":
        _refuse_nodes(app, opts, count)
    elif layout == "array":
        _refuse_array(app.roles[0])
    for role in app.roles:
        _refuse_devices(role)
        if layout != "multi-node" and role.max_retries > _RETRIES:
            raise UnsupportedError(
                f"role {role.name!r}: max_retries={role.max_retries} is more than the {_RETRIES} that 'aws_batch' "
                f"counts for one job; lower it, or use retries of the task"
            )
        _refuse_disruptions(role, layout)
        refuse_requests(role, "aws_batch")
        if opts.platform == "FARGATE":
            _refuse_fargate(role, role_opts[role.name])
    _refuse_result(app, opts)
    for role in app.roles:
        if role_opts[role.name].working_dir and not uses_shell(role, opts):
            raise InvalidAppError(
                f"role {role.name!r}: option working_dir needs `sh`, and {no_shell(role)}; leave one of them out"
            )


def _refuse_devices(role: Role) -> None:
    unknown = [name for name in role.resource.devices if name not in KNOWN_DEVICES]
    if unknown:
        raise UnsupportedError(
            f"role {role.name!r}: resource.devices ({', '.join(unknown)}) have no device files known to "
            f"'aws_batch'; mount them as DeviceMount"
        )


def _refuse_disruptions(role: Role, layout: str) -> None:
    """Refuse a bound that Batch cannot count: it counts the attempts of a job, whatever ended them."""
    if not role.max_disruptions or layout == "multi-node":
        return
    what = f"role {role.name!r}: max_disruptions={role.max_disruptions}"
    if role.max_retries:
        raise UnsupportedError(
            f"{what} with max_retries={role.max_retries} is not offered by 'aws_batch', which counts the attempts of "
            f"a job, whatever ended them; leave one of them out"
        )
    if role.max_disruptions > _RETRIES:
        raise UnsupportedError(
            f"{what} is more than the {_RETRIES} that 'aws_batch' counts for one job; lower it, or use retries of the "
            f"task"
        )


def _refuse_result(app: AppDef, opts: AwsBatchOpts) -> None:
    if opts.result_prefix and not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?", opts.result_prefix):
        raise InvalidAppError(
            f"option result_prefix: {opts.result_prefix!r} is not a valid S3 address; use s3://bucket/folder"
        )
    for role in app.roles if not has_log_result(app, opts) else ():
        if any(_RESULT_PATH in text for text in (*role.args, *role.env.values())):
            why = no_shell(app.roles[0]) if not uses_shell(app.roles[0], opts) else f"lines go to {log_driver(opts)!r}"
            why = "option result_prefix is set" if opts.result_prefix else why
            raise UnsupportedError(
                f"role {role.name!r} uses {_RESULT_PATH}: a result by the log is not offered by 'aws_batch' here, "
                f"since {why}; let the program write to the address in LAUNCH_RESULT_S3, with option result_prefix"
            )


def _refuse_nodes(app: AppDef, opts: AwsBatchOpts, count: int) -> None:
    if opts.layout == "array":
        raise InvalidAppError(
            f"an app of {len(app.roles)} roles cannot be an array job; leave option layout out, or launch one role only"
        )
    if opts.platform == "FARGATE":
        raise UnsupportedError(
            "replicas that run together need a multi-node job, which 'aws_batch' has on EC2 only; use platform='EC2' "
            "and a queue of EC2, or layout='array'"
        )
    if len(app.roles) > _NODE_GROUPS:
        raise UnsupportedError(
            f"the app has {len(app.roles)} roles, and a multi-node job of 'aws_batch' has at most {_NODE_GROUPS}; "
            f"join roles of equal images, which distinguish their replicas by macros.replica_id"
        )
    if count > _NODES:
        raise UnsupportedError(f"the app has {count} replicas, 'aws_batch' has at most {_NODES} nodes; use fewer")
    groups = sum(1 if uses_shell(role, opts) else role.num_replicas for role in app.roles)
    if groups > _NODE_GROUPS:
        raise UnsupportedError(
            f"the app has {count} replicas, and without `sh` (option shell, entrypoint=None) 'aws_batch' gives at most "
            f"{_NODE_GROUPS} nodes a number; use fewer, or let `sh` start their programs"
        )
    types = {role.resource.capabilities.get(K8S_ITYPE) for role in app.roles}
    if len(types) > 1:
        raise UnsupportedError(
            f"the roles ask for different instance types ({', '.join(sorted(map(str, types)))}), and a multi-node job "
            f"of 'aws_batch' has one; give all roles the same named resource"
        )
    for role in app.roles:
        if RetryPolicy(role.retry_policy) is RetryPolicy.REPLICA and role.max_retries:
            raise UnsupportedError(
                f"role {role.name!r}: retry_policy REPLICA is not offered by 'aws_batch' for the nodes of a multi-node "
                f"job; use APPLICATION"
            )


def _refuse_array(role: Role) -> None:
    if role.port_map or names_rank0(role):
        raise UnsupportedError(
            f"role {role.name!r}: the children of an array job of 'aws_batch' cannot connect to each other; use "
            f"layout='multi-node', or leave port_map, torch_env, macros.rank0_env and macros.rank0_host out"
        )
    if RetryPolicy(role.retry_policy) is RetryPolicy.APPLICATION and role.max_retries:
        raise UnsupportedError(
            f"role {role.name!r}: retry_policy APPLICATION is not offered by 'aws_batch' for an array job; use "
            f"REPLICA, or layout='multi-node'"
        )


def _nearest_size(cpu: float) -> str:
    size = next((each for each in _FARGATE if each >= cpu), max(_FARGATE))
    return f"cpu={size}, memMB={_FARGATE[size][0]}"


def _refuse_fargate(role: Role, opts: AwsBatchOpts) -> None:
    wanted = {
        "resource.gpu": role.resource.gpu > 0,
        "a bind mount": any(isinstance(mount, BindMount) for mount in role.mounts),
        "a device mount": any(isinstance(mount, DeviceMount) for mount in role.mounts) or bool(role.resource.devices),
        "option privileged": opts.privileged,
        "option shm_size_mb": opts.shm_size_mb is not None,
    }
    for what, is_wanted in wanted.items():
        if is_wanted:
            raise UnsupportedError(
                f"role {role.name!r}: {what} is not offered by 'aws_batch' on Fargate; leave it out, or use EC2"
            )
    if not opts.execution_role_arn:
        raise InvalidAppError("Fargate needs a role to pull images and write logs; set option execution_role_arn")
    cpu, mem_mb = size_of(role.resource, opts)
    least, most, step = _FARGATE.get(cpu, (0, -1, 1))
    if not least <= mem_mb <= most or mem_mb % step:
        raise UnsupportedError(
            f"role {role.name!r}: resource cpu={cpu:g} with memMB={mem_mb} is not a valid "
            f"size of Fargate on 'aws_batch'; choose e.g. {_nearest_size(cpu)}, see the AWS Batch user guide"
        )
