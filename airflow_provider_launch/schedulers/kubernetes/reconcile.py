"""From what is true of an app to its state, and to what it needs next: pure.

Any number of observers may poll an app at once, and any of them may stall between a read and a change. The truth is in
the annotations of the record: which attempt it is, which Jobs belong to it, whether it was cancelled. Each change of
them names what it changes, so of two observers one comes too late and polls again. A Job is created suspended; it is
let go only when it stands in the record, and only in the version that was seen then. What is to end is marked and ended
in one change, and stays so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_launch.schedulers.kubernetes.objects import App, Job
from airflow_provider_launch.schedulers.kubernetes.record import Plan
from airflow_provider_launch.schedulers.retry import Decision, Phase, ReplicaAttempt, RetryAction, decide
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal

OWN, PEER, RESTART, TIME, CANCEL, STRAY = "failed", "peer", "restart", "time limit", "cancel", "stray"
LEADER, SIDECARS = "leader", "sidecars"
"""Why a Job is ended: its own failure, that of another role, another attempt, a limit, a cancel; it has no app; the
leader has succeeded; or all of its programs have ended well, and sidecars run on."""


@dataclass
class Assessment:
    """What is true of an app, and what an observer has to do about it."""

    state: AppState
    msg: str = NONE
    phases: dict[str, Phase] = field(default_factory=dict)
    """Of the Job of each role, by the role's slug."""
    unclear: bool = False
    """Nothing is known without the record."""
    end: list[tuple[Job, str]] = field(default_factory=list)
    """Jobs to end, and why; also those that are being ended."""
    restart: str | None = None
    """The slug of the role whose failure begins the app anew."""
    disrupted: bool = False
    """Whether that failure is a disruption, which is not charged."""
    settle_failure: bool = False
    """Write down that there is no further attempt."""
    create: bool = False
    """Create the Jobs of the present attempt, and commit to them."""
    release: list[Job] | None = None
    """Jobs to let go; then the attempt is released, also if there are none."""
    expire: list[Job] = field(default_factory=list)
    """Jobs that have ended, of an app that has or is being cancelled: their TTL begins."""
    settle_end: bool = False
    """Write down how the app has ended."""

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do."""
        steps = self.end or self.restart or self.settle_failure or self.create or self.expire or self.settle_end
        return not steps and self.release is None


def assess(app: App, plan: Plan, now: float, *, submitted: bool = False) -> Assessment:
    """Return the assessment on an app.

    Args:
        app: its Jobs, and its record as far as it was read, later than the Jobs.
        plan: its roles and limits.
        now: epoch seconds by the server's clock.
        submitted: the caller is at work on the submission, so what was never begun may be.
    """
    assessment = _Assessor(app, plan, now, submitted=submitted).assessment()
    if plan.ttl_s is None or (app.record and app.record.deleting):
        return assessment
    # Of an app that lost a Job nothing more is to come either; and after a cancel nobody may poll again.
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
        self.older = [job for (_, attempt), job in app.jobs.items() if attempt < self.number]

    def assessment(self) -> Assessment:  # noqa: PLR0911 - a table
        if self.record is None:
            return self._without_record()
        phases = {slug: self._phase(job) for slug, job in self.members.items()}
        decision = self._decision(phases)
        live = [job for job in self.app.jobs.values() if not job.finished]
        if self.record.result in {AppState.SUCCEEDED, AppState.CANCELLED}:
            msg = "cancelled" if self.record.result is AppState.CANCELLED else NONE
            return Assessment(self.record.result, msg, phases)
        if self.record.result is AppState.FAILED or decision.next is RetryAction.FAIL:
            return self._failing(phases, decision, live)
        if decision.next is RetryAction.SUCCEED:
            end = [(job, LEADER) for job in live if self.plan.leader]
            return Assessment(AppState.RUNNING if end else AppState.SUCCEEDED, phases=phases, end=end)
        if self.record.cancelled:
            return self._cancelled(phases, live)
        if decision.next is RetryAction.RESTART_APP:
            assert decision.cause is not None
            disrupted = self._disrupted(phases) is not None
            return Assessment(AppState.RUNNING, NONE, phases, restart=decision.cause.role, disrupted=disrupted)
        return self._going_on(phases)

    def _without_record(self) -> Assessment:
        """Assess what goes on undisturbed, or has ended well: that is most apps, most of the time."""
        jobs = list(self.members.values())
        if len(jobs) == len(self.plan.roles):
            if all(job.complete and job.ended is None and not job.deleting for job in jobs):
                return Assessment(AppState.SUCCEEDED, phases=dict.fromkeys(self.members, Phase.SUCCEEDED))
            quiet = not any(
                self._has_decided(job) or job.suspended or job.ended or job.failing or job.deleting for job in jobs
            )
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
            return Phase.RUNNING  # those that are killed since the leader has succeeded are no failures
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
            # Kubernetes has counted the retries of replicas.
            used = policies[slug].max_retries if policies[slug].policy == "REPLICA" else 0
            jobs.append(ReplicaAttempt(slug, 0, used, phase, failing.time if failing else 0.0))
        assert self.record is not None
        decision = decide(policies, self.number - self.record.disrupted, jobs)
        if decision.next in {RetryAction.FAIL, RetryAction.RESTART_APP} and (found := self._disrupted(phases)):
            decision = Decision(RetryAction.RESTART_APP, cause=found)
        if decision.next is RetryAction.SUCCEED and len(jobs) < len(self.plan.roles):
            return Decision(RetryAction.GO_ON)
        ended = {job.ended for job in self.members.values()}
        late = TIME in ended or (self._late() and not self.record.cancelled)
        if decision.next in {RetryAction.GO_ON, RetryAction.RESTART_APP} and late:
            return Decision(RetryAction.FAIL)
        return decision

    def _disrupted(self, phases: dict[str, Phase]) -> ReplicaAttempt | None:
        """Return the Job whose disruption begins a group anew; None: a program has failed, or nothing was disrupted."""
        if self.plan.group != "retry":
            return None
        failed = [slug for slug, phase in phases.items() if phase is Phase.FAILED]
        if not failed or not all(self.members[slug].disrupted for slug in failed):
            return None
        return ReplicaAttempt(failed[0], 0, 0, Phase.FAILED, 0.0)

    def _late(self) -> bool:
        limit = self.plan.time_limit_s
        began = min((job.started for job in self.app.jobs.values() if job.started is not None), default=None)
        return limit is not None and began is not None and self.now - began > limit

    # ---- what follows ------------------------------------------------------------------------------------------------

    def _failing(self, phases: dict[str, Phase], decision: Decision, live: list[Job]) -> Assessment:
        limit = f"time limit of {self.plan.time_limit_s or 0:g} s reached"
        timed = decision.next is RetryAction.FAIL and decision.cause is None
        assert self.record is not None
        # Of Jobs that Kubernetes has removed since, only the record knows.
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
        """Return whether Kubernetes itself has kept the time limit, since nobody observed the app."""
        limit = self.plan.time_limit_s
        return limit is not None and any(
            job.failing is not None
            and job.failing.reason == "DeadlineExceeded"
            # A Job that failed by itself is ended by a deadline too.
            and (job.ended is None or (job.ended == OWN and job.failing.time - (job.started or 0.0) > limit))
            for job in self.members.values()
        )

    def _cancelled(self, phases: dict[str, Phase], live: list[Job]) -> Assessment:
        if live:
            ran = self.number > 0 or any(job.ran for job in live)
            state = AppState.RUNNING if ran else AppState.PENDING if self._was_released() else AppState.SUBMITTED
            return Assessment(state, "being cancelled", phases, end=[(job, CANCEL) for job in live])
        return Assessment(AppState.CANCELLED, "cancelled", phases)

    def _was_released(self) -> bool:
        return self.record is not None and self.record.released

    def _going_on(self, phases: dict[str, Phase]) -> Assessment:
        assert self.record is not None
        begun = self.number > 0 or self.submitted
        if self.committed is not None and len(self.members) < len(self.plan.roles):
            # Whether it ran, and how it ended, is not known: a second run could be one too many.
            lost = next(role.name for role in self.plan.roles if role.slug not in self.members)
            live = any(not job.finished for job in self.members.values())
            state = AppState.RUNNING if live else AppState.UNKNOWN
            # An observer that stalled may have made it anew.
            end = [(job, STRAY) for job in self.strays if not job.finished]
            return Assessment(state, f"lost: the Job of role {lost!r} was removed from outside", phases, end=end)
        again = AppState.PENDING if self.plan.group else AppState.RUNNING
        waiting = again if self.number else AppState.SUBMITTED
        if old := [job for job in self.older if not job.finished]:
            # Only when they have ended are their pods gone, so that no two attempts overlap.
            return Assessment(waiting, NONE, phases, end=[(job, RESTART) for job in old])
        if self.committed is None:
            return Assessment(waiting, NONE, phases, create=begun)
        if not self.record.released:
            ready = [] if self.plan.queue else [job for job in self.members.values() if job.suspended]
            return Assessment(waiting, NONE, phases, release=ready if begun else None)
        kept = [(job, SIDECARS) for job in self.members.values() if job.ended == SIDECARS and not job.finished]
        return Assessment(self._state_of_live(), NONE, phases, end=kept)

    def _state_of_live(self) -> AppState:
        if self.plan.queue and any(job.held for job in self.members.values()):
            return AppState.PENDING  # also where it ran before: the queue has taken its place away
        # Each attempt of a group is queued anew.
        ran = (self.number > 0 and not self.plan.group) or any(job.ran for job in self.members.values())
        return AppState.RUNNING if ran else AppState.PENDING
