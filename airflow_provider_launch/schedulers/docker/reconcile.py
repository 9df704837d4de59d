"""Decides the state of an app and its next step from its current containers, without I/O.

Any number of observers may poll an app at once, and any of them may stall between a read and a change. Three rules
avoid conflicts:

* A name is created once, and the creator of a container starts it, after another poll.
* After a decisive moment (a mark, or the failure that ends an attempt) no container of the attempt may be started.
  A container that was created before is discarded; one that was created later is not started, because its creator
  polls again first.
* A container that ended before the mark ended by itself; one that ended after it was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_launch.schedulers._kit.endings import ending_text, failure_message, services_message
from airflow_provider_launch.schedulers.docker.containers import App, Container, Detail, Plan, end_of, exit_code_of
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.schedulers.retry import Decision, Phase, ReplicaAttempt, RetryAction, decide
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState

CANCEL = "cancel"
FAIL, _RESTART = "fail", "restart"
_NS = 1_000_000_000
_SIGKILL_CODE = 137

Attempt = tuple[str, int, int, int]
"""Role, replica, attempt of the app, attempt of the replica."""


@dataclass(frozen=True)
class EndMark:
    """The decision that ends an attempt of the app, as it is stored in the engine."""

    app_attempt: int
    decision: str
    cause: str

    @property
    def name(self) -> str:
        """The value of its label."""
        return end_mark(self.app_attempt)


@dataclass
class Assessment:
    """The state of an app, and the next step for an observer."""

    state: AppState
    msg: str = NONE
    phases: dict[tuple[str, int], Phase | None] = field(default_factory=dict)
    """Phase of each replica, None if its container was removed from outside."""
    mark: EndMark | None = None
    stop: list[Container] = field(default_factory=list)
    discard: list[Container] = field(default_factory=list)
    create: list[Attempt] = field(default_factory=list)
    start: list[Container] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.mark or self.stop or self.discard or self.create or self.start)


def end_mark(app_attempt: int) -> str:
    """Return the label of the mark that ends an attempt of the app."""
    return f"end-{app_attempt}"


def to_inspect(app: App) -> list[Container]:
    """Return the containers that must be inspected, because the list does not report enough.

    Failed ones for the cause, ended ones of an app with marks for their times, unstarted ones for a failed start.
    """
    marks = list(app.marks.values())
    return [
        *marks,
        *(c for c in app.replicas() if c.unstarted or (not c.live and (marks or c.exit_code != 0))),
    ]


def ended_well(app: App) -> list[Container]:
    """Return the containers of the current attempt that have just ended with 0 and were not stopped by the launcher."""
    number = app.app_attempt()
    if {CANCEL, end_mark(number)} & set(app.marks):
        return []
    lately = [c for c in app.replicas() if c.app_attempt == number and c.has_ended_lately]
    return [container for container in lately if container.state == "exited" and container.exit_code == 0]


def is_lasting(app: App) -> bool:
    """Return whether an assessment without a next step remains valid until the list changes."""
    return Plan.of(app).time_limit_s is None and not to_inspect(app)


def assess(app: App, plan: Plan, details: Mapping[str, Detail], now: float, *, submitted: bool = False) -> Assessment:
    """Return the assessment of an app from its containers, and the details of those that were inspected.

    With `submitted` the caller is submitting the app, so its first containers may be started.
    """
    assessment = _Assessor(app, plan, details, now, submitted=submitted).assessment()
    if app.record is not None or not (assessment.create or assessment.start):
        return assessment
    # The record with the app's request no longer exists.
    why = f"{assessment.msg}; not possible: the record of the app was removed from outside"
    live = any(c.live for c in app.replicas())
    return Assessment(AppState.RUNNING if live else AppState.FAILED, why, assessment.phases)


class _Assessor:
    def __init__(self, app: App, plan: Plan, details: Mapping[str, Detail], now: float, *, submitted: bool) -> None:
        self.app = app
        self.plan = plan
        self.details = details
        self.now = now
        self.submitted = submitted
        self.number = app.app_attempt()
        self.cancel = app.marks.get(CANCEL)
        # The mark of the next attempt exists if its containers could not be created; it ends the app.
        self.refused = app.marks.get(end_mark(self.number + 1))
        ended = app.marks.get(end_mark(self.number))
        self.end = self.refused or ended
        self.current = {
            key: [c for c in app.attempts.get(key, []) if c.app_attempt == self.number]
            for key in ((role, k) for role, count in plan.replicas.items() for k in range(count))
        }
        flat = [c for attempts in self.current.values() for c in attempts]
        self.has_started = app.started >= self.number or any(not c.unstarted or self._failed_start(c) for c in flat)
        self.live = [c for c in app.replicas() if c.live]
        self.marked_at = min((self._created(m) for m in (self.cancel, self.refused, ended) if m), default=None)

    def assessment(self) -> Assessment:
        phases = {key: self._phase(key, attempts) for key, attempts in self.current.items()}
        decision = self._decision(phases)
        # A failure before the cancel keeps its reason.
        ended = decision.next in {RetryAction.FAIL, RetryAction.RESTART_APP} or self.cancel is not None
        unstarted = [
            c for attempts in self.current.values() for c in attempts if c.unstarted and not self._failed_start(c)
        ]
        if ended:
            decisive = self._decisive_moment(decision)
            late = [c for c in unstarted if decisive is not None and self._created(c) > decisive]
            unstarted = [c for c in unstarted if c not in late]
            for key, attempts in self.current.items():
                if attempts and attempts[-1] in late:
                    phases[key] = self._phase(key, [c for c in attempts if c not in late])
        if decision.next is RetryAction.SUCCEED:
            return self._succeeding(phases)
        if self.cancel is not None and not self._failed_before_cancel(decision):
            return self._cancelled(phases, unstarted)
        if decision.next is RetryAction.FAIL:
            return self._ending(phases, unstarted, decision, FAIL)
        if decision.next is RetryAction.RESTART_APP:
            return self._ending(phases, unstarted, decision, _RESTART)
        return self._continuing(phases, decision)

    # ---- current state -----------------------------------------------------------------------------------------------

    def _created(self, container: Container) -> int:
        detail = self.details.get(container.id)
        # The list has whole seconds only.
        return detail.created if detail else container.created * _NS

    def _finished(self, container: Container) -> int:
        detail = self.details.get(container.id)
        return detail.finished if detail else 0

    def _failed_start(self, container: Container) -> bool:
        detail = self.details.get(container.id)
        return detail is not None and bool(detail.error) and container.unstarted

    def _phase(self, key: tuple[str, int], attempts: list[Container]) -> Phase | None:
        if not attempts:
            return None if self.has_started and (*key, self.number) not in self.app.discarded else Phase.WAITING
        newest = attempts[-1]
        if newest.unstarted:
            return Phase.FAILED if self._failed_start(newest) else Phase.WAITING
        if newest.live:
            return Phase.RUNNING
        if self.marked_at is not None and (newest.id not in self.details or self._finished(newest) > self.marked_at):
            return Phase.STOPPED
        if newest.removing and not self._is_end_known(newest):
            return None
        has_exited = newest.state == "exited" or newest.removing
        has_ended_well = has_exited and self._exit_code(newest) == 0 and not self._stopped_by(newest)
        return Phase.SUCCEEDED if has_ended_well else Phase.FAILED

    def _stopped_by(self, container: Container) -> str:
        detail = self.details.get(container.id)
        return detail.outside if detail else ""

    def _is_end_known(self, container: Container) -> bool:
        detail = self.details.get(container.id)
        if detail is None or not detail.finished:
            return False
        # A forced removal of a live container kills it, so its own result is unknown.
        return not detail.removing or detail.exit_code != _SIGKILL_CODE or detail.out_of_memory

    def _exit_code(self, container: Container) -> int | None:
        return exit_code_of(container, self.details.get(container.id))

    def _decision(self, phases: Mapping[tuple[str, int], Phase | None]) -> Decision:
        replicas = []
        for (role, k), phase in phases.items():
            attempts = self.current[role, k]
            if phase is not None:
                attempt = attempts[-1].attempt if attempts else 0
                ended_at = self._finished(attempts[-1]) / _NS if attempts else 0.0
                replicas.append(ReplicaAttempt(role, k, attempt, phase, ended_at))
        if self.end is not None:
            kind = self.end.notes.get(Label.DECISION, FAIL)
            return Decision(RetryAction.RESTART_APP if kind == _RESTART else RetryAction.FAIL)
        decision = decide(self.plan.policies, self.number, replicas)
        lost = len(replicas) < len(phases)
        if lost and decision.next is RetryAction.SUCCEED:
            return Decision(RetryAction.CONTINUE)
        over = decision.next in {RetryAction.FAIL, RetryAction.SUCCEED}
        if not over and self.cancel is None and self._late(phases):
            return Decision(RetryAction.FAIL)
        return decision

    def _late(self, phases: Mapping[tuple[str, int], Phase | None]) -> bool:
        limit = self.plan.time_limit_s
        if limit is None:
            return False
        return self.now - self.app.plan_source.created > limit and any(phase is not None for phase in phases.values())

    def _decisive_moment(self, decision: Decision) -> int | None:
        moments = [self.marked_at] if self.marked_at is not None else []
        if decision.cause is not None:
            cause = self.current[decision.cause.role, decision.cause.replica]
            # 0: it could not be started, so the time of the failure is unknown, and no container counts as late.
            if finished := self._finished(cause[-1]):
                moments.append(finished)
        return min(moments, default=None)

    def _failed_before_cancel(self, decision: Decision) -> bool:
        assert self.cancel is not None
        if decision.next is not RetryAction.FAIL:
            return False
        if self.end is not None:
            return self._created(self.end) < self._created(self.cancel)
        return decision.cause is not None  # a failure after the mark counts as a stop, not as a cause

    # ---- next step ---------------------------------------------------------------------------------------------------

    def _succeeding(self, phases: dict[tuple[str, int], Phase | None]) -> Assessment:
        """Stop the services; the others have succeeded."""
        services = [role for role, policy in self.plan.policies.items() if policy.is_service]
        unstarted = [c for role, k in phases if role in services for c in self.current[role, k] if c.unstarted]
        waited_for = {role: count for role, count in self.plan.replicas.items() if role not in services}
        is_over = not self.live and not unstarted
        msg = services_message(waited_for, services, is_over=is_over) if services else NONE
        if not is_over:
            return Assessment(AppState.RUNNING, msg, phases, stop=self.live, discard=unstarted)
        for (role, k), phase in phases.items():
            if role in services and phase is not Phase.SUCCEEDED:
                phases[role, k] = Phase.STOPPED
        return Assessment(AppState.SUCCEEDED, msg, phases)

    def _cancelled(self, phases: dict[tuple[str, int], Phase | None], unstarted: list[Container]) -> Assessment:
        if self.live or unstarted:
            state = AppState.RUNNING if self.live else AppState.SUBMITTED
            return Assessment(state, "being cancelled", phases, stop=self.live, discard=unstarted)
        return Assessment(AppState.CANCELLED, "cancelled", phases)

    def _ending(
        self, phases: dict[tuple[str, int], Phase | None], unstarted: list[Container], decision: Decision, kind: str
    ) -> Assessment:
        cause = self._cause(decision)
        if self.live or unstarted:
            assessment = Assessment(AppState.RUNNING, cause, phases, discard=unstarted)
            if self.end is None and self.live:
                assessment.mark = EndMark(self.number, kind, cause)
            else:
                assessment.stop = self.live
            return assessment
        if kind == FAIL:
            assessment = Assessment(AppState.FAILED, cause, phases)
            if self.end is None and decision.cause is not None:
                container = self.current[decision.cause.role, decision.cause.replica][-1]
                if self._stopped_by(container):
                    # Stored, because the engine forgets the outside stop, and the exit code shows no failure.
                    assessment.mark = EndMark(self.number, kind, cause)
            return assessment
        # All containers of this attempt have ended, so the next one overlaps with none of them.
        again = [(role, k, self.number + 1, 0) for role, k in self.current]
        return Assessment(AppState.RUNNING, cause, phases, create=again)

    def _cause(self, decision: Decision) -> str:
        if self.end is not None:
            return self.end.notes.get(Label.CAUSE, NONE)
        if decision.cause is None:
            return f"time limit of {self.plan.time_limit_s or 0:g} s reached"
        container = self.current[decision.cause.role, decision.cause.replica][-1]
        text = ending_text(end_of(container, self.details.get(container.id)))
        return failure_message(container.role, container.replica, text, container.app_attempt + container.attempt)

    def _continuing(self, phases: dict[tuple[str, int], Phase | None], decision: Decision) -> Assessment:
        lost = next((key for key, phase in phases.items() if phase is None), None)
        if lost is not None:
            # It is unknown whether it ran and how it ended, so it is not started again.
            state = AppState.RUNNING if self.live else AppState.UNKNOWN
            container = f"the container of {lost[0]}/{lost[1]}"
            is_gone = not self.current[lost]
            msg = (
                f"lost: {container} was removed from outside" if is_gone else f"deleting: {container} is being removed"
            )
            return Assessment(state, msg, phases)
        assessment = Assessment(self._state_of_live(), phases=phases)
        if not self.has_started and self.number == 0 and not self.submitted:
            return assessment
        for role, k, attempt in decision.start:
            attempts = self.current[role, k]
            existing = attempts[-1] if attempts and attempts[-1].attempt == attempt else None
            if existing is None:
                assessment.create.append((role, k, self.number, attempt))
            else:
                assessment.start.append(existing)
        if not self.has_started and assessment.create:
            # An attempt of the app starts when all its containers exist.
            assessment.start = []
        if decision.cause is not None:
            assessment.msg = f"{self._cause(decision)}, started again"
        return assessment

    def _state_of_live(self) -> AppState:
        if not self.has_started and self.number == 0:
            return AppState.SUBMITTED
        if self.live and all(c.state == "restarting" for c in self.live):
            return AppState.PENDING
        return AppState.RUNNING
