"""Client of AWS Batch, CloudWatch Logs, S3 and ECR; translates botocore's errors, and checks permissions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_launch.schedulers._kit.http import BusyRetry, epoch_of
from airflow_provider_launch.schedulers.aws_batch.access import Clients, MakeClients, bucket
from airflow_provider_launch.schedulers.aws_batch.naming import LogGroup, definition_name
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.specs.errors import LaunchError, SchedulerRejectedError, SchedulerUnavailableError
from airflow_provider_launch.specs.secrets import masked_text

_IDS = 100
_THROTTLED_S = 60.0
_FILTER_SHARE = 0.4
"""AWS allows 25 GetLogEvents a second, and 5 to 10 FilterLogEvents."""
_BUSY = {
    "TooManyRequestsException",
    "ThrottlingException",
    "Throttling",
    "ThrottledException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "RequestTimeout",
    "RequestTimeoutException",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId"}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnrecognizedClientException", "UnauthorizedOperation"}


class NotFoundError(SchedulerRejectedError):
    """The stream, group or definition does not exist."""


class BadTokenError(SchedulerRejectedError):
    """The token of a page has expired."""


class DeniedError(SchedulerRejectedError):
    """The credentials do not allow the action."""


class RefusedError(SchedulerRejectedError):
    """AWS has refused the request and done nothing."""


class LostAnswerError(SchedulerUnavailableError):
    """The answer was lost, so the request may or may not have been done."""


class Aws:
    """One account and Region."""

    def __init__(self, connection: AwsBatchConnection, make: MakeClients) -> None:
        self._connection = connection
        self._make = make
        self._lock = threading.Lock()
        self._clients: Clients | None = None
        self._batch_bucket = bucket("batch", connection.requests_per_s, connection)
        self._logs_bucket = bucket("logs", connection.log_requests_per_s, connection)
        self._filter_bucket = bucket("filter", connection.log_requests_per_s * _FILTER_SHARE, connection)
        self._extras: dict[tuple[str, str | None], Any] = {}
        self.ahead_s = 0.0
        """Seconds by which AWS's clock is ahead of ours."""

    @property
    def clients(self) -> Clients:
        """The clients, made on first use."""
        with self._lock:
            if self._clients is None:
                self._clients = self._make(self._connection)
            return self._clients

    @property
    def region(self) -> str | None:
        """The Region."""
        return self.clients.batch.meta.region_name  # type: ignore[no-any-return] # boto3 has no types

    def now(self) -> float:
        """Return the epoch seconds by AWS's clock."""
        return time.time() + self.ahead_s

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            clients, self._clients = self._clients, None
            extras, self._extras = self._extras, {}
        for client in (*((clients.batch, clients.submit, clients.logs) if clients else ()), *extras.values()):
            client.close()

    # ---- definitions -------------------------------------------------------------------------------------------------

    def register(self, arguments: Mapping[str, Any]) -> int:
        """Register a job definition and return its revision; each name gets revision 1 once.

        The call may be repeated: a lost answer only leaves an unused revision.
        """
        # Real Batch answers 404 and 409 to simultaneous registrations.
        found = self._repeated(lambda: self._batch("register_job_definition", **arguments), {404, 409})
        if "revision" not in found:
            raise _incomplete("register_job_definition", "revision")
        return int(found["revision"])

    def deregister(self, name: str, revision: int) -> None:
        """Make a revision inactive, so that no job can be submitted with it."""
        try:
            self._batch("deregister_job_definition", jobDefinition=f"{name}:{revision}")
        except NotFoundError:
            return

    def active(self, name: str) -> list[dict[str, Any]]:
        """Return the active revisions of a name, in ascending order."""
        found = self._pages("describe_job_definitions", "jobDefinitions", jobDefinitionName=name, status="ACTIVE")
        return sorted(found, key=lambda one: int(one["revision"]))

    def first_revisions(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the active first revisions of these names; sends one request per 100 names."""
        wanted = [f"{name}:1" for name in names]
        found = []
        for at in range(0, len(wanted), _IDS):
            shown = self._rows("describe_job_definitions", "jobDefinitions", jobDefinitions=wanted[at : at + _IDS])
            found += [one for one in shown if one.get("status") == "ACTIVE"]
        return found

    def existing(self, name: str) -> dict[str, Any] | None:
        """Return the definition with this ARN or `name:revision`, or the newest active one with this name, or None."""
        if ":" not in name:
            return next(reversed(self.active(name)), None)
        found = self._rows("describe_job_definitions", "jobDefinitions", jobDefinitions=[name])
        return next((one for one in found if one.get("status") == "ACTIVE"), None)

    def is_inactive(self, name: str, revision: int) -> bool:
        """Return whether a revision is inactive; False if it is not shown yet."""
        found = self._rows("describe_job_definitions", "jobDefinitions", jobDefinitions=[f"{name}:{revision}"])
        return any(one.get("status") == "INACTIVE" for one in found)

    def all_active(self) -> Iterator[dict[str, Any]]:
        """Yield all active definitions of the account and Region."""
        return self._pages("describe_job_definitions", "jobDefinitions", status="ACTIVE")

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, arguments: Mapping[str, Any]) -> str:
        """Submit a job and return its id; RefusedError: none was submitted; LostAnswerError: perhaps one was."""
        client = self.clients.submit
        # After a registration Batch may not know the definition for some seconds.
        answer = self._repeated(lambda: self._call(client, self._batch_bucket, "submit_job", arguments), {404, 429})
        if "jobId" not in answer:
            raise _incomplete("submit_job", "jobId")
        return str(answer["jobId"])

    def submit_nothing(self, queue: str, definition: str) -> None:
        """Submit with a definition that does not exist, without retries; raises the errors of `submit`."""
        arguments = {"jobName": _MISSING_NAME, "jobQueue": queue, "jobDefinition": definition}
        self._call(self.clients.submit, self._batch_bucket, "submit_job", arguments)

    def describe(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return job id to job; sends one request per 100 ids. Missing ids have expired in Batch."""
        wanted = list(dict.fromkeys(ids))
        found: dict[str, dict[str, Any]] = {}
        for at in range(0, len(wanted), _IDS):
            for job in self._rows("describe_jobs", "jobs", jobs=wanted[at : at + _IDS]):
                found[job["jobId"]] = job
        return found

    def jobs_named(self, queue: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield summaries of jobs of this name (`x*` matches a prefix), newest first; case-insensitive."""
        filters = [{"name": "JOB_NAME", "values": [name]}]
        return self._pages("list_jobs", "jobSummaryList", jobQueue=queue, filters=filters)

    def jobs_of_definitions(self, queue: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield summaries of jobs of definitions of this name (`x*` matches a prefix), newest first."""
        filters = [{"name": "JOB_DEFINITION", "values": [name]}]
        return self._pages("list_jobs", "jobSummaryList", jobQueue=queue, filters=filters)

    def parts(self, job_id: str, layout: str, status: str) -> Iterator[dict[str, Any]]:
        """Yield summaries of the children or nodes of a job in this state; sends one request per 1000."""
        parent = {"array": "arrayJobId", "multi-node": "multiNodeJobId"}[layout]
        return self._pages("list_jobs", "jobSummaryList", **{parent: job_id, "jobStatus": status})

    def terminate(self, job_id: str, reason: str) -> None:
        """End a job that waits or runs; no-op if it has ended."""
        self._batch("terminate_job", jobId=job_id, reason=reason)

    def tag(self, arn: str, tags: Mapping[str, str]) -> None:
        """Add tags to a job."""
        self._batch("tag_resource", resourceArn=arn, tags=dict(tags))

    def queue(self, name: str) -> dict[str, Any] | None:
        """Return the queue; None if it does not exist."""
        queues = self._rows("describe_job_queues", "jobQueues", jobQueues=[name])
        return queues[0] if queues else None

    def front_of_queue(self, queue: str) -> list[str]:
        """Return the ids of the first 100 waiting jobs, the next one first."""
        found = self._batch("get_job_queue_snapshot", jobQueue=queue).get("frontOfQueue", {}).get("jobs", [])
        return [str(job["jobArn"]).rpartition("/")[2] for job in found]

    # ---- logs --------------------------------------------------------------------------------------------------------

    def log_events(self, group: LogGroup, stream: str, **where: Any) -> dict[str, Any]:
        """Return a page of a stream; NotFoundError: it has no lines yet; BadTokenError: the token has expired."""
        arguments = {"logGroupName": group.name, "logStreamName": stream, "startFromHead": True, **where}
        return self._call(self._logs(group.region), self._logs_bucket, "get_log_events", arguments)

    def filter_events(self, group: LogGroup, streams: Sequence[str], **where: Any) -> dict[str, Any]:
        """Return a page of the events of up to 100 streams, ordered by time, from `startTime` on.

        Raises:
            NotFoundError: one of the streams does not exist.
            DeniedError: FilterLogEvents is not allowed.
        """
        arguments = {"logGroupName": group.name, "logStreamNames": [*streams], **where}
        return self._call(self._logs(group.region), self._filter_bucket, "filter_log_events", arguments)

    def _logs(self, region: str | None) -> Any:
        clients = self.clients
        return clients.logs if region in {None, self.region} else self._extra("logs", region)

    def s3_object(self, bucket_name: str, key: str, limit: int) -> tuple[bytes, int] | None:
        """Return the first bytes of an object and its size; None if it does not exist.

        Without the permission ListBucket, DeniedError also means that the object does not exist.
        """
        try:
            found = self._call(self._extra("s3"), self._logs_bucket, "get_object", {"Bucket": bucket_name, "Key": key})
        except NotFoundError:
            return None
        with contextlib.closing(found["Body"]) as body:
            return body.read(limit), found["ContentLength"]

    # ---- images ------------------------------------------------------------------------------------------------------

    def registry_login(self, region: str) -> tuple[str, datetime]:
        """Return a login of ECR in a Region, base64 of `user:password`, and the time when it expires."""
        operation = "get_authorization_token"
        answer = self._call(self._extra("ecr", region), self._batch_bucket, operation, {})
        for row in _rows_in(operation, answer, "authorizationData"):
            if "authorizationToken" in row and "expiresAt" in row:
                return row["authorizationToken"], row["expiresAt"]
        raise _incomplete(operation, "authorizationToken")

    def _extra(self, service: str, region: str | None = None) -> Any:
        """Return a client that few connections need, made on first use."""
        clients = self.clients
        with self._lock:
            if (service, region) not in self._extras:
                self._extras[service, region] = clients.make(service, region)
            return self._extras[service, region]

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _batch(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._call(self.clients.batch, self._batch_bucket, operation, arguments)

    def _rows(self, operation: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
        return _rows_in(operation, self._batch(operation, **arguments), key)

    def _pages(self, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        token: str | None = None
        while True:
            answer = self._batch(operation, **arguments, **({"nextToken": token} if token else {}))
            yield from _rows_in(operation, answer, key)
            token = answer.get("nextToken")
            if not token:
                return

    def _repeated(self, call: Callable[[], dict[str, Any]], statuses: set[int]) -> dict[str, Any]:
        """Repeat a call that was refused with one of these statuses, because it may be accepted some seconds later."""
        retry = BusyRetry(0.2, 5.0)
        while True:
            try:
                return call()
            except LaunchError as error:
                status = getattr(error, "status", 0)
                limit_s = _THROTTLED_S if status == 429 else 10.0  # noqa: PLR2004 - Too Many Requests
                if status not in statuses or not retry.pause(limit_s):
                    raise

    def _call(self, client: Any, tokens: Any, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        tokens.take()
        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as error:
            raise _translated(operation, error) from error
        except (BotoCoreError, OSError) as error:
            raise _unreached(operation, error) from error
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        if date := headers.get("date"):
            try:
                self.ahead_s = epoch_of(date) - time.time()
            except ValueError as error:
                raise _unreached(operation, error) from error
        return answer


def _rows_in(operation: str, answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    if key not in answer:
        raise _incomplete(operation, key)
    rows: list[dict[str, Any]] = answer[key]
    return rows


def _incomplete(operation: str, key: str) -> LostAnswerError:
    """Return the error about an answer without a field; an answer that was cut off has status 200 and no fields."""
    return LostAnswerError(f"cannot {operation}: the answer of AWS has no {key!r}; try again later")


def _translated(operation: str, error: Any) -> LaunchError:
    details = error.response.get("Error", {})
    code, text = str(details.get("Code", "")), details.get("Message") or str(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    found: Any
    if code in _EXPIRED:
        found = SchedulerUnavailableError(f"cannot {operation}: the credentials have expired ({text}); renew them")
    elif code in _DENIED:
        action = "".join(part.capitalize() for part in operation.split("_"))
        found = DeniedError(f"AWS does not allow {action} ({text}); grant it, docs/aws_batch.md has the policy")
    elif code in _BUSY or status == 429:  # noqa: PLR2004 - Too Many Requests
        found, status = SchedulerUnavailableError(f"cannot {operation}: AWS throttles ({code}); try again later"), 429
    elif status >= 500:  # noqa: PLR2004 - server errors
        found = LostAnswerError(f"cannot {operation}: AWS answered {status} {code} ({text}); try again later")
    elif code in {"ResourceNotFoundException", "NoSuchKey"}:
        found = NotFoundError(f"cannot {operation}: {text}")
    elif code == "InvalidParameterException" and "nextToken" in text:
        found = BadTokenError(f"cannot {operation}: {text}")
    else:
        if "does not exist" in text and operation == "submit_job" and "efinition" in text:
            status = 404
        found = RefusedError(f"AWS refuses {operation}: {text}; correct the app or its options")
    found.status = status  # for `_repeated`
    return found  # type: ignore[no-any-return] # one of ours


def _unreached(operation: str, error: Exception) -> LaunchError:
    from botocore import exceptions as known

    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError, known.NoRegionError)):
        return SchedulerRejectedError(
            f"cannot {operation}: {error}; set aws_conn_id, or region_name and credentials, in the connection"
        )
    if isinstance(error, known.ParamValidationError):
        return RefusedError(f"AWS Batch does not accept {operation}: {error}; correct the app or its options")
    if isinstance(error, (known.EndpointConnectionError, known.ConnectTimeoutError)):
        cause = masked_text(str(error))  # endpoint_url may have a password
        return SchedulerUnavailableError(f"cannot {operation}: AWS is unreachable: {cause}; try again later")
    return LostAnswerError(f"cannot {operation}: AWS did not answer: {masked_text(str(error))}; try again later")


_MISSING_NAME = "launch-permission-check"
_GROUP = LogGroup("/aws/batch/job")


def missing_permissions(aws: Aws, queue: str | None) -> list[str]:
    """Return the actions that are not allowed, as far as this can be checked without changes."""
    asked: dict[str, Callable[[], object]] = {
        "batch:DescribeJobQueues": lambda: aws.queue(queue or _MISSING_NAME),
        "batch:DescribeJobs": lambda: aws.describe([_MISSING_NAME]),
        "batch:DescribeJobDefinitions": lambda: aws.active(definition_name(_MISSING_NAME)),
        "batch:ListJobs": lambda: [*aws.jobs_named(queue or _MISSING_NAME, _MISSING_NAME)],
        "batch:GetJobQueueSnapshot": lambda: aws.front_of_queue(queue or _MISSING_NAME),
        # AWS checks the permission first, then refuses the missing definition.
        "batch:SubmitJob": lambda: aws.submit_nothing(queue or _MISSING_NAME, f"{definition_name(_MISSING_NAME)}:1"),
        "batch:DeregisterJobDefinition": lambda: aws.deregister(definition_name(_MISSING_NAME), 1),
        "batch:TerminateJob": lambda: aws.terminate(_MISSING_NAME, "launch: permission check"),
        "logs:GetLogEvents": lambda: aws.log_events(_GROUP, _MISSING_NAME),
        "logs:FilterLogEvents": lambda: aws.filter_events(_GROUP, [_MISSING_NAME]),
    }
    return [action for action, ask in asked.items() if not _allows(ask)]


def _allows(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except DeniedError:
        return False
    except (RefusedError, NotFoundError):
        return True
    return True
