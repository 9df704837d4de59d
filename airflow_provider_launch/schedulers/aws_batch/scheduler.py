"""The AWS Batch scheduler: apps as jobs of a queue.

All state is in Batch. The job definition of an app stores its record. Registering revision 1 claims the app id: only
the process that gets revision 1 submits the job. This module implements the `Scheduler` interface; `claims` submits,
`catalog` caches, `status` decides.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar

from airflow_provider_launch.schedulers._kit.base import EVERYWHERE, BuiltinScheduler, connection_from
from airflow_provider_launch.schedulers._kit.refusals import refuse_other_spec, refuse_separate_streams
from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    ListAppResponse,
    LogChunk,
    Stream,
    check_replica,
)
from airflow_provider_launch.schedulers.aws_batch.access import MakeClients, make_clients
from airflow_provider_launch.schedulers.aws_batch.catalog import CachedApp, Catalog
from airflow_provider_launch.schedulers.aws_batch.claims import Claims, Resubmission, is_deleted
from airflow_provider_launch.schedulers.aws_batch.client import Aws, DeniedError, missing_permissions
from airflow_provider_launch.schedulers.aws_batch.job_definition import (
    AWSLOGS,
    app_with_defaults,
    has_log_result,
    log_driver,
    options_with_defaults,
    refuse_other_kinds,
    refuse_unnamed_base,
    result_address,
)
from airflow_provider_launch.schedulers.aws_batch.jobs import AttemptLog, has_ended, job_page, other_pages
from airflow_provider_launch.schedulers.aws_batch.log_reader import CloudWatchLogs, LogMarks
from airflow_provider_launch.schedulers.aws_batch.naming import APP_ID, Tag, app_slug, definition_name, mark
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection, AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.queues import Queues
from airflow_provider_launch.schedulers.aws_batch.registry import EcrBuilds
from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest, build_request, format_request, hash_of
from airflow_provider_launch.schedulers.aws_batch.status import (
    CANCELLED,
    Action,
    Decision,
    decide,
    response_from,
    was_disrupted,
)
from airflow_provider_launch.schedulers.responses import add_error_files
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
    UnknownAppException,
    is_outage,
)
from airflow_provider_launch.specs.owner import owner_of
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.workspace.docker_workspace import DockerWorkspaceMixin, ImageBuilds, refuse_no_repository

log = logging.getLogger(__name__)
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Errors that unexpected values in a job or record cause."""

_MOST_ERRORS = 32
"""Replicas whose error files are read: without the right to filter events, each needs a request."""
_ATTEMPTS_S = 90.0
"""Maximum age of the list of attempts if many logs are followed. Polls normally read it more often."""


class AwsBatchScheduler(DockerWorkspaceMixin, BuiltinScheduler[AwsBatchOpts, AwsBatchConnection, AwsBatchRequest]):
    """Runs an app as one job: a single container, an array, or several nodes."""

    name: ClassVar[str] = "aws_batch"
    opts_type = AwsBatchOpts
    connection_type = AwsBatchConnection
    factory_params: ClassVar[frozenset[str]] = frozenset({"make_clients"})
    app_id_pattern = APP_ID
    app_id_help = "cannot name a job of AWS Batch; use 2 to 100 letters, digits and '-', not starting with '-'"
    capabilities: ClassVar[frozenset[Capability]] = EVERYWHERE | {
        Capability.DISRUPTION_RETRY,
        Capability.BIND_MOUNT,
        Capability.VOLUME_MOUNT,
        Capability.IMAGE_ENTRYPOINT,
        Capability.DEVICE_MOUNT,
        Capability.WORKSPACE,
    }
    poll_interval_s: ClassVar[float] = 10.0

    def __init__(
        self, session_name: str, connection: AwsBatchConnection | None = None, make: MakeClients = make_clients
    ) -> None:
        super().__init__(session_name, connection)
        self.aws = Aws(self.connection, make)
        self._claims = Claims(self.aws, self.connection.claim_wait_s)
        self._catalog = Catalog(self.aws, self._claims)
        self._resubmission = Resubmission(self.aws, self._claims, self.connection.claim_wait_s)
        self._logs = CloudWatchLogs(self.aws)
        self._queues = Queues(self.aws)
        self._ecr_builds = EcrBuilds(self.aws)

    # ---- submit ------------------------------------------------------------------------------------------------------

    def _app_slug(self, name: str) -> str:
        return app_slug(name)

    def _submit_dryrun(
        self, app: AppDef, cfg: AwsBatchOpts | Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[AwsBatchRequest]:
        opts = resolve_options(AwsBatchOpts, cfg, strict=False)
        app = dataclasses.replace(app, roles=[copy.copy(role) for role in app.roles])
        images = self.dryrun_push_images(app, opts)
        if opts.job_definition is None:
            info = super()._submit_dryrun(app, opts, app_id=app_id)
        else:
            info = self._with_defaults(app, opts, opts.job_definition, app_id)
        info.request.images_to_push = images
        return info

    def _with_defaults(
        self, app: AppDef, opts: AwsBatchOpts, name: str, app_id: str | None
    ) -> AppDryRunInfo[AwsBatchRequest]:
        definition = self.aws.existing(name)
        if definition is None:
            raise InvalidAppError(
                f"option job_definition: AWS Batch has no active job definition {name!r} in this "
                f"account and Region; correct the name, or leave the option out"
            )
        refuse_other_kinds(definition)
        info = super()._submit_dryrun(
            app_with_defaults(app, definition), options_with_defaults(opts, definition), app_id=app_id
        )
        # A new object, because the request has cached its hash.
        request = dataclasses.replace(info.request, given_hash=hash_of(app, opts))
        return AppDryRunInfo(request, self._format_request)

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, Any]) -> None:  # noqa: ARG002 - a hook
        refuse_no_repository(app, cfg)
        refuse_unnamed_base(app, cfg)

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, Any], build_cache: MutableMapping[tuple[str, Workspace], str]
    ) -> None:
        # Here `platform` is EC2 or FARGATE, for Docker it would be an architecture.
        given = {name: value for name, value in cfg.items() if name != "platform"}
        super().caching_build_workspace_and_update_role(role, given, build_cache)

    def _image_builds(self, cfg: Mapping[str, Any]) -> ImageBuilds:
        return self._ecr_builds.connect(cfg) or super()._image_builds(cfg)

    def _build_request(self, app: AppDef, opts: AwsBatchOpts, app_id: str) -> AwsBatchRequest:
        return build_request(app, opts, app_id, os.environ)

    _format_request = staticmethod(format_request)

    def schedule(self, dryrun_info: AppDryRunInfo[AwsBatchRequest]) -> str:
        request = dryrun_info.request
        with self._catalog.mutex:
            cached = self._catalog.get(request.app_id)
            if cached is not None and cached.jobs:
                cached = self._catalog.refresh([request.app_id]).get(request.app_id)
        if cached is not None and cached.jobs:
            refuse_other_spec(self.backend, request.app_id, request.spec_hash, cached.request.spec_hash)
            return request.app_id
        if request.images_to_push:
            builds = self._image_builds(request.opts)
            for image, (repository, tag) in request.images_to_push.items():
                builds.push(image, repository, tag)
        job_id = self._claims.claim(request)
        with self._catalog.mutex:
            if job_id is not None:
                self._catalog.remember(request, job_id)
            else:
                self._catalog.forget(request.app_id)
        return request.app_id

    # ---- state -------------------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = builtins.list(app_ids)
        if not ids:
            return {}
        with self._catalog.mutex:
            found = self._catalog.refresh(ids)
            return {app_id: self._described(found[app_id]) if app_id in found else None for app_id in ids}

    def _described(self, cached: CachedApp) -> DescribeAppResponse:
        if cached.final is not None:
            return cached.final
        decision = self._decide(cached)
        if decision.action is Action.TERMINATE:
            self.aws.terminate(cached.jobs[cached.attempt]["jobId"], decision.reason)
        attempt = cached.attempt
        if decision.action is Action.RESUBMIT and self._resubmission.work(cached):
            decision.state = AppState.CANCELLED
        response = response_from(cached.request, attempt, decision)
        if cached.jobs and (region := self.aws.region) and "jobQueue" in (job := cached.jobs[cached.attempt]):
            response.ui_url, response.pages = job_page(region, job), other_pages(region, job)
        if is_terminal(response.state) and cached.jobs:
            if response.state is AppState.FAILED and decision.culprit is not None:
                # Another replica may have failed first, and needed longer to end.
                texts = self._error_texts(cached, decision.culprit)
                add_error_files(response, lambda _, replica: texts.get((replica.role, replica.id)))
            cached.final = response
        return response

    def _decide(self, cached: CachedApp) -> Decision:
        if not cached.jobs:
            return self._without_job(cached)
        job = cached.jobs[cached.attempt]
        replicas = cached.replicas(cached.attempt)
        earlier = [n for n in range(cached.attempt) if n in cached.jobs] if cached.request.max_disruptions else []
        found = decide(
            cached.request, cached.attempt, job, replicas, self.aws.now(), cancelled=cached.cancelled,
            disrupted=sum(was_disrupted(cached.jobs[n], cached.replicas(n)) for n in earlier),
        )  # fmt: skip
        if found.state is AppState.PENDING and found.msg == NONE:
            found.msg = self._queues.reason(cached.request.queue, job) or NONE
        return found

    def _without_job(self, cached: CachedApp) -> Decision:
        """Decide the state of an app without a job.

        Its submission is in progress or was interrupted, or its job is too old for Batch to list.
        """
        waited_s = time.monotonic() - (cached.unlisted_since or time.monotonic())
        if waited_s < self.connection.claim_wait_s:
            return Decision(AppState.SUBMITTED, "registered; waiting for AWS Batch to list the job")
        if cached.cancelled:
            return Decision(AppState.CANCELLED, "cancelled before a job was submitted")
        return Decision(
            AppState.UNKNOWN,
            "AWS Batch lists no job: the submission was interrupted, or the job ended too long ago; "
            "clear the task to launch the app again",
        )

    def _error_texts(self, cached: CachedApp, culprit: int) -> dict[tuple[str, int], str]:
        """Return the content of `TORCHELASTIC_ERROR_FILE` by replica, of the one that ended the app and some others."""
        replicas, request = cached.replicas(cached.attempt), cached.request
        numbers = [culprit, *(number for number in range(len(replicas)) if number != culprit)][:_MOST_ERRORS]
        logs = {
            request.replica_keys[number]: replicas[number].logs[-1]
            for number in numbers
            if replicas[number].logs and request.has_marks(request.replica_keys[number][0])
        }
        if not logs:
            return {}
        try:
            # One request for all of them.
            found = self._logs.documents([*logs.values()], LogMarks(mark(cached.app_id)), limit_s=2.0)
        except LaunchError as error:
            # The error text is optional, so do not fail the poll: the state is already decided.
            log.warning(
                "the failure of app %s lacks the error of its program: cannot read its log: %s", cached.app_id, error
            )
            return {}
        return {key: "\n".join(found[log.stream][0].get("error", [])) for key, log in logs.items()}

    def describe_native(self, app_id: str) -> AppDryRunInfo[AwsBatchRequest] | None:
        with self._catalog.mutex:
            cached = self._catalog.refresh([app_id]).get(app_id)
        return AppDryRunInfo(cached.request, format_request) if cached else None

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:  # noqa: ARG002 - one account
        with self._catalog.mutex:
            ids, damaged = self._catalog.every()
            rows = [ListAppResponse(app_id, AppState.UNKNOWN) for app_id in damaged]
            for app_id, cached in (self._catalog.refresh(ids) if ids else {}).items():
                app = cached.request.app_def
                created = min((job["createdAt"] / 1000 for job in cached.jobs.values()), default=None)
                owner = owner_of(app.metadata)
                state = self._listed_state(cached)
                rows.append(ListAppResponse(app_id, state, name=app.name, owner=owner, created_at=created))
        return rows

    def _listed_state(self, cached: CachedApp) -> AppState:
        """Return the state of an app; UNKNOWN if only this app cannot be described, so that the others are listed."""
        try:
            return self._described(cached).state
        except (LaunchError, *_UNREADABLE) as error:
            if is_outage(error):
                raise
            # For example, the user may not end this job.
            log.warning("app %s is listed as UNKNOWN: %s: %s", cached.app_id, type(error).__name__, error)
            return AppState.UNKNOWN

    def exists(self, app_id: str) -> bool:
        """Return whether the app exists, without deciding its state, which would need more requests."""
        with self._catalog.mutex:
            return app_id in self._catalog.refresh([app_id])

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        with self._catalog.mutex:
            cached = self._catalog.refresh([app_id]).get(app_id)
        if cached is None:
            raise UnknownAppException(app_id)
        opts = cached.request.opts
        count = cached.request.app_def.roles[0].num_replicas
        replicas = cached.replicas(cached.attempt)[:count] if cached.jobs else []
        logs = [
            replica.logs[-1] if replica.end.exit_code is not None and replica.logs else None for replica in replicas
        ]
        if opts.result_prefix:
            for k, replica in enumerate(replicas):
                is_there = replica.end.exit_code is not None
                yield self._result_in_s3(result_address(opts.result_prefix, app_id, k)) if is_there else None
        elif has_log_result(cached.request.app_def, opts):
            # Most apps write a result in replica 0 or none at all, so read the others only if needed.
            for some in (logs[:1], logs[1:]):
                found = self._logs.documents([log for log in some if log], LogMarks(mark(app_id)))
                yield from (self._result_in_log(app_id, *found[log.stream]) if log else None for log in some)
        else:
            yield from (None for _ in range(count))

    def _result_in_s3(self, address: str) -> JsonValue:
        bucket, _, key = address.removeprefix("s3://").partition("/")
        document = self.aws.s3_object(bucket, key, RESULT_LIMIT_BYTES)
        return parse_result(*document) if document else None

    @staticmethod
    def _result_in_log(app_id: str, found: Mapping[str, builtins.list[str]], ended: bool) -> JsonValue:
        if "result-large" in found:
            return parse_result(b"", RESULT_LIMIT_BYTES + 1)
        if "result" in found:
            data = "\n".join(found["result"]).encode()
            return parse_result(data[:RESULT_LIMIT_BYTES], len(data))
        if not ended:
            raise SchedulerRejectedError(
                f"the result of app {app_id!r} is unknown: its log has no end mark in CloudWatch; check the log "
                f"driver, the permissions of the execution role, and the image's ENTRYPOINT: it must run the command"
            )
        return None

    # ---- end ---------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        with self._catalog.mutex:
            cached = self._catalog.refresh([app_id]).get(app_id)
            if cached is None:
                return
            decision = self._decide(cached)
            if is_terminal(decision.state):
                return
            if not cached.jobs or cached.request.resubmits:
                # This stops observers from submitting another attempt, and an interrupted submitter from submitting
                # the first.
                revision = self._claims.register(cached.request, cancelled=True)
                for lower in range(1, revision):
                    self.aws.deregister(definition_name(app_id), lower)
                cached.cancelled = True
            if cached.jobs:
                cached.jobs |= {cached.attempt: self._newest(cached)}
                self.aws.terminate(cached.jobs[cached.attempt]["jobId"], CANCELLED)

    def _newest(self, cached: CachedApp) -> dict[str, Any]:
        """Return the job of the newest attempt, which another observer may have just submitted."""
        if cached.request.resubmits:
            while (job := self._claims.find(cached.request, cached.attempt + 1)) is not None:
                cached.jobs[cached.attempt + 1] = job
        return cached.jobs[cached.attempt]

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        with self._catalog.mutex:
            cached = self._catalog.refresh([app_id]).get(app_id)
            if cached is None:
                return
            attempts = range(max(cached.attempt + 2, 1) if cached.request.resubmits else 1)
            active = {attempt: self.aws.active(definition_name(app_id, attempt)) for attempt in attempts}
            last = max((int(one["revision"]) for one in active[0]), default=0)
            for job in cached.jobs.values():
                if not is_deleted(job):
                    self.aws.tag(self._arn(job), {str(Tag.DELETED): str(last)})
                if "status" not in job or not has_ended(job):
                    # It may have been submitted after the cancel.
                    self.aws.terminate(job["jobId"], CANCELLED)
            for attempt, records in active.items():
                for record in records:
                    self.aws.deregister(definition_name(app_id, attempt), int(record["revision"]))
            if not cached.jobs and (late := self._claims.find_late(cached.request, active[0])) is not None:
                # The job was submitted before its claim was removed.
                self.aws.tag(self._arn(late), {str(Tag.DELETED): str(last)})
                self.aws.terminate(late["jobId"], CANCELLED)
            self._catalog.forget(app_id)

    def _arn(self, job: Mapping[str, Any]) -> str:
        if "jobArn" in job:
            return str(job["jobArn"])
        return str(self.aws.describe([job["jobId"]])[job["jobId"]]["jobArn"])

    def missing_permissions(self, queue: str | None) -> builtins.list[str]:
        """Return the AWS actions that the credentials do not allow; nothing is created. Refuses a missing queue."""
        missing = missing_permissions(self.aws, queue)
        if not missing and queue and self.aws.queue(queue) is None:
            raise InvalidAppError(
                f"AWS Batch has no job queue {queue!r} in {self.aws.region}; correct the extra 'queue'"
            )
        return missing

    def close(self) -> None:
        self.aws.close()

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        refuse_separate_streams(self.backend, role_name, streams)
        cached = self._cached_app(app_id)
        check_replica(cached.request.app_def.roles, role_name, k)
        if (driver := log_driver(cached.request.opts)) != AWSLOGS:
            raise NotImplementedError(
                f"the log driver of app {app_id!r} is {driver!r}, so its log is not in CloudWatch; read it there, or "
                f"use 'awslogs' to see it here"
            )
        try:
            return self._read(cached, role_name, k, dict(cursor) if isinstance(cursor, dict) else {})
        except DeniedError:
            if cached.log_denied:
                return LogChunk([], cursor)  # already reported; the end of the app must not wait for the log
            cached.log_denied = True
            raise

    def _read(self, cached: CachedApp, role_name: str, k: int, state: dict[str, Any]) -> LogChunk:
        # The state, which becomes the cursor: `a` is the attempt, `l` the state of its log, in which `d` means that the
        # log was read to its end.
        app_id, started_at = cached.app_id, time.monotonic()
        number = cached.request.replica_keys.index((role_name, k))
        marks = LogMarks(mark(app_id)) if cached.request.has_marks(role_name) else None
        while True:
            logs, listed_at, may_grow = self._attempts(cached, number)
            for at in range(state.get("a", 0), len(logs)):
                inner = state.get("l", {}) if at == state.get("a", 0) else {}
                lines: builtins.list[Any] = []
                if not inner.get("d"):
                    lines, inner = self._logs.read(at, logs[at], marks, inner)
                state = {"a": at, "l": inner}
                if lines:
                    return LogChunk(lines, state)
                if not inner.get("d"):
                    break  # this attempt has not ended, so it is the last one
            # No new lines: read the list of attempts again if it is old, because there may be a new attempt.
            if not may_grow or listed_at >= started_at - (_ATTEMPTS_S if self._logs.has_many else 0):
                return LogChunk([], state or None)
            cached = self._cached_app(app_id, fresh=True)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        cached = self._cached_app(app_id)
        check_replica(cached.request.app_def.roles, role_name, k)
        logs, _, _ = self._attempts(cached, cached.request.replica_keys.index((role_name, k)))
        return logs[attempt].ending if attempt < len(logs) else ""

    def _cached_app(self, app_id: str, *, fresh: bool = False) -> CachedApp:
        with self._catalog.mutex:
            cached = self._catalog.get(app_id)
            if cached is None or not cached.jobs or fresh:
                cached = self._catalog.refresh([app_id]).get(app_id)
        if cached is None:
            raise UnknownAppException(app_id)
        return cached

    def _attempts(self, cached: CachedApp, number: int) -> tuple[builtins.list[AttemptLog], float, bool]:
        """Return the logs of all attempts of a replica, when they were read, and whether more attempts may follow."""
        with self._catalog.mutex:
            logs = []
            for attempt in sorted(cached.jobs):
                logs += cached.replicas(attempt)[number].logs
            if not cached.jobs:
                return [], 0.0, True
            last = cached.jobs[cached.attempt]
            replica = cached.replicas(cached.attempt)[number]
            may_grow = not (has_ended(last) or replica.is_over) or (cached.request.resubmits and (cached.final is None))
            return logs, cached.seen_at.get(cached.attempt, 0.0), may_grow


def create_scheduler(session_name: str, **kwargs: Any) -> AwsBatchScheduler:
    """Return the AWS Batch scheduler, without a request to AWS.

    `make_clients` is for callers with their own credentials. The other keywords are as in `connection_from`.
    """
    make: MakeClients = kwargs.get("make_clients") or make_clients
    return AwsBatchScheduler(session_name, connection_from(AwsBatchConnection, kwargs), make)
