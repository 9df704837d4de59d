"""The Jobs and pods of an app, parsed from the server's documents, without I/O."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.kubernetes.containers import (
    MAX_MESSAGE,
    SideContainer,
    epoch,
    side_containers,
    wait_among,
)
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER, MESSAGE_BYTES
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE, AppRecord, DamagedError, Plan, plan_in
from airflow_provider_launch.schedulers.kubernetes.result_container import LIMIT_BYTES, NAME
from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.failures import parse_json
from airflow_provider_launch.specs.roles import MAX_REPLICAS
from airflow_provider_launch.util.untrusted import UntrustedError, parse_int

log = logging.getLogger(__name__)

_MOST = 10**9

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
_START_CODES = {"executable file not found": 127, "no such file or directory": 127, "permission denied": 126}
"""Why a program could not be started, and a shell's exit code for it."""
_DISRUPTION = re.compile(r"has condition (?:DisruptionTarget|TerminationTarget) ")


@dataclass(frozen=True)
class Condition:
    """A condition that is true."""

    reason: str
    message: str
    time: float


@dataclass(frozen=True)
class Job:
    """The Job of one role in one attempt of the app."""

    name: str
    uid: str
    version: str
    role: str
    """As it appears in names."""
    attempt: int
    ended: str | None
    """Why the launcher ends it."""
    suspended: bool
    parallelism: int
    active: int
    ready: int
    ran: bool
    """Whether a pod of it is or was running."""
    completed: frozenset[int]
    failed: frozenset[int]
    """Replicas without another retry."""
    conditions: Mapping[str, Condition]
    started: float | None
    completions: int
    retries: int
    """Retries of each replica."""
    deadline: int | None
    """Seconds from its start after which Kubernetes ends it."""
    notes: Mapping[str, str]
    template: Mapping[str, Any]
    """Of its pods."""
    deleting: bool
    expires: bool
    """Whether Kubernetes removes it some time after its end."""
    preemptions: int = 0
    """How often its queue has evicted it, as far as that was counted."""

    @property
    def complete(self) -> bool:
        """Whether all its replicas have succeeded."""
        return "Complete" in self.conditions and not self.discarded

    @property
    def finished(self) -> bool:
        """Whether no pod of it runs or will run."""
        return "Complete" in self.conditions or "Failed" in self.conditions or (self.suspended and self.discarded)

    @property
    def finished_at(self) -> float | None:
        """When it ended, by the server's clock; None if it has not ended."""
        ends = (self.conditions.get(name) for name in ("Complete", "Failed"))
        return next((end.time for end in ends if end is not None), None)

    @property
    def discarded(self) -> bool:
        """Whether it was ended before it started."""
        return self.ended is not None and self.parallelism == 0

    @property
    def held(self) -> bool:
        """Whether a queue or a user holds it back, before its start or after a stop."""
        return self.suspended and self.ended is None and not self.finished

    @property
    def runs(self) -> bool:
        """Whether a pod of it runs now, or a replica has succeeded."""
        return bool(self.ready or self.completed)

    @property
    def disrupted(self) -> bool:
        """Whether it has failed because a pod was preempted or evicted, if that fails the Job."""
        found = self.failing
        return found is not None and found.reason == "PodFailurePolicy" and bool(_DISRUPTION.search(found.message))

    @property
    def failing(self) -> Condition | None:
        """Why it fails or has failed; None if it does not."""
        if found := self.conditions.get("Failed") or self.conditions.get("FailureTarget"):
            return found
        return Condition("FailedIndexes", "", 0.0) if self.failed else None

    @property
    def steady(self) -> bool:
        """Whether each replica runs or has succeeded, so that its pods need not be read."""
        return self.ready == self.active and self.active + len(self.completed) == self.completions


@dataclass(frozen=True)
class Pod:
    """One attempt of one replica."""

    name: str
    uid: str
    role: str
    replica: int
    app_attempt: int
    attempt: int
    """The attempt of the replica within the app's attempt, from 0; disruptions are not counted."""
    disruptions: int
    phase: str
    reason: str
    message: str
    """Why it waits or was ended, as the server reports it."""
    node: str
    image_id: str
    """Digest of its image, after the pull."""
    created: float
    deadline: int | None
    has_started: bool
    """Whether its program was started, so that it has a log."""
    running: bool
    exit_code: int | None
    ended_by: str
    """The runtime's reason for the end of the program."""
    end_message: str
    """The text that the program wrote to its message file, or why it could not be started."""
    started: float | None
    finished: float | None
    deleting: bool
    deletion_asked: float | None
    """When its deletion was requested."""
    disruption: str
    others: tuple[SideContainer, ...] = ()
    """Its other containers, init containers first."""
    scheduler: str = ""
    """The scheduler that has to choose its node."""
    outlived: bool = False
    """Whether the launcher stopped it because sidecars still ran after its program."""
    in_queue: bool = False
    """Whether Kueue decides, or has decided, when it starts."""

    @property
    def was_stopped_outside(self) -> bool:
        """Whether its deletion was requested before its program ended."""
        asked, finished = self.deletion_asked, self.finished
        return asked is not None and finished is not None and asked <= finished

    @property
    def digest(self) -> str:
        """The image that ran, as `name@sha256:...`; empty if its node has no digest of it."""
        image = self.image_id.removeprefix("docker-pullable://")
        # An image that was loaded into a node has only an id, which other nodes cannot pull.
        return image if "@sha256:" in image else ""

    @property
    def number(self) -> int:
        """Number of earlier attempts of the replica, including disrupted ones."""
        return self.app_attempt + self.attempt + self.disruptions

    @property
    def kept_by(self) -> tuple[str, ...]:
        """The containers that keep the pod running after its program has ended."""
        if self.exit_code is None or self.over:
            return ()
        return tuple(one.name for one in self.others if one.outlives)

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def stopped(self) -> bool:
        """Whether the launcher stopped it."""
        return self.phase == "Failed" and self.reason == "DeadlineExceeded" and not self.outlived

    @property
    def order(self) -> tuple[int, int, int, float, str]:
        """Sort key of the attempts of a replica."""
        return self.app_attempt, self.attempt, self.disruptions, self.created, self.name


@dataclass
class App:
    """All that was read of one app."""

    app_id: str
    jobs: dict[tuple[str, int], Job] = field(default_factory=dict)
    """(role, attempt of the app) to Job."""
    record: AppRecord | None = None
    damage: str = ""
    """Why one of its Jobs cannot be read; empty if all can."""
    disrupted: frozenset[str] = frozenset()
    """Slugs of the roles with a disrupted pod in the current attempt, as far as its pods were read."""

    @property
    def attempt(self) -> int:
        """The current attempt of the app."""
        return self.record.attempt if self.record else max((job.attempt for job in self.jobs.values()), default=0)

    @property
    def versions(self) -> tuple[str, ...]:
        """A value that changes with each change of its Jobs."""
        return tuple(sorted(f"{job.uid}/{job.version}" for job in self.jobs.values()))

    def plan(self) -> Plan | None:
        """Return its plan; None if no Job has it. Raises DamagedError if one of its Jobs is malformed."""
        if self.damage:
            raise DamagedError(self.damage)
        return next(
            (plan_in(job.notes[Annotation.PLAN]) for job in self.jobs.values() if Annotation.PLAN in job.notes), None
        )


def newest_attempts(pods: Iterable[Pod], attempt: int) -> dict[tuple[str, int], Pod]:
    """Return the newest pod of each replica in an attempt of the app, by role's slug and number."""
    found: dict[tuple[str, int], Pod] = {}
    for pod in sorted((pod for pod in pods if pod.app_attempt == attempt), key=lambda pod: pod.order):
        found[pod.role, pod.replica] = pod
    return found


def apps_in(documents: Iterable[Mapping[str, Any]]) -> dict[str, App]:
    """Return the apps among the items of a list of Jobs."""
    apps: dict[str, App] = {}
    for document in documents:
        labels = document["metadata"].get("labels") or {}
        if app_id := labels.get(Label.APP_ID):
            app = apps.setdefault(app_id, App(app_id))
            try:
                job = job_of(document)
                if text := job.notes.get(Annotation.PLAN):
                    plan_in(text)
            except UNREADABLE as error:
                why = f"{type(error).__name__}: {error}"[:300]
                app.damage = f"a Job of app {app_id!r} is damaged ({why}); restore it, or delete the app"
            else:
                app.jobs[job.role, job.attempt] = job
    return apps


def pods_in(documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Pod]]:
    """Yield the pods of a list, each with the id of its app; malformed pods are left out with a warning."""
    for document in documents:
        try:
            yield document["metadata"]["labels"].get(Label.APP_ID, ""), pod_of(document)
        except UNREADABLE as error:
            log.warning("a pod is ignored, because it cannot be read (%s: %s)", type(error).__name__, error)


def job_of(document: Mapping[str, Any]) -> Job:
    """Parse the document of a Job."""
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    notes = metadata.get("annotations") or {}
    labels = metadata.get("labels") or {}
    uncounted = status.get("uncountedTerminatedPods") or {}
    return Job(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        role=labels.get(Label.ROLE, ""),
        attempt=parse_int(labels.get(Label.ATTEMPT, "0"), 0, _MOST),
        ended=notes.get(Annotation.ENDED),
        suspended=bool(spec.get("suspend")),
        parallelism=spec.get("parallelism", 1),
        active=status.get("active", 0),
        ready=status.get("ready", 0),
        ran=bool(
            status.get("ready") or status.get("succeeded") or status.get("failed") or any(map(len, uncounted.values()))
        ),
        completed=_indexes(status.get("completedIndexes")),
        failed=_indexes(status.get("failedIndexes")),
        conditions={
            item["type"]: Condition(
                item.get("reason", ""),
                item.get("message", "")[:MAX_MESSAGE],
                epoch(item.get("lastTransitionTime")) or 0.0,
            )
            for item in status.get("conditions") or []
            # A resumed Job keeps the condition `Suspended`, as false.
            if item["status"] == "True"
        },
        started=epoch(status.get("startTime")),
        completions=spec.get("completions", 1),
        retries=spec.get("backoffLimitPerIndex") or 0,
        deadline=spec.get("activeDeadlineSeconds"),
        notes=notes,
        template=spec.get("template") or {},
        deleting="deletionTimestamp" in metadata,
        expires=spec.get("ttlSecondsAfterFinished") is not None,
        preemptions=parse_int(notes.get(Annotation.PREEMPTIONS, "0"), 0, _MOST),
    )


def pod_of(document: Mapping[str, Any]) -> Pod:
    """Parse the document of a pod."""
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or []}
    every = status.get("containerStatuses") or []
    ours: Mapping[str, Any] = next((item for item in every if item["name"] == CONTAINER), {})
    state = ours.get("state") or {}
    ended, waiting, running = (state.get(name) for name in ("terminated", "waiting", "running"))
    # Kueue sets the second on a pod of a group that has lost its quota.
    disrupted = (conditions.get(name, {}) for name in ("DisruptionTarget", "TerminationTarget"))
    disruption = next((item.get("reason", "") for item in disrupted if item.get("status") == "True"), "")
    reason, message = status.get("reason", ""), status.get("message", "")
    if waiting and not reason:
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
    unscheduled = conditions.get("PodScheduled", {})
    if not reason and unscheduled.get("status") == "False":
        reason, message = unscheduled.get("reason", ""), unscheduled.get("message", "")
    outlived = Annotation.OUTLIVED in notes
    if outlived and reason == "DeadlineExceeded":
        reason = message = ""
    terminated = ended or {}
    others = side_containers(spec, status, CONTAINER)
    if running is None and ended is None and status.get("phase") == "Pending":
        waits, why = wait_among(others)
        reason, message = (waits, why) if waits else (reason, message)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(Label.ROLE, ""),
        replica=parse_int(labels.get(Label.INDEX, "0"), 0, _MOST),
        app_attempt=parse_int(labels.get(Label.ATTEMPT, "0"), 0, _MOST),
        attempt=parse_int(notes.get(Annotation.FAILURES, "0"), 0, _MOST),
        disruptions=parse_int(notes.get(Annotation.IGNORED, "0"), 0, _MOST),
        phase=status.get("phase", ""),
        reason=reason,
        message=message[:MAX_MESSAGE],
        node=spec.get("nodeName", ""),
        image_id=sys.intern(ours.get("imageID", "")),
        created=epoch(metadata.get("creationTimestamp")) or 0.0,
        deadline=spec.get("activeDeadlineSeconds"),
        has_started=running is not None or ended is not None,
        running=running is not None,
        exit_code=_exit_code(terminated) if ended else None,
        ended_by=terminated.get("reason", ""),
        end_message=terminated.get("message", ""),
        started=epoch(terminated.get("startedAt") or (running or {}).get("startedAt")),
        finished=epoch(terminated.get("finishedAt")),
        deleting="deletionTimestamp" in metadata,
        deletion_asked=_asked_at(metadata),
        disruption=disruption,
        others=others,
        scheduler=spec.get("schedulerName", ""),
        outlived=outlived,
        in_queue=Label.HELD in labels,
    )


def _asked_at(metadata: Mapping[str, Any]) -> float | None:
    until = epoch(metadata.get("deletionTimestamp"))
    return None if until is None else until - (metadata.get("deletionGracePeriodSeconds") or 0)


def _indexes(text: str | None) -> frozenset[int]:
    """Return the numbers in `1,3-5`; raises UntrustedError if there are more than an app has replicas."""
    found: set[int] = set()
    left = MAX_REPLICAS
    for part in (text or "").split(",", MAX_REPLICAS + 1):
        first, _, last = part.partition("-")
        if first:
            numbers = range(parse_int(first, 0, MAX_REPLICAS), parse_int(last or first, 0, MAX_REPLICAS) + 1)
            # Counted with repetitions, each of which costs time.
            left -= len(numbers)
            if left < 0:
                raise UntrustedError(f"a Job has more than {MAX_REPLICAS} completed or failed indexes")
            found.update(numbers)
    return frozenset(found)


def _exit_code(ended: Mapping[str, Any]) -> int:
    """Return the exit code; if the program could not be started, a shell's code instead of the runtime's 128."""
    code: int = ended["exitCode"]
    if ended.get("reason") != "StartError":
        return code
    # The runtime quotes the entrypoint, and puts the reason last.
    message = _QUOTED.sub(" ", ended.get("message", "")[:MAX_MESSAGE]).lower()
    last, found = max((message.rfind(words), exit_code) for words, exit_code in _START_CODES.items())
    return found if last >= 0 else code


def result_in(pod: Pod | None) -> JsonValue:
    """Return the result document that the pod of a replica wrote; None if it wrote none, or an error in its place."""
    if pod is None or pod.exit_code is None or not pod.end_message:
        return None
    data = pod.end_message.encode()
    if pod.exit_code != 0:
        # The message may also be a text of the runtime, or the error of the program, which has a `message`.
        document = parse_json(pod.end_message)
        if document is None or (isinstance(document, dict) and "message" in document):
            return None
    containers = 1 + len(pod.others)
    limit = min(RESULT_LIMIT_BYTES, MESSAGE_BYTES // containers)
    # Kubernetes cuts a larger document at the limit.
    if len(data) >= limit:
        of = f"each of the {containers} containers" if containers > 1 else "the container"
        raise InvalidAppError(
            f"the result was cut: Kubernetes keeps {limit} bytes from {of} of a pod; use option result_image, such as "
            f"'busybox:1', which returns up to {LIMIT_BYTES} bytes, or write it to a volume or an object store, and "
            f"its address to LAUNCH_RESULT_PATH"
        )
    return parse_result(data, len(data))


def result_container_of(pod: Pod | None) -> SideContainer | None:
    """Return the container that returns the result of a pod whose program has ended; None if there is none."""
    if pod is None or pod.exit_code is None:
        return None
    return next((one for one in pod.others if one.name == NAME and one.is_native), None)


def is_result_awaited(pod: Pod) -> bool:
    """Return whether the container that returns the result has still to print it."""
    container = result_container_of(pod)
    return container is not None and container.exit_code is None and not pod.over


def result_from(pod: Pod, data: bytes, size: int) -> JsonValue:
    """Return the result document that the container of the pod has printed."""
    if pod.exit_code != 0 and size == len(data) and parse_json(data.decode("utf-8", "replace")) is None:
        return None  # the program may have been killed while it wrote
    return parse_result(data, size, LIMIT_BYTES)
