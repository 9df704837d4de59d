"""Options of the AWS Batch scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

from annotated_types import Ge, Le

from airflow_provider_launch.schedulers.structured_opts import ImageWorkspaceOpts, RoleValue, StructuredOpts
from airflow_provider_launch.specs.resources import LATER


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class AwsBatchConnection(StructuredOpts):
    """The account, Region and credentials."""

    aws_conn_id: Optional[str] = None
    """An Airflow connection of type `aws`, whose credentials, role, proxies and endpoints are used; needs the amazon
    provider. None means the fields below, and without them the credentials that boto3 finds on the host."""

    region_name: Optional[str] = None
    """Region, such as `eu-west-1`. None means the Region of the credentials' profile or of the environment."""

    profile_name: Optional[str] = None
    """Profile of the AWS configuration of the host."""

    aws_access_key_id: Optional[str] = None
    """Access key; `aws_secret_access_key` belongs to it."""

    aws_secret_access_key: Optional[str] = None
    """Secret of the access key."""

    aws_session_token: Optional[str] = None
    """Session token of temporary keys."""

    role_arn: Optional[str] = None
    """Role to assume with the credentials above; its keys are renewed automatically."""

    external_id: Optional[str] = None
    """External id that the role's trust policy requires."""

    role_session_name: str = "airflow-provider-launch"
    """Name of the sessions of that role, as shown in the account's audit logs."""

    role_duration_s: Optional[Annotated[int, Ge(1800), Le(43200)]] = None
    """Seconds for which keys of the role are valid; boto3 renews them in the last 15 minutes. None means AWS's default,
    an hour."""

    endpoint_url: Optional[str] = None
    """Address of all services, for a VPC endpoint or a test server. None means the endpoints of AWS."""

    logs_endpoint_url: Optional[str] = None
    """Address of CloudWatch Logs, if it differs from `endpoint_url`."""

    sts_endpoint_url: Optional[str] = None
    """Address of the token service, if it differs from `endpoint_url`."""

    config_kwargs: Optional[dict[str, Any]] = None
    """Arguments of botocore's `Config`, such as `{"proxies": {"https": "http://proxy:3128"}}`; the launcher sets
    retries and timeouts itself."""

    verify: Optional[str] = None
    """File of the certificate authority of the endpoints. None means the authorities of boto3."""

    requests_per_s: Annotated[float, Ge(1), Le(1000)] = 20.0
    """Maximum requests per second of one process to AWS Batch, for all its apps, because AWS limits the account."""

    log_requests_per_s: Annotated[float, Ge(1), Le(1000)] = 10.0
    """Maximum GetLogEvents requests per second of one process. Two fifths of it are the maximum for FilterLogEvents,
    which is used to follow many apps."""

    claim_wait_s: Annotated[float, Ge(0.1), Le(600)] = 60.0
    """Seconds that a repeated launch waits for the job of the first launch to be listed, before it replaces an
    interrupted launch, and once more after that. Must be longer than Batch needs to list a new job."""

    timeout_s: Annotated[float, Ge(1), Le(600)] = 20.0
    """Seconds after which a request without an answer fails."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Maximum `time_limit_s` of a launch, and the default for launches without one. None means that launches need no
    limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value of the connection applies, or the default. If any
    option is locked, tasks cannot use `overlay`, because it could change locked options."""

    def __post_init__(self) -> None:
        """Refuse credentials from two sources, because one would be ignored."""
        own = [
            name
            for name in (
                "profile_name",
                "aws_access_key_id",
                "aws_secret_access_key",
                "aws_session_token",
                "role_arn",
                "config_kwargs",
            )
            if getattr(self, name)
        ]
        if self.aws_conn_id and own:
            raise ValueError(f"aws_conn_id and {', '.join(own)} exclude each other; keep one of them")
        if bool(self.aws_access_key_id) != bool(self.aws_secret_access_key):
            raise ValueError("aws_access_key_id and aws_secret_access_key belong together; set both or none")


@dataclass(frozen=True)
class AwsBatchRunOpts(StructuredOpts):
    """Options of one launch without those of workspaces, which only decide the names of images."""

    queue: Optional[str] = None
    """Job queue, by name or ARN. Required, here or in the connection."""

    job_definition: Optional[str] = field(default=None, metadata=LATER)
    """An existing job definition of a container, by name, `name:revision` or ARN. Its image, resources, variables,
    volumes, roles and other properties are the defaults of every role; the command is that of the role. The dry run
    reads it. The app registers its own definition all the same, because the first revision of that is its claim."""

    layout: Literal["auto", "array", "multi-node"] = "auto"
    """Kind of job for several replicas: children of an array job, which start as capacity allows, or nodes of a
    multi-node job, which start together and can connect to each other. `auto` chooses nodes for several roles, ports,
    the host of rank 0, `torch_env` and APPLICATION retries, and an array otherwise."""

    platform: Literal["EC2", "FARGATE"] = "EC2"
    """Platform of the queue's compute environments."""

    job_role_arn: Optional[str] = None
    """Role of the program in the container."""

    execution_role_arn: Optional[str] = None
    """Role with which the host pulls the image, reads secrets and writes logs; required on Fargate."""

    assign_public_ip: bool = False
    """Whether a Fargate container gets a public address, which it needs for pulls without a NAT gateway."""

    share_identifier: Optional[str] = None
    """Share of the job, on a queue with a fair-share policy."""

    priority: Optional[Annotated[int, Ge(0), Le(9999)]] = None
    """Priority within its share, on a queue with a fair-share policy."""

    tags: Optional[dict[str, str]] = None
    """Tags of the job and its definition."""

    propagate_tags: bool = True
    """Whether the ECS tasks get the tags, too, which AWS uses for cost allocation."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` is never copied."""

    secrets: Optional[dict[str, str]] = None
    """Variable to ARN of a secret or parameter, which the host reads; requests never contain the value."""

    shell: bool = True
    """Whether a small `sh` script starts the program, gives each replica its number, returns the result and marks the
    end of the log. Turn it off for images without `sh`."""

    init: bool = True
    """Whether an init is process 1, so that signals reach the program and zombie processes are reaped."""

    working_dir: Optional[str] = None
    """Directory in which programs start; needs `shell`. None means the working directory of the image."""

    by_role: Optional[dict[str, dict[str, RoleValue]]] = field(default=None, metadata=LATER)
    """Options of single roles, `{"worker": {"shm_size_mb": 1024}}`. They override those of the launch for the
    containers of that role."""

    user: Optional[str] = None
    """User, or `user:group`, that runs the program. None means the user of the image."""

    privileged: bool = False
    """Whether replicas get full privileges on the host."""

    shm_size_mb: Optional[Annotated[int, Ge(1)]] = None
    """Size of `/dev/shm` in MB. None means the host's default, which is 64."""

    log_group: Optional[str] = None
    """Log group in CloudWatch, which must exist. None means `/aws/batch/job`."""

    result_prefix: Optional[str] = None
    """`s3://bucket/folder` below which the program itself writes its result, to the address in `LAUNCH_RESULT_S3`. Use
    it for images without `sh`, or if the log is not in CloudWatch. None means that the result is read from the log."""

    linger_s: Annotated[int, Ge(0), Le(3600)] = 10
    """Seconds for which replica 0 of the first role of a multi-node job keeps running after its success, because Batch
    stops the other nodes when it ends."""

    overlay: Optional[dict[str, Any]] = None
    """Fields of `containerProperties` without an option, merged into those of every role."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds from the submission of the app after which its observers end it as FAILED. Without observers Batch ends
    each attempt at this limit, or at 60 s if that is longer. None means no limit."""


# The options of workspaces come last in forms and pages.
@dataclass(frozen=True)
class AwsBatchOpts(ImageWorkspaceOpts, AwsBatchRunOpts):
    """Options of one launch on AWS Batch."""
