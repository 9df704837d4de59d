"""Builds the request of an app for AWS Batch, without I/O."""

from __future__ import annotations

import base64
import copy
import json
import logging
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

from airflow_provider_launch.schedulers._kit.request import format_app, format_role, options_by_role, stored_app
from airflow_provider_launch.schedulers.aws_batch.job_definition import (
    container_properties,
    has_log_result,
    log_driver,
    no_shell,
    size_of,
    uses_shell,
)
from airflow_provider_launch.schedulers.aws_batch.naming import Tag, definition_name, job_name
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts, AwsBatchRunOpts
from airflow_provider_launch.schedulers.aws_batch.refusals import refuse_unsupported_layout
from airflow_provider_launch.schedulers.environment import GPU_VARIABLES, inherited_env, refuse_equal_port_variables
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import names_rank0
from airflow_provider_launch.specs.roles import AppDef, RetryPolicy, Role
from airflow_provider_launch.specs.secret_names import is_secret_name
from airflow_provider_launch.specs.secrets import MASK, masked_args, masked_document, masked_env
from airflow_provider_launch.util.untrusted import UntrustedError, inflate, parse_json

log = logging.getLogger(__name__)

Layout = Literal["single", "array", "multi-node"]
ReplicaKey = tuple[str, int]
"""Role and number of a replica."""

_RECORD = "launchRequest"
"""Parameter of the definition that holds the app and its options, with the secrets of all roles.

Batch substitutes parameters only in commands that name them by `Ref::`, so no program can read this one.
https://docs.aws.amazon.com/batch/latest/userguide/job_definition_parameters.html#parameters
"""
_RECORD_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the unpacked record; repeated texts take little space in the definition."""
_GIVEN = ("AWS_BATCH*", "AWS_CONTAINER_*", "AWS_EXECUTION_ENV", "ECS_*", "HOSTNAME")
"""Variables that Batch refuses or sets itself, some of them for the credentials of the container's role."""
_OF_ROLE = {
    "execution_role_arn",
    "init",
    "job_role_arn",
    "privileged",
    "secrets",
    "shm_size_mb",
    "user",
    "working_dir",
}
"""Options that may differ between roles."""
_DEFINITION_BYTES = 24 * 1024
_LATEST = 99, 9_999_999_999
"""Attempt and time of the largest definition of an app: a later attempt and a cancellation register it again."""
_LEAST_TIMEOUT_S = 60
_HOST_LOSSES = 10
"""Attempts of a job without retries, because the loss of a host is not charged to the app."""


class InheritingRole(NamedTuple):
    """A role with the variables inherited from the launcher, in the form of the requests of other backends."""

    name: str
    copied_env: dict[str, str]


@dataclass
class AwsBatchRequest:
    """The app with its options; everything else is derived from them."""

    app_id: str
    app: dict[str, Any]
    """The app as the user gave it."""
    options: dict[str, Any]
    """Options that differ from their defaults."""
    copied_env: dict[str, str]
    given_hash: str = ""
    """Hash of app and options before they got the defaults of a job definition, which may change between two tries."""
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)
    """Image with a workspace to the (repository, tag) to which it is pushed at submission; not in the record."""

    @cached_property
    def app_def(self) -> AppDef:
        """The app as the user gave it; cached, because each poll shows it."""
        return stored_app(self.app)

    @cached_property
    def opts(self) -> AwsBatchOpts:
        """The options."""
        return resolve_options(AwsBatchOpts, self.options, strict=False)

    @cached_property
    def role_opts(self) -> dict[str, AwsBatchOpts]:
        """The options of each role, by its name."""
        of_app = {item.name for item in fields(AwsBatchOpts)} - _OF_ROLE
        return options_by_role(self.app_def, self.opts, of_app)

    @cached_property
    def spec_hash(self) -> str:
        """Hash of app and options."""
        return self.given_hash or hash_of(self.app_def, self.opts)

    @cached_property
    def layout(self) -> Layout:
        """The kind of job."""
        return _layout(self.app_def, self.opts)

    @cached_property
    def replica_keys(self) -> list[ReplicaKey]:
        """All replicas, in the order of children or nodes."""
        return [(role.name, k) for role in self.app_def.roles for k in range(role.num_replicas)]

    @property
    def roles(self) -> list[InheritingRole]:
        """The roles, which all inherit the same variables."""
        return [InheritingRole(role.name, self.copied_env) for role in self.app_def.roles]

    @property
    def queue(self) -> str:
        """The job queue."""
        assert self.opts.queue is not None
        return self.opts.queue

    def has_marks(self, role_name: str) -> bool:
        """Return whether a script marks errors, results and the end in the logs of a role."""
        return any(role.name == role_name and uses_shell(role, self.opts) for role in self.app_def.roles)

    @property
    def resubmits(self) -> bool:
        """Whether observers submit another job after a failure."""
        return self.layout == "multi-node" and (
            self.max_disruptions > 0 or any(role.max_retries for role in self.app_def.roles)
        )

    @property
    def max_disruptions(self) -> int:
        """Losses of hosts after which the app restarts without a charge; the lowest bound of the roles."""
        bounds = [role.max_disruptions for role in self.app_def.roles if role.max_disruptions is not None]
        return min(bounds, default=0)

    def definition(self, attempt: int, submitted_at: int, *, cancelled: bool = False) -> dict[str, Any]:
        """Return the arguments of RegisterJobDefinition for an attempt of the app."""
        own = {**self._tags(), str(Tag.QUEUE): self.queue}
        stamps = {str(Tag.SUBMITTED): str(submitted_at), **({str(Tag.CANCELLED): "true"} if cancelled else {})}
        return {
            "jobDefinitionName": definition_name(self.app_id, attempt),
            **_definition(self, attempt),
            "tags": {**(self.opts.tags or {}), **own, **stamps},
        }

    def _tags(self) -> dict[str, str]:
        return {str(Tag.APP_ID): self.app_id, str(Tag.SPEC_HASH): self.spec_hash}

    def submission(self, attempt: int, revision: int) -> dict[str, Any]:
        """Return the arguments of SubmitJob for an attempt of the app."""
        opts = self.opts
        found: dict[str, Any] = {
            "jobName": job_name(self.app_id, attempt),
            "jobQueue": self.queue,
            "jobDefinition": f"{definition_name(self.app_id, attempt)}:{revision}",
            "tags": {**(opts.tags or {}), **self._tags()},
        }
        if self.layout == "array":
            found["arrayProperties"] = {"size": len(self.replica_keys)}
        if opts.share_identifier:
            found["shareIdentifier"] = opts.share_identifier
        if opts.priority is not None:
            found["schedulingPriorityOverride"] = opts.priority
        return found


def hash_of(app: AppDef, opts: AwsBatchOpts) -> str:
    """Return the spec hash without the options of workspaces.

    The names of the images contain what these options decide, and hashes of older apps must not change.
    """
    return spec_hash(app, AwsBatchRunOpts(**{item.name: getattr(opts, item.name) for item in fields(AwsBatchRunOpts)}))


def build_request(app: AppDef, opts: AwsBatchOpts, app_id: str, environ: Mapping[str, str]) -> AwsBatchRequest:
    """Return the request for `app`, which is left as it is; refuse what Batch cannot run.

    Raises:
        InvalidAppError: there is no queue, or the app is larger than a job definition may be.
    """
    if not opts.queue:
        raise InvalidAppError(
            "'aws_batch' needs a job queue; name one in option 'queue', or in the extra 'queue' of the connection"
        )
    refuse_equal_port_variables(app)
    default = AwsBatchOpts()
    given = {
        item.name: getattr(opts, item.name)
        for item in fields(AwsBatchOpts)
        if getattr(opts, item.name) != getattr(default, item.name)
    }
    has_gpu = any(role.resource.gpu > 0 for role in app.roles)
    copied = inherited_env(environ, opts.copy_env or [], [*_GIVEN, *(GPU_VARIABLES if has_gpu else ())])
    request = AwsBatchRequest(app_id, app_to_dict(app), given, copied)
    refuse_unsupported_layout(app, opts, request.layout, request.role_opts)
    size = len(json.dumps(request.definition(*_LATEST, cancelled=True)).encode())
    if size > _DEFINITION_BYTES:
        raise InvalidAppError(
            f"the job definition of app {app.name!r} would have {size} bytes, but AWS Batch has a limit of "
            f"{_DEFINITION_BYTES}; "
            f"shorten args and env, or put large texts into the image or into S3"
        )
    return request


def request_in(definition: Mapping[str, Any]) -> AwsBatchRequest | None:
    """Return the request in a job definition; None if it is not from the launcher, or damaged."""
    app_id = definition.get("tags", {}).get(str(Tag.APP_ID))
    packed = (definition.get("parameters") or {}).get(_RECORD)
    if not app_id or not packed:
        return None
    try:
        document = parse_json(inflate(base64.b64decode(packed), _RECORD_BYTES), _RECORD_BYTES)
        request = AwsBatchRequest(app_id, **document)
        _refuse_damaged(request)
    except Exception as error:  # noqa: BLE001 - any text in place of any field, by another user of the account
        log.warning("the record of app %r is damaged, and ignored: %s", app_id, error)
        return None
    return request


def _refuse_damaged(request: AwsBatchRequest) -> None:
    # Build the cached properties here, so that a damaged record fails here, and not in a call about many apps.
    _ = request.app_def, request.opts, request.layout, request.spec_hash
    if not request.opts.queue:
        raise UntrustedError("it names no queue")
    if not all(isinstance(text, str) for pair in request.copied_env.items() for text in pair):
        raise UntrustedError("its variables are not texts")


def format_request(request: AwsBatchRequest) -> str:
    """Return the request for people, with secrets masked."""
    opts = request.opts
    detail = f" as {request.layout} job on queue {opts.queue}, {opts.platform}"
    lines = [format_app(request.app_id, request.app_def.name, detail, opts.time_limit_s)]
    if opts.job_definition:
        lines.append(
            f"defaults: job definition {opts.job_definition}; the app registers its own, whose revision 1 is its claim"
        )
    for role in request.app_def.roles:
        details = []
        if (cpu := role.resource.cpu) > 0 and (vcpus := size_of(role.resource, opts)[0]) != cpu:
            details.append(f"cpu={cpu:g} is rounded up to {vcpus} vCPUs of EC2")
        if role.max_retries and request.layout != "multi-node":
            details.append("Batch counts the attempts; the loss of a host counts, too")
        if role is request.app_def.roles[0]:
            details.append(_result_detail(request.app_def, opts))
        lines += format_role(
            role.name,
            role.num_replicas,
            role.image,
            policy=RetryPolicy(role.retry_policy).value,
            max_retries=role.max_retries,
            details=[detail for detail in details if detail],
        )
    shown = _masked(request)
    calls = (
        ("RegisterJobDefinition", shown.definition(0, 0)),
        ("SubmitJob", shown.submission(0, 1)),
    )
    for call, arguments in calls:
        arguments["tags"][str(Tag.SPEC_HASH)] = request.spec_hash
        arguments["tags"].pop(str(Tag.SUBMITTED), None)
        arguments.pop("parameters", None)
        lines.append(f"{call} {json.dumps(masked_document(arguments), indent=2, ensure_ascii=False, default=str)}")
    return "\n".join(lines)


def _result_detail(app: AppDef, opts: AwsBatchOpts) -> str:
    if opts.result_prefix:
        return f"its result is read from below {opts.result_prefix}"
    if has_log_result(app, opts):
        return ""
    has_shell = uses_shell(app.roles[0], opts)
    cause = f"without `sh` ({no_shell(app.roles[0])})" if not has_shell else f"with the log driver {log_driver(opts)!r}"
    return f"returns no result {cause}; with option result_prefix it is read from S3"


def _masked(request: AwsBatchRequest) -> AwsBatchRequest:
    """Return the request of the same app with masked secrets; rebuilt, because scripts contain secrets, too."""
    app = copy.deepcopy(request.app_def)
    for role in app.roles:
        role.env = masked_env(role.env)
        role.args = masked_args(role.args)
    env = {name: MASK if is_secret_name(name) else text for name, text in request.copied_env.items()}
    return AwsBatchRequest(request.app_id, app_to_dict(app), request.options, env, request.given_hash)


def _layout(app: AppDef, opts: AwsBatchOpts) -> Layout:
    if len(app.roles) == 1 and app.roles[0].num_replicas == 1:
        return "single"
    if opts.layout == "multi-node" or len(app.roles) > 1:
        return "multi-node"
    role = app.roles[0]
    if opts.layout == "array":
        return "array"
    together = role.port_map or _retries_as_one(role) or names_rank0(role)
    return "multi-node" if together else "array"


def _retries_as_one(role: Role) -> bool:
    return bool(role.max_retries) and RetryPolicy(role.retry_policy) is RetryPolicy.APPLICATION


def _definition(request: AwsBatchRequest, attempt: int) -> dict[str, Any]:
    opts, roles = request.opts, request.app_def.roles
    record: dict[str, Any] = {"app": request.app, "options": request.options, "copied_env": request.copied_env}
    if request.given_hash:
        record["given_hash"] = request.given_hash
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9)).decode()
    found: dict[str, Any] = {"platformCapabilities": [opts.platform], "parameters": {_RECORD: packed}}
    if opts.propagate_tags:
        found["propagateTags"] = True
    if opts.time_limit_s is not None:
        found["timeout"] = {"attemptDurationSeconds": max(_LEAST_TIMEOUT_S, math.ceil(opts.time_limit_s))}
    bodies = []
    first = 0
    for role in roles:
        if request.layout == "multi-node" and not uses_shell(role, opts):
            # Without a shell only separate properties can give each replica its number.
            alone = range(role.num_replicas)
            bodies += [(first + k, 1, container_properties(request, role, first, attempt, k)) for k in alone]
        else:
            bodies.append((first, role.num_replicas, container_properties(request, role, first, attempt)))
        first += role.num_replicas
    if request.layout != "multi-node":
        role = roles[0]
        return {**found, "type": "container", "containerProperties": bodies[0][2], "retryStrategy": _retries(role)}
    ranges = [{"targetNodes": f"{begin}:{begin + count - 1}", "container": body} for begin, count, body in bodies]
    nodes = {"numNodes": first, "mainNode": 0, "nodeRangeProperties": ranges}
    # Observers retry the whole app, because Batch would do so only if the main node fails.
    return {**found, "type": "multinode", "nodeProperties": nodes, "retryStrategy": {"attempts": 1}}


def _retries(role: Role) -> dict[str, Any]:
    if role.max_retries or role.max_disruptions == 0:
        return {"attempts": role.max_retries + 1}
    # https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html: the reason of a lost host starts with this.
    rules = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    attempts = _HOST_LOSSES if role.max_disruptions is None else role.max_disruptions + 1
    return {"attempts": attempts, "evaluateOnExit": rules}
