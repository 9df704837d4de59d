"""Corrections of moto where it differs from AWS: one function each, with the sentence of AWS.

The replaced names of moto are checked at import, so that another version fails here and not in a test. Sentences are
from the AWS Batch API Reference and the Amazon CloudWatch Logs API Reference, unless another source is named.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import botocore.session
from botocore.validate import ParamValidator
from moto.batch import urls
from moto.batch.exceptions import ClientException
from moto.batch.models import BatchBackend, Job, JobDefinition, JobQueue
from moto.batch.responses import BatchResponse
from moto.ecr.responses import ECRResponse
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.logs.models import LogEvent, LogStream
from moto.logs.responses import LogsResponse

from tests.engines.aws_batch.containers import now_ms
from tests.engines.aws_batch.execution import Execution, Node, execution_of, is_over
from tests.engines.aws_batch.settings import Settings

_DEFINITION_BYTES = 24 * 1024
_SUBMIT_BYTES = 30 * 1024
_NODE_GROUPS = 5
_IDS = 100
_PAGE_BYTES = 1024 * 1024
_PAGE_EVENTS = 10_000

_REPLACED: Mapping[Any, tuple[str, ...]] = {
    Job: ("run", "describe", "describe_short", "terminate"),
    JobDefinition: ("describe",),
    JobQueue: ("describe",),
    BatchBackend: (
        "register_job_definition",
        "submit_job",
        "list_jobs",
        "describe_jobs",
        "describe_job_definitions",
        "get_job_definition_by_name",
        "get_job_definition_by_name_revision",
        "logs_backend",
    ),
    BatchResponse: (
        "call_action",
        "listjobs",
        "describejobs",
        "describejobdefinitions",
        "registerjobdefinition",
        "_get_action",
        "_get_param",
    ),
    ECRResponse: ("call_action", "_get_action"),
    LogsResponse: ("call_action", "filter_log_events", "_get_param", "logs_backend"),
    LogStream: ("get_log_events", "put_log_events"),
    LogEvent: ("to_filter_dict",),
}
for _owner, _names in _REPLACED.items():
    for _name in _names:
        assert hasattr(_owner, _name), f"moto has no {_owner.__name__}.{_name} any more: see tests/engines/aws_batch"
assert "{0}/v1/listjobs" in urls.url_paths


def apply(settings: Settings) -> None:
    """Patch moto in this process."""
    jobs_run_and_end(settings)
    revisions_are_atomic()
    definitions_are_bounded()
    definitions_come_in_pages(settings)
    inactive_definitions_are_refused()
    ids_are_bounded()
    queues_have_no_nulls()
    queues_have_a_front()
    disabled_environments_start_no_job()
    lists_are_of_running_jobs_and_late(settings)
    logs_come_in_pages(settings)
    streams_are_filtered_together(settings)
    answers_are_throttled_and_checked(settings)


def jobs_run_and_end(settings: Settings) -> None:
    """Batch User Guide, "Job states": SUBMITTED, PENDING, RUNNABLE, STARTING, RUNNING, SUCCEEDED, FAILED.

    Plain moto passes most states in no time, runs one attempt, has no exit codes in DescribeJobs, no variables of
    arrays and nodes, one log stream for all nodes, and logs only after the end.
    """
    Job.run = lambda job: execution_of(job).run()
    Job.describe = lambda job: execution_of(job).document()
    Job.describe_short = lambda job: execution_of(job).summary()
    Job.terminate = lambda job, reason: execution_of(job).terminate(reason)
    Node.describe = Node.document  # type: ignore[attr-defined] # as moto calls it
    Node.describe_short = Node.summary  # type: ignore[attr-defined]


def revisions_are_atomic() -> None:
    """RegisterJobDefinition, `revision`: "The revision of the job definition", an incremental number per name.

    Plain moto looks for the last revision and adds the next one in two steps, lets a new revision inherit fields, and
    answers 500 where a job is submitted while others register.
    """
    lock = threading.Lock()

    def register(  # noqa: PLR0917 - moto calls it so
        self: Any,
        def_name: str,
        parameters: Any,
        _type: str,
        tags: Any,
        retry_strategy: Any,
        container_properties: Any,
        node_properties: Any,
        eks_properties: Any,
        timeout: Any,
        platform_capabilities: Any,
        propagate_tags: Any,
    ) -> JobDefinition:
        with lock:
            last = self.get_job_definition_by_name(def_name)
            made = JobDefinition(
                def_name,
                parameters,
                _type,
                container_properties,
                node_properties=node_properties,
                eks_properties=eks_properties,
                tags=tags or {},
                retry_strategy=retry_strategy,
                timeout=timeout,
                backend=self,
                platform_capabilities=platform_capabilities,
                propagate_tags=propagate_tags,
                revision=last.revision if last else 0,
            )
            self._job_definitions[made.arn] = made
            return made

    def by_revision(self: Any, name: str, revision: str) -> JobDefinition | None:
        # Iterate over a copy, because other threads may register.
        known = list(self._job_definitions.values())
        return next((one for one in known if one.name == name and one.revision == int(revision)), None)

    BatchBackend.register_job_definition = register
    BatchBackend.get_job_definition_by_name_revision = by_revision


def definitions_are_bounded() -> None:
    """Batch User Guide, "Service quotas": job definition size 24 KiB, SubmitJob payload 30 KiB.

    Batch User Guide, "Node groups": at most five node groups; plain moto takes any size and number.
    """
    plain = BatchResponse.registerjobdefinition

    def register(self: Any) -> str:
        if len(self.body.encode() if isinstance(self.body, str) else self.body) > _DEFINITION_BYTES:
            raise ClientException(f"Job definition is larger than {_DEFINITION_BYTES} bytes")
        nodes = self._get_param("nodeProperties") or {}
        if len(nodes.get("nodeRangeProperties", [])) > _NODE_GROUPS:
            raise ClientException(f"nodeRangeProperties has more than {_NODE_GROUPS} entries")
        retry = self._get_param("retryStrategy") or {}
        if not 1 <= retry.get("attempts", 1) <= 10 or len(retry.get("evaluateOnExit", [])) > 5:
            raise ClientException("retryStrategy: attempts must be 1 to 10, evaluateOnExit has at most 5 entries")
        if (self._get_param("timeout") or {}).get("attemptDurationSeconds", 60) < 60:
            raise ClientException("attemptDurationSeconds must be at least 60")
        for one in (self._get_param("containerProperties") or {}).get("environment", []):
            if one["name"].startswith("AWS_BATCH"):
                raise ClientException("Environment variables cannot start with AWS_BATCH")
        return plain(self)

    BatchResponse.registerjobdefinition = register


def definitions_come_in_pages(settings: Settings) -> None:
    """DescribeJobDefinitions: "maxResults ... If this parameter isn't used, ... up to 100 results and a nextToken".

    Plain moto gives all at once, and no node properties; `jobDefinitions` takes "${JobDefinitionName}:${Revision}".
    """
    plain = JobDefinition.describe

    def describe(self: Any) -> dict[str, Any]:
        found = {name: value for name, value in plain(self).items() if value is not None}
        if self.node_properties:
            found["nodeProperties"] = self.node_properties
        return found

    def describe_all(self: Any) -> str:
        known = list(self.batch_backend._job_definitions.values())
        if names := self._get_param("jobDefinitions"):
            if len(names) > _IDS:
                raise ClientException(f"jobDefinitions has more than {_IDS} entries")
            known = [one for one in known if one.arn in names or f"{one.name}:{one.revision}" in names]
        if name := self._get_param("jobDefinitionName"):
            known = [one for one in known if one.name == name]
        if status := self._get_param("status"):
            known = [one for one in known if one.status == status]
        page, token = _page(self, known, 100, settings)
        return json.dumps({"jobDefinitions": [one.describe() for one in page], **token})

    JobDefinition.describe = describe
    BatchResponse.describejobdefinitions = describe_all


def inactive_definitions_are_refused() -> None:
    """DeregisterJobDefinition: a deregistered definition is INACTIVE; "you can't submit jobs with it".

    Plain moto runs it.
    """
    plain = BatchBackend.submit_job
    plain_response = BatchResponse.submitjob

    def submit(self: Any, job_name: str, job_def_id: str, *args: Any, **kwargs: Any) -> Any:
        definition = self.get_job_definition(job_def_id)
        if definition is not None and definition.status != "ACTIVE":
            raise ClientException(f"JobDefinition {job_def_id} is not ACTIVE")
        return plain(self, job_name, job_def_id, *args, **kwargs)

    def respond(self: Any) -> str:
        if len(self.body) > _SUBMIT_BYTES:
            raise ClientException(f"SubmitJob payload is larger than {_SUBMIT_BYTES} bytes")
        return plain_response(self)

    BatchBackend.submit_job = submit
    BatchResponse.submitjob = respond


def ids_are_bounded() -> None:
    """DescribeJobs, `jobs`: "A list of up to 100 job IDs"; plain moto takes any number, and goes through all jobs."""

    def describe_jobs(self: Any, jobs: list[str] | None) -> list[dict[str, Any]]:
        if len(jobs or []) > _IDS:
            raise ClientException(f"jobs has more than {_IDS} entries")
        ids = [job.rpartition("/")[2] for job in jobs or []]
        return [self._jobs[job_id].describe() for job_id in ids if job_id in self._jobs]

    BatchBackend.describe_jobs = describe_jobs


def queues_have_no_nulls() -> None:
    """DescribeJobQueues, `schedulingPolicyArn`: a string, and absent without a policy; plain moto answers null."""
    plain = JobQueue.describe

    def describe(self: Any) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if value is not None}

    JobQueue.describe = describe


def queues_have_a_front() -> None:
    """GetJobQueueSnapshot: "the first 100 RUNNABLE jobs"; plain moto does not know the operation."""

    def snapshot(self: Any) -> str:
        queue = self.batch_backend.get_job_queue(self._get_param("jobQueue") or "")
        if queue is None:
            raise ClientException(f"Job queue {self._get_param('jobQueue')} does not exist")
        waiting = [execution_of(job) for job in queue.jobs]
        rows = [
            {"jobArn": one.job.arn, "earliestTimeAtPosition": one.created}
            for one in waiting
            if one.status == "RUNNABLE"
        ]
        return json.dumps({"frontOfQueue": {"jobs": rows[:100], "lastUpdatedAt": now_ms()}})

    BatchResponse.getjobqueuesnapshot = snapshot  # type: ignore[attr-defined] # it has none
    urls.url_paths["{0}/v1/getjobqueuesnapshot"] = BatchResponse.dispatch


def disabled_environments_start_no_job() -> None:
    """UpdateComputeEnvironment, `state`: DISABLED, and Batch "doesn't attempt to place jobs within the environment".

    Plain moto runs them.
    """

    def may_start(self: Execution) -> bool:
        return any(one.state == "ENABLED" for one in self.job.job_queue.environments)

    Execution.may_start = may_start  # type: ignore[method-assign]


def lists_are_of_running_jobs_and_late(settings: Settings) -> None:
    """ListJobs: "If you don't specify a status, only RUNNING jobs are returned"; with a filter, jobs of any status.

    JOB_NAME "is case insensitive"; a value that ends with an asterisk "matches any job name that begins with" it;
    JOB_DEFINITION is case sensitive and works alike on names. Filters don't find children. Pages have up to 1000 jobs,
    100 with a filter. That a new job is missing for some time no page says; plain moto shows it at once.
    """

    def list_jobs(self: Any) -> str:
        backend = self.batch_backend
        filters, status = self._get_param("filters"), self._get_param("jobStatus")
        most = 1000
        if parent := self._get_param("arrayJobId") or self._get_param("multiNodeJobId"):
            found = backend._jobs.get(parent)
            execution = execution_of(found) if found is not None else None
            rows: list[Any] = [*execution.children, *execution.nodes] if execution else []
        else:
            queue = backend.get_job_queue(self._get_param("jobQueue") or "")
            if queue is None:
                raise ClientException(f"Job queue {self._get_param('jobQueue')} does not exist")
            rows = [execution_of(job) for job in queue.jobs if ":" not in job.job_id]
            seen_ms = now_ms() - settings.list_lag_s * 1000
            rows = sorted((row for row in rows if row.created <= seen_ms), key=lambda row: -row.created)
        if filters:
            most = 100
            rows = [row for row in rows if all(_matches(row.job, one) for one in filters)]
        elif status or not parent:
            rows = [row for row in rows if _status(row) == (status or "RUNNING")]
        elif not status:
            rows = [row for row in rows if row.status == "RUNNING"]
        page, token = _page(self, rows, most, settings)
        return json.dumps({"jobSummaryList": [row.summary() for row in page], **token})

    BatchResponse.listjobs = list_jobs


def _status(row: Execution | Node) -> str:
    if isinstance(row, Execution):
        row.summary()  # lets the parent of an array follow
    return row.status


def _matches(job: Any, one: Mapping[str, Any]) -> bool:
    name = {"JOB_NAME": job.job_name.lower(), "JOB_DEFINITION": job.job_definition.name}[one["name"]]
    for value in one["values"]:
        wanted = value.lower() if one["name"] == "JOB_NAME" else value
        if name == wanted or (wanted.endswith("*") and name.startswith(wanted[:-1])):
            return True
    return False


def _page(response: Any, rows: list[Any], most: int, settings: Settings) -> tuple[list[Any], dict[str, str]]:
    # A token names the next row, because new rows are inserted before it.
    size = min(int(response._get_param("maxResults") or most), most, settings.page or most)
    begin = len(rows) - int(token) if (token := response._get_param("nextToken")) else 0
    page = rows[begin : begin + size]
    left = len(rows) - begin - len(page)
    return page, {"nextToken": str(left)} if left > 0 else {}


def logs_come_in_pages(settings: Settings) -> None:
    """GetLogEvents: pages of "up to 1 MB ... up to 10,000 log events"; "The token expires after 24 hours".

    A token belongs to the parameters of its request. Plain moto has pages of any size, sorts all events at each call,
    and its stamps are not bounded by what was ingested before, as they mostly are with one writer.
    """

    def put(self: Any, log_events: list[dict[str, Any]]) -> str:
        newest = self.events[-1].timestamp if self.events else 0
        # The two copiers of Docker invert stamps by some milliseconds. Within a batch the driver sorts; across two
        # batches it happens too rarely to be waited for in tests, so it is omitted, unless a test requests it.
        if settings.late_events:
            before, self.events = self.events, []
            answer: str = plain_put(self, log_events)
            self.events = sorted([*before, *self.events], key=lambda event: event.timestamp)
            return answer
        for event in log_events:
            newest = event["timestamp"] = max(newest, event["timestamp"])
        return plain_put(self, log_events)

    def get(self: Any, start_time: Any, end_time: Any, limit: Any, next_token: Any, start_from_head: Any) -> Any:
        events = self.events
        first = bisect.bisect_left(events, start_time, key=lambda event: event.timestamp) if start_time else 0
        most = min(limit or _PAGE_EVENTS, _PAGE_EVENTS, settings.page or _PAGE_EVENTS)
        if next_token:
            direction, epoch, begin = _parts(next_token)
            if direction != "f" or epoch != settings.token_epoch:
                raise InvalidParameterException("The specified nextToken is invalid.")
            begin = max(begin, first)
        else:
            begin = first if start_from_head else max(first, len(events) - most)
        size, end = 0, begin
        while end < len(events) and end - begin < most and (size == 0 or size + len(events[end].message) < _PAGE_BYTES):
            size += len(events[end].message) + 26
            end += 1
        page = [event.to_response_dict() for event in events[begin:end]]
        return page, f"b/{settings.token_epoch}/{begin}", f"f/{settings.token_epoch}/{end}"

    plain_put = LogStream.put_log_events
    LogStream.put_log_events = put
    LogStream.get_log_events = get


def streams_are_filtered_together(settings: Settings) -> None:
    """FilterLogEvents: "sorted by event timestamp", "up to 1 MB (up to 10,000 log events)", 100 `logStreamNames`.

    "ResourceNotFoundException: The specified resource does not exist", for a stream too. Plain moto leaves out streams
    that are not there, and has pages of any size.
    """

    def respond(self: Any) -> str:
        names, start = self._get_param("logStreamNames") or [], self._get_param("startTime") or 0
        group = self.logs_backend.groups[self._get_param("logGroupName")]
        if len(names) > _IDS:
            raise InvalidParameterException(f"logStreamNames has more than {_IDS} entries")
        if missing := [name for name in names if name not in group.streams]:
            raise ResourceNotFoundException(f"The specified log stream does not exist: {missing[0]}")
        rows = []
        for name in names or group.streams:
            events = [*group.streams[name].events]
            first = bisect.bisect_left(events, start, key=lambda event: event.timestamp)
            rows += [(event.timestamp, event.event_id, name, event) for event in events[first:]]
        rows.sort(key=lambda row: row[:2])
        begin = 0
        if token := self._get_param("nextToken"):
            epoch, at, event_id = (int(part) for part in token.split("/"))
            if epoch != settings.token_epoch:
                raise InvalidParameterException("The specified nextToken is invalid.")
            begin = bisect.bisect_left(rows, (at, event_id), key=lambda row: row[:2])
        size, page = 0, []
        for _, _, name, event in rows[begin : begin + min(settings.page or _PAGE_EVENTS, _PAGE_EVENTS)]:
            size += len(event.message) + 26
            if page and size > _PAGE_BYTES:
                break
            page.append({**event.to_filter_dict(), "logStreamName": name})
        left = rows[begin + len(page) : begin + len(page) + 1]
        following = {"nextToken": f"{settings.token_epoch}/{left[0][0]}/{left[0][1]}"} if left else {}
        return json.dumps({"events": page, "searchedLogStreams": [], **following})

    LogsResponse.filter_log_events = respond


def _parts(token: str) -> tuple[str, int, int]:
    try:
        direction, epoch, at = token.split("/")
        return direction, int(epoch), int(at)
    except ValueError:
        raise InvalidParameterException("The specified nextToken is invalid.") from None


def answers_are_throttled_and_checked(settings: Settings) -> None:
    """Batch answers 429 TooManyRequestsException, CloudWatch 400 ThrottlingException, above a rate per operation.

    And no answer may have a member that botocore's service model does not have, or lack one that it demands.
    """
    session = botocore.session.get_session()
    batch = session.get_service_model("batch")
    actions = {operation.lower(): batch.operation_model(operation) for operation in batch.operation_names}
    validator = ParamValidator()
    plain_batch, plain_logs, plain_ecr = BatchResponse.call_action, LogsResponse.call_action, ECRResponse.call_action

    def call_batch(self: Any) -> Any:
        action = self._get_action()
        if not settings.admit(action):
            body = json.dumps({"message": "Too Many Requests", "__type": "TooManyRequestsException"})
            return 429, {"x-amzn-errortype": "TooManyRequestsException"}, body
        status, headers, body = _as_triple(plain_batch(self))
        model = actions.get(action)
        if status == 200 and body and model is not None and model.output_shape is not None:
            report = validator.validate(json.loads(body), model.output_shape)
            # The model demands `startedAt` of every job; one that waits has not started.
            wrong = [line for line in report.generate_report().splitlines() if '"startedAt"' not in line]
            if wrong:
                return 500, {"x-amzn-errortype": "ServerException"}, json.dumps({"message": "; ".join(wrong)})
        return status, headers, body

    def call_logs(self: Any) -> Any:
        action = self._get_action()
        if not settings.admit(action):
            return 400, {}, json.dumps({"__type": "ThrottlingException", "message": "Rate exceeded"})
        return plain_logs(self)

    def call_ecr(self: Any) -> Any:
        settings.admit(self._get_action())
        return plain_ecr(self)

    BatchResponse.call_action = call_batch
    LogsResponse.call_action = call_logs
    ECRResponse.call_action = call_ecr


def _as_triple(answer: Any) -> tuple[int, Any, Any]:
    status, headers, body = answer
    return status, headers, body


Put = Callable[[str, list[dict[str, Any]]], None]
_ = is_over
