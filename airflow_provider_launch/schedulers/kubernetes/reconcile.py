"""Decides the state and the next step of an app, without I/O.

Several observers may poll an app at once, and each may stall between a read and a change. The annotations of the record
are authoritative: the current attempt, its Jobs, and whether the app was cancelled. Each change of the record names the
values that it replaces, so the slower of two observers fails and polls again. A Job is created suspended, and released
only after the record names it, and only in the version that was read then. A Job is marked and ended in one change,
which is final.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import services_message
from airflow_provider_launch.schedulers.kubernetes.objects import App, Job, Pod, newest_attempts
from airflow_provider_launch.schedulers.kubernetes.record import Plan, PlannedRole
from airflow_provider_launch.schedulers.retry import Decision, Phase, ReplicaAttempt, RetryAction, decide
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal

OWN, PEER, RESTART, TIME, CANCEL, STRAY = "failed", "peer", "restart", "time limit", "cancel", "stray"
LEADER, SIDECARS = "leader", "sidecars"
"""Why a Job is ended: its own failure, the failure of another role, another attempt, a limit, or a cancel; it is not in
the record; the leader, or all roles that are not services, have succeeded; or all its programs have succeeded, and only
sidecars run."""


@dataclass
class Assessment:
    """The state of an app, and the next step of an observer."""

    state: AppState
    msg: str = NONE
    phases: dict[str, Phase] = field(default_factory=dict)
    """Phases of the Jobs, by the role's slug."""
    unclear: bool = False
    """Whether the record must be read first."""
    end: list[tuple[Job, str]] = field(default_factory=list)
    """Jobs to end, and why; includes Jobs that are being ended."""
    restart: str | None = None
    """The slug of the role whose failure restarts the app."""
    disrupted: bool = False
    """Whether that failure is a disruption, which is not charged."""
    settle_failure: bool = False
    """Record that no attempt follows."""
    create: bool = False
    """Create the Jobs of the current attempt and record their uids."""
    release: list[Job] | None = None
    """Jobs to release; then record the release of the attempt, even if the list is empty."""
    expire: list[Job] = field(default_factory=list)
    """Ended Jobs whose TTL starts now, because the app has ended or is being cancelled."""
    settle_end: bool = False
    """Record how the app has ended."""

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do."""
        steps = self.end or self.restart or self.settle_failure or self.create or self.expire or self.settle_end
        return not steps and self.release is None


def assess(app: App, plan: Plan, now: float, *, submitted: bool = False) -> Assessment:
    """Return the assessment of an app, whose record, if it is there, was read after its Jobs.

    With `submitted` the caller is submitting the app, so that its first attempt may start.
    """
    assessment = _Assessor(app, plan, now, submitted=submitted).assessment()
    if plan.ttl_s is None or (app.record and app.record.deleting):
        return assessment
    # An app that lost a Job is over, too; and after a cancel there may be no later poll.
    over = is_terminal(assessment.state) or (assessment.state is AppState.UNKNOWN and not assessment.unclear)
    if (over and assessment.settled) or any(why == CANCEL for _, why in assessment.end):
        assessment.expire = [job for job in app.jobs.values() if job.finished_at is not None and not job.expires]
    assessment.settle_end = app.record is not None and app.record.result is None and is_terminal(assessment.state)
    return assessment


class _Assessor:
    def __init__(self, app: App, plan: Plan, now: float, *, submitted: bool) -> None:
        self.app = app
        self.record = app.record
        self.plan = plan
        self.now = now
        self.submitted = submitted
        self.number = app.attempt
        self.committed = app.record.committed if app.record else None
        current = {role.slug: app.jobs.get((role.slug, self.number)) for role in plan.roles}
        self.members = {
            slug: job
            for slug, job in current.items()
            if job is not None and (self.committed is None or self.committed.get(slug) == job.uid)
        }
        self.strays = [job for slug, job in current.items() if job is not None and slug not in self.members]
        self.services = {role.slug for role in plan.roles if role.policy.is_service}
        self.older = [job for (_, attempt), job in app.jobs.items() if attempt < self.number]

    def assessment(self) -> Assessment:  # noqa: PLR0911 - a table
        if self.record is None:
            return self._without_record()
        phases = {slug: self._phase(job) for slug, job in self.members.items()}
        decision = self._decision(phases)
        live = [job for job in self.app.jobs.values() if not job.finished]
        if self.record.result in {AppState.SUCCEEDED, AppState.CANCELLED}:
            of_success = self._services_text(is_over=True) if self.services else NONE
            msg = "cancelled" if self.record.result is AppState.CANCELLED else of_success
            return Assessment(self.record.result, msg, phases)
        if self.record.result is AppState.FAILED or decision.next is RetryAction.FAIL:
            return self._failing(phases, decision, live)
        if decision.next is RetryAction.SUCCEED:
            end = [(job, LEADER) for job in live if self.plan.decides(job.role) or job.role in self.services]
            msg = self._services_text(is_over=not end) if self.services else NONE
            return Assessment(AppState.RUNNING if end else AppState.SUCCEEDED, msg, phases=phases, end=end)
        if self.record.cancelled:
            return self._cancelled(phases, live)
        if decision.next is RetryAction.RESTART_APP:
            assert decision.cause is not None
            disrupted = self._disrupted(phases) is not None
            return Assessment(AppState.RUNNING, NONE, phases, restart=decision.cause.role, disrupted=disrupted)
        return self._continuing(phases)

    def _without_record(self) -> Assessment:
        """Assess an app that runs normally or has succeeded, as most do; other apps need the record."""
        jobs = list(self.members.values())
        if len(jobs) == len(self.plan.roles):
            if all(job.complete and job.ended is None and not job.deleting for job in jobs):
                return Assessment(AppState.SUCCEEDED, phases=dict.fromkeys(self.members, Phase.SUCCEEDED))
            quiet = not any(
                self._has_decided(job) or job.suspended or job.ended or job.failing or job.deleting for job in jobs
            )
            waited_for = [job for job in jobs if job.role not in self.services]
            quiet = quiet and not (self.services and all(job.complete for job in waited_for))
            if quiet and not self._late() and all(job.finished for job in self.older):
                phases = {slug: self._phase(job) for slug, job in self.members.items()}
                return Assessment(self._state_of_live(), phases=phases)
        return Assessment(AppState.UNKNOWN, unclear=True)

    # ---- what is -----------------------------------------------------------------------------------------------------

    def _phase(self, job: Job) -> Phase:
        if job.complete or (job.ended == SIDECARS and job.finished):
            return Phase.SUCCEEDED
        if job.ended not in {None, OWN}:
            return Phase.STOPPED if job.finished else Phase.RUNNING
        if self.plan.decides(job.role) and 0 in job.completed and not job.finished:
            return Phase.RUNNING  # the leader has succeeded: replicas killed after that have not failed
        if job.failing:
            return Phase.FAILED
        return Phase.WAITING if job.suspended else Phase.RUNNING

    def _has_decided(self, job: Job) -> bool:
        return self.plan.decides(job.role) and (job.complete or (job.ended == SIDECARS and job.finished))

    def _decision(self, phases: dict[str, Phase]) -> Decision:
        if any(self._has_decided(job) for job in self.members.values()):
            return Decision(RetryAction.SUCCEED)
        policies = {role.slug: role.policy for role in self.plan.roles}
        jobs = []
        for slug, phase in phases.items():
            failing = self.members[slug].failing
            # Kubernetes counts the retries of replicas.
            used = policies[slug].max_retries if policies[slug].policy == "REPLICA" else 0
            jobs.append(ReplicaAttempt(slug, 0, used, phase, failing.time if failing else 0.0))
        assert self.record is not None
        decision = decide(policies, self.number - self.record.disrupted, jobs)
        if decision.next in {RetryAction.FAIL, RetryAction.RESTART_APP} and (found := self._disrupted(phases)):
            decision = Decision(RetryAction.RESTART_APP, cause=found)
        if decision.next is RetryAction.SUCCEED and len(jobs) < len(self.plan.roles):
            return Decision(RetryAction.CONTINUE)
        ended = {job.ended for job in self.members.values()}
        late = TIME in ended or (self._late() and not self.record.cancelled)
        if decision.next in {RetryAction.CONTINUE, RetryAction.RESTART_APP} and late:
            return Decision(RetryAction.FAIL)
        return decision

    def _disrupted(self, phases: dict[str, Phase]) -> ReplicaAttempt | None:
        """Return the Job whose disruption restarts the app without a charge; None if there is none.

        With a bound other failures are consequences: processes of a training fail when they lose a peer, often before
        the pod of that peer has ended. Without a bound a program must not fail for ever next to disruptions.
        """
        assert self.record is not None
        failed = [slug for slug, phase in phases.items() if phase is Phase.FAILED]
        bounds = self.plan.max_disruptions
        lost = [s for s in bounds if s in self.app.disrupted or (s in failed and self.members[s].disrupted)]
        if failed and lost:
            # A role with the bound of all its restarts used up must not restart once more.
            allowed = min(bounds[slug] for slug in lost)
            return ReplicaAttempt(lost[0], 0, 0, Phase.FAILED) if self.record.disrupted < allowed else None
        if self.plan.group != "retry":
            return None
        if not failed or not all(self.members[slug].disrupted for slug in failed):
            return None
        return ReplicaAttempt(failed[0], 0, 0, Phase.FAILED, 0.0)

    def _services_text(self, *, is_over: bool) -> str:
        waited_for = {role.name: role.num_replicas for role in self.plan.roles if role.slug not in self.services}
        if self.plan.leader and self.plan.roles[0].num_replicas > 1:
            waited_for = {f"{self.plan.roles[0].name}/0": 1}
        return services_message(
            waited_for, [role.name for role in self.plan.roles if role.slug in self.services], is_over=is_over
        )

    def _late(self) -> bool:
        limit = self.plan.time_limit_s
        started = min((job.started for job in self.app.jobs.values() if job.started is not None), default=None)
        return limit is not None and started is not None and self.now - started > limit

    # ---- what follows ------------------------------------------------------------------------------------------------

    def _failing(self, phases: dict[str, Phase], decision: Decision, live: list[Job]) -> Assessment:
        limit = f"time limit of {self.plan.time_limit_s or 0:g} s reached"
        timed = decision.next is RetryAction.FAIL and decision.cause is None
        assert self.record is not None
        # If Kubernetes has removed a Job, only the record has the cause.
        is_known = len(self.members) == len(self.plan.roles) and Phase.FAILED in phases.values()
        known = NONE if is_known else self.record.why
        msg = limit if timed or self._beyond_backstop() else known
        if live:
            why = TIME if timed else PEER
            failed = [job for slug, job in self.members.items() if phases[slug] is Phase.FAILED]
            end = [(job, OWN if job in failed else why) for job in live]
            return Assessment(AppState.RUNNING, msg, phases, end=end)
        if self.plan.restarts and self.record.result is None:
            return Assessment(AppState.RUNNING, msg, phases, settle_failure=True)
        return Assessment(AppState.FAILED, msg, phases)

    def _beyond_backstop(self) -> bool:
        """Return whether Kubernetes enforced the time limit, because no observer did."""
        limit = self.plan.time_limit_s
        return limit is not None and any(
            job.failing is not None
            and job.failing.reason == "DeadlineExceeded"
            # A Job that failed by itself is also ended by a deadline.
            and (job.ended is None or (job.ended == OWN and job.failing.time - (job.started or 0.0) > limit))
            for job in self.members.values()
        )

    def _cancelled(self, phases: dict[str, Phase], live: list[Job]) -> Assessment:
        if live:
            # A cancel also ends pods that have never started, which a Job counts as failed; pods that ran are kept.
            ran = self.number > 0 or any(job.ran and (job.ended is None or job.runs) for job in live)
            state = AppState.RUNNING if ran else AppState.PENDING if self._was_released() else AppState.SUBMITTED
            return Assessment(state, "being cancelled", phases, end=[(job, CANCEL) for job in live])
        return Assessment(AppState.CANCELLED, "cancelled", phases)

    def _was_released(self) -> bool:
        return self.record is not None and self.record.released

    def _continuing(self, phases: dict[str, Phase]) -> Assessment:
        assert self.record is not None
        may_start = self.number > 0 or self.submitted
        if self.committed is not None and len(self.members) < len(self.plan.roles):
            # It may have run, so do not create it again.
            lost = next(role.name for role in self.plan.roles if role.slug not in self.members)
            live = any(not job.finished for job in self.members.values())
            state = AppState.RUNNING if live else AppState.UNKNOWN
            # An observer that stalled may have created it again.
            end = [(job, STRAY) for job in self.strays if not job.finished]
            return Assessment(state, f"lost: the Job of role {lost!r} was removed from outside", phases, end=end)
        again = AppState.PENDING if self.plan.group else AppState.RUNNING
        waiting = again if self.number else AppState.SUBMITTED
        if old := [job for job in self.older if not job.finished]:
            # Wait until they have ended and their pods are gone, so that attempts do not overlap.
            return Assessment(waiting, NONE, phases, end=[(job, RESTART) for job in old])
        if self.committed is None:
            return Assessment(waiting, NONE, phases, create=may_start)
        if not self.record.released:
            ready = [] if self.plan.queue else [job for job in self.members.values() if job.suspended]
            return Assessment(waiting, NONE, phases, release=ready if may_start else None)
        kept = [(job, SIDECARS) for job in self.members.values() if job.ended == SIDECARS and not job.finished]
        return Assessment(self._state_of_live(), NONE, phases, end=kept)

    def _state_of_live(self) -> AppState:
        if self.plan.queue and any(job.held for job in self.members.values()):
            return AppState.PENDING  # even if it ran before: the queue has evicted it
        # Each attempt of a group is queued again.
        ran = (self.number > 0 and not self.plan.group) or any(job.ran for job in self.members.values())
        return AppState.RUNNING if ran else AppState.PENDING


REMOVED = "its pod was removed from outside, and its log with it"


def succeeded_without_pod(app: App, plan: Plan, pods: Iterable[Pod]) -> list[tuple[PlannedRole, Job, int]]:
    """Return the replicas that count as succeeded but whose pod was removed, before or after their end."""
    return list(_without_pod(app, plan, pods, lambda job: job.completed))


def failed_without_pod(app: App, plan: Plan, pods: Iterable[Pod]) -> list[tuple[PlannedRole, Job, int]]:
    """Return the replicas that have failed because their last pods were removed."""
    return list(_without_pod(app, plan, pods, lambda job: job.failed))


def _without_pod(
    app: App, plan: Plan, pods: Iterable[Pod], indexes: Callable[[Job], Collection[int]]
) -> Iterator[tuple[PlannedRole, Job, int]]:
    newest = newest_attempts(pods, app.attempt)
    for role in plan.roles:
        job = app.jobs.get((role.slug, app.attempt))
        if job is None or job.ended is not None:
            continue  # a Job that the launcher ends may lose its pods
        for k in sorted(indexes(job)):
            pod = newest.get((role.slug, k))
            # For a replica with retries the last attempt counts.
            if pod is None or (k in job.failed and pod.attempt < job.retries and pod.phase != "Failed"):
                yield role, job, k
            elif k in job.completed and pod.deleting:
                yield role, job, k  # it will be gone in a moment


def first_killed(
    missing: Sequence[tuple[PlannedRole, Job, int]],
    pods: Iterable[Pod],
    events: Callable[[], Iterable[Mapping[str, Any]]],
) -> tuple[PlannedRole, int] | None:
    """Return the first replica without a pod whose program ran when its pod was removed; None if there is none.

    `events` returns those with reason `Killing`, which a node writes when it stops a running container.
    """
    stopped = {(pod.role, pod.replica) for pod in pods if pod.was_stopped_outside}
    for role, _, k in missing:
        if (role.slug, k) in stopped:
            return role, k
    names = {str((event.get("involvedObject") or {}).get("name") or "") for event in events()}
    for role, job, k in missing:
        if any(name.startswith(f"{job.name}-{k}-") for name in names):
            return role, k
    return None


def pods_kept(app: App, plan: Plan, pods: Iterable[Pod], now: float) -> list[Pod]:
    """Return the pods to stop because their programs have failed and only sidecars run."""
    newest = newest_attempts(pods, app.attempt).values()
    return [pod for pod in newest if pod.exit_code and pod.deadline != 1 and _is_due(pod, plan, now)]


def jobs_kept(app: App, plan: Plan, pods: Iterable[Pod], now: float) -> list[Job]:
    """Return the Jobs to end as succeeded because only sidecars run."""
    newest = newest_attempts(pods, app.attempt)
    found = []
    for role in plan.roles:
        job = app.jobs.get((role.slug, app.attempt))
        if job is None or job.ended is not None or job.finished or job.suspended or job.failing:
            continue
        of_job = {k: newest.get((role.slug, k)) for k in range(role.num_replicas)}
        kept = {k for k, pod in of_job.items() if pod and pod.exit_code == 0 and _is_due(pod, plan, now)}
        wanted = {0} if plan.decides(job.role) else set(of_job)
        if kept & wanted and wanted <= kept | job.completed:
            found.append(job)
    return found


def _is_due(pod: Pod, plan: Plan, now: float) -> bool:
    """Return whether only sidecars run in a pod, for longer than their grace."""
    return bool(pod.kept_by) and not pod.deleting and now - (pod.finished or now) >= plan.sidecar_grace_s
