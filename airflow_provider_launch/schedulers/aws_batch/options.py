"""Options of the AWS Batch scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

from annotated_types import Ge, Le

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class AwsBatchConnection(StructuredOpts):
    """Which account and Region, and by which credentials."""

    aws_conn_id: Optional[str] = None
    """An Airflow connection of type `aws`, whose credentials, role, proxies and endpoints are used; needs the amazon
    provider. None means the fields below, and without them what boto3 finds on the host."""

    region_name: Optional[str] = None
    """Region, such as `eu-west-1`. None means that of the credentials' profile or of the environment."""

    profile_name: Optional[str] = None
    """Profile of the AWS configuration of the host."""

    aws_access_key_id: Optional[str] = None
    """Access key; `aws_secret_access_key` belongs to it."""

    aws_secret_access_key: Optional[str] = None
    """Secret of the access key."""

    aws_session_token: Optional[str] = None
    """Session token of temporary keys."""

    role_arn: Optional[str] = None
    """Role to assume with the credentials above; its keys are renewed by themselves."""

    external_id: Optional[str] = None
    """External id that the role's trust policy demands."""

    role_session_name: str = "airflow-provider-launch"
    """Name of the sessions of that role, as the account's records show it."""

    role_duration_s: Optional[Annotated[int, Ge(1800), Le(43200)]] = None
    """Seconds for which keys of the role are valid; boto3 renews them in the last 15 minutes. None means AWS's default,
    an hour."""

    endpoint_url: Optional[str] = None
    """Address of all services, for a VPC endpoint or a test server. None means AWS's own."""

    logs_endpoint_url: Optional[str] = None
    """Address of CloudWatch Logs, where it differs from `endpoint_url`."""

    sts_endpoint_url: Optional[str] = None
    """Address of the token service, where it differs from `endpoint_url`."""

    config_kwargs: Optional[dict[str, Any]] = None
    """Arguments of botocore's `Config`, such as `{"proxies": {"https": "http://proxy:3128"}}`; retries and times are
    the launcher's own."""

    verify: Optional[str] = None
    """File of the certificate authority of the endpoints. None means those that boto3 knows."""

    requests_per_s: Annotated[float, Ge(1), Le(1000)] = 20.0
    """Most requests a second to AWS Batch by one process, for all its apps: the rate is the account's."""

    log_requests_per_s: Annotated[float, Ge(1), Le(1000)] = 10.0
    """Most GetLogEvents a second by one process, and two fifths as many FilterLogEvents, by which many apps are
    followed."""

    claim_wait_s: Annotated[float, Ge(0.1), Le(600)] = 60.0
    """Seconds for which a repeated launch waits for the job of the first one to be listed before it replaces a launch
    that was cut off, and once more after. Longer than Batch takes to list a new job; only such a launch waits."""

    timeout_s: Annotated[float, Ge(1), Le(600)] = 20.0
    """Seconds after which a request without an answer is given up."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """The longest `time_limit_s` that a launch may ask for, and the limit of one that asks for none. None means that
    launches need no limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value here holds, or the default. Where some are locked, no
    task gives an `overlay`, which reaches past them."""

    def __post_init__(self) -> None:
        """Refuse credentials of two sources, of which one would be ignored."""
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
            raise ValueError("aws_access_key_id and aws_secret_access_key belong together; give both or none")


@dataclass(frozen=True)
class AwsBatchOpts(StructuredOpts):
    """How one launch runs as a job of AWS Batch."""

    queue: Optional[str] = None
    """Job queue, by name or ARN. Required, here or in the connection."""

    layout: Literal["auto", "array", "multi-node"] = "auto"
    """What several replicas become: children of an array job, which start as capacity allows, or nodes of a multi-node
    job, which start together and reach each other. `auto` takes nodes for several roles, ports, `macros.rank0_env` and
    APPLICATION retries, and an array otherwise."""

    platform: Literal["EC2", "FARGATE"] = "EC2"
    """What the queue's compute environments are."""

    job_role_arn: Optional[str] = None
    """Role that the program in the container has."""

    execution_role_arn: Optional[str] = None
    """Role by which the host pulls the image, reads secrets and writes logs; Fargate demands it."""

    assign_public_ip: bool = False
    """Whether a Fargate container gets a public address, which it needs for pulls without a NAT gateway."""

    share_identifier: Optional[str] = None
    """Share that the job counts for, on a queue with a fair-share policy."""

    priority: Optional[Annotated[int, Ge(0), Le(9999)]] = None
    """Priority within its share, on a queue with a fair-share policy."""

    tags: Optional[dict[str, str]] = None
    """Tags of the job and its definition."""

    propagate_tags: bool = True
    """Whether the tags go to the tasks of ECS too, by which AWS allocates costs."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` is never copied."""

    secrets: Optional[dict[str, str]] = None
    """Variable to ARN of a secret or parameter, which the host reads; the value is in no request."""

    shell: bool = True
    """Whether programs are started by a small `sh` script, which gives each replica its number, hands back the result
    and marks the end of the log. False is for images without `sh`."""

    init: bool = True
    """Whether an init is process 1, so that signals reach the program and zombie processes are reaped."""

    working_dir: Optional[str] = None
    """Directory in which programs start; needs `shell`. None means the image's own."""

    user: Optional[str] = None
    """User, or `user:group`, that runs the program. None means the image's own."""

    privileged: bool = False
    """Whether replicas get all rights on the host."""

    shm_size_mb: Optional[Annotated[int, Ge(1)]] = None
    """Size of `/dev/shm` in MB. None means the host's default, which is 64."""

    log_group: Optional[str] = None
    """Log group in CloudWatch, which must exist. None means `/aws/batch/job`."""

    result_prefix: Optional[str] = None
    """`s3://bucket/folder` below which the program itself writes its result, to the address in `LAUNCH_RESULT_S3`: for
    images without `sh`, and where lines go elsewhere than to CloudWatch. None means that the log brings the result."""

    linger_s: Annotated[int, Ge(0), Le(3600)] = 10
    """Seconds for which replica 0 of the first role of a multi-node job stays after its success: Batch ends the other
    nodes when that one ends."""

    overlay: Optional[dict[str, Any]] = None
    """Fields of `containerProperties` that no option has, merged into those of every role."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after which the app is ended as FAILED, counted from its submission, by its observers; Batch's own limit
    per attempt, of at least 60 s, ends an app without observers. None means no limit."""
