"""The observer of apps: reads their containers, assesses them and performs the next step.

There may be several observers, one in each worker or triggerer that polls. They also start retries; `reconcile`
explains how they avoid conflicts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence

from cachetools import LRUCache

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers.docker.catalog import Catalog
from airflow_provider_launch.schedulers.docker.containers import (
    App,
    Container,
    DamagedError,
    Detail,
    Plan,
    discarded_name,
    epoch_ns,
    start_error,
    taken_name,
)
from airflow_provider_launch.schedulers.docker.creation import Creation
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.naming import Kind, Label, mark_name
from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop, signal_number
from airflow_provider_launch.schedulers.docker.reconcile import (
    CANCEL,
    FAIL,
    Assessment,
    Attempt,
    EndMark,
    assess,
    end_mark,
    ended_well,
    to_inspect,
)
from airflow_provider_launch.schedulers.docker.request import DockerRequest, mark_body
from airflow_provider_launch.schedulers.retry import reconcile
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppUnavailableError,
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
)
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.util.threads import for_each_parallel

log = logging.getLogger(__name__)

_ROUNDS = 6
"""Maximum steps in one poll of an app; the rest is left to the next poll."""
_TAKEOVER_S = 10.0
"""Seconds after which the creator of an unstarted container is assumed dead, and another process takes it over."""
_IN_FLIGHT_S = 1.0
"""Maximum seconds until the engine lists a container as started. In that time a rename does not prevent the start."""
_INSPECT_AGAIN_S, _INSPECT_AGAIN_MAX_S = 1.0, 600.0
"""First and longest interval between inspections of a container that was never started."""
_START_AGAIN_S = 0.5
"""Pause before the only retry of a start that was refused without a reason."""
_SOON_S = 30.0
"""Seconds during which a new container is inspected often, because it may be started soon."""
_STOP_AGAIN_S, _AFTER_GRACE_S = 60.0, 10.0
"""Seconds until a container that still runs is stopped again: at least the first, and the second after its grace."""
_SIGKILL_CODE = 137
_NS = 1_000_000_000
_CAUSE_S, _LIMITED_CAUSE_S = 0.2, 1.5
"""Seconds from a kill until the engine reports its cause; longer for containers with a memory limit, because the report
of a lack of memory comes later."""
_FOREIGN_IMAGES = 3
_KEPT_CONTAINERS = 50_000
_KILLED = {137, 143, 255}
"""Exit codes of containers that an engine kills when it stops or starts, or finds dead after a crash of its host."""
_DOWN_NS = 900 * 1_000_000_000
"""Maximum downtime of an engine for which its restart is reported as the reason of an end."""


class Observer:
    """Assesses the apps of one engine and performs their next step."""

    def __init__(self, engine: Engine, catalog: Catalog, creation: Creation) -> None:
        # Bounded, because a triggerer runs for months; large enough for all containers of one app.
        self.details: LRUCache[str, Detail] = LRUCache(_KEPT_CONTAINERS)
        """Details of containers by id."""
        self.ended_at: LRUCache[str, int] = LRUCache(_KEPT_CONTAINERS)
        """End times, in epoch seconds, of containers with exit code 0 by id; for others the detail has them."""
        self._engine = engine
        self._catalog = catalog
        self._creation = creation
        self._inspected_at: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        self._first_reinspected_at: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        """Time of the first repeated inspection of a container."""
        self._unstarted_since: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        self._stopped_at: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        self._decided: LRUCache[str, int] = LRUCache(_KEPT_CONTAINERS)
        """Attempts of apps whose end this process decided first, by app."""
        self._checked_for_stops: LRUCache[str, bool] = LRUCache(_KEPT_CONTAINERS)
        self._unexplained: LRUCache[str, int] = LRUCache(_KEPT_CONTAINERS)
        """Killed containers whose cause the engine may not have reported yet: id to the engine's time in epoch
        nanoseconds at which it has."""

    def assess(self, app: App, now: float, *, submitted: bool = False, made: Collection[str] = ()) -> Assessment:
        """Return the state of an app and its next step.

        With `submitted` the caller is submitting the app; `made` are the ids of containers that it has just created.
        """
        self.find_outside_stops([app], now)
        for container in to_inspect(app):
            # A container that was just created has nothing to report.
            if container.id not in made:
                self.inspect(container, now)
        return assess(self.explained(app), Plan.of(app), self.details, now, submitted=submitted)

    def explained(self, app: App) -> App:
        """Return the app in which a killed container still runs while the engine may not have reported the cause.

        If a poll waited for the cause, it would delay the other apps of the engine.
        """
        return app.with_running({c.id for c in app.replicas() if c.id in self._unexplained})

    def may_be_unexplained(self, container: Container) -> bool:
        """Return whether a container must be inspected, because `explained` may count it as running."""
        was_killed = container.exit_code == _SIGKILL_CODE and container.has_ended_lately
        return container.id in self._unexplained or (was_killed and container.id not in self.details)

    def explained_in_s(self, app: App, now: float) -> float | None:
        """Return the most seconds until the engine has reported the causes of all kills; None if it has."""
        due = [self._unexplained[c.id] for c in app.replicas() if c.id in self._unexplained]
        # The engine's time has whole seconds, so it may be behind by one.
        return max(0.0, math.ceil(max(due) / _NS) - now) if due else None

    def find_outside_stops(self, apps: Iterable[App], now: float) -> None:
        """Find out, with one request, whether programs that ended with 0 were stopped from outside."""
        ended = [container for app in apps if not Plan.of(app).accepts_stop for container in ended_well(app)]
        new = [container for container in ended if container.id not in self._checked_for_stops]
        if not new:
            return
        since = min(container.created for container in new)
        try:
            stops = self._engine.stops([container.id for container in new], since, int(now) + 1)
        except SchedulerRejectedError:  # a restricted socket without events
            stops = {}
        for container in new:
            stop = stops.get(container.id)
            if stop is not None and stop.ended_at is not None:
                self.ended_at[container.id] = stop.ended_at
            if stop is not None and (stop.by or stop.restarts):
                self.inspect(container)
                if container.id in self.details:
                    detail = self.details[container.id]
                    self.details[container.id] = dataclasses.replace(detail, outside=stop.by, restarts=stop.restarts)
            self._checked_for_stops[container.id] = True

    def find_ends(self, app: App) -> None:
        """Find the end times of replicas for which the engine reported no event; one inspection for each replica.

        Only of those with exit code 0, because `assess` inspects the others.
        """
        for container in app.replicas():
            is_known = container.id in self.details or container.id in self.ended_at
            if container.exit_code == 0 and not is_known:
                self.inspect(container)

    def inspect(self, container: Container, now: float = math.inf) -> None:
        """Read the detail of a container; read it again while the container is not started.

        A container that was killed just now gets no detail yet, because its cause may be missing; see `explained`.
        Without `now` the cause of a kill counts as reported.
        """
        cached = self.details.get(container.id)
        moment = time.monotonic()
        if cached is not None:
            final = cached.finished or cached.error or container.kind == Kind.MARK
            waited_s = moment - self._first_reinspected_at.setdefault(container.id, moment)
            pause_s = _INSPECT_AGAIN_S if waited_s < _SOON_S else min(2 * waited_s, _INSPECT_AGAIN_MAX_S)
            if final or (container.unstarted and moment - self._inspected_at.get(container.id, moment) < pause_s):
                return
        try:
            document = self._engine.inspect(container.id)
        except NotFoundError:
            return
        detail = Detail.of(document)
        if container.exit_code == _SIGKILL_CODE and not detail.out_of_memory:
            # The engine gets the end and its cause in two messages. By the engine's clock, so that the app has not
            # ended for one process while it runs for another.
            pause_s = _LIMITED_CAUSE_S if (document.get("HostConfig") or {}).get("Memory") else _CAUSE_S
            # The engine's time has whole seconds, so it may be before the end; far before it if a clock was set back.
            if -_LIMITED_CAUSE_S < now - detail.finished / _NS < pause_s:
                self._unexplained[container.id] = detail.finished + int(pause_s * _NS)
                return
        self._unexplained.pop(container.id, None)
        self.details[container.id] = self._with_restart_note(detail)
        self._inspected_at[container.id] = moment

    def _with_restart_note(self, detail: Detail) -> Detail:
        """Add a note if the time of the end shows that the engine was restarted."""
        if detail.exit_code not in _KILLED or detail.out_of_memory or not detail.finished:
            return detail
        restarted = self._engine.started_at()
        try:
            if restarted is None or not 0 < epoch_ns(restarted) - detail.finished < _DOWN_NS:
                return detail
        except ValueError:
            return detail
        return dataclasses.replace(detail, note=f"the engine was restarted at {restarted}")

    def work(
        self,
        app_id: str,
        *,
        submitted: bool = False,
        cancelled: bool = False,
        mine: set[str] | None = None,
        request: DockerRequest | None = None,
    ) -> tuple[App, Assessment] | None:
        """Perform the next steps of an app; return the app and its assessment, or None if it no longer exists.

        If the caller cancels the app, errors of stopping are raised, otherwise logged. If it submits the app, `request`
        is the submitted one, and `mine` are the ids of containers that it has just created.
        """
        created = set() if mine is None else mine

        def read() -> tuple[App, Assessment] | None:
            apps, now = self._catalog.poll([app_id])
            app = apps.get(app_id)
            if app is None:
                self._remove_unneeded(created, None, keep=())
                return None
            assessment = self.assess(app, now, submitted=submitted, made=created)
            # Keep existing containers: they are not started before all others are created.
            wanted = app.replicas() if assessment.create else assessment.start
            self._remove_unneeded(created, app, keep=[c.id for c in wanted])
            return app, assessment

        def act(found: tuple[App, Assessment]) -> bool:
            app, assessment = found
            if assessment.settled:
                return False
            if assessment.create and submitted and request is not None:
                self._creation.prepare(request)
            return self._act(app, assessment, created, submitted=submitted, cancelled=cancelled)

        with self._catalog.mutex:
            return reconcile(read, act, rounds=_ROUNDS)

    def _act(self, app: App, assessment: Assessment, mine: set[str], *, submitted: bool, cancelled: bool) -> bool:
        """Do one step; return whether to poll again at once."""
        if assessment.mark is not None:
            self.set_mark(app, assessment.mark.name, assessment.mark)
            return True
        if assessment.discard:
            for_each_parallel(self._discard, assessment.discard)
            return True
        if assessment.stop:
            self._stop(app, assessment.stop, must_report=cancelled)
            return False
        if assessment.create:
            request = self._catalog.request(app)
            if request is not None:
                self._create(app, assessment, request, mine)
            return request is not None
        startable = [c for c in assessment.start if c.id in mine]
        for_each_parallel(lambda container: self._start(app, container), startable)
        mine -= {c.id for c in startable}
        # Skip containers that another submitter has taken over; otherwise two submitters would undo each other.
        others = [
            c for c in assessment.start if c not in startable and ((submitted and not c.taken) or self._overdue(c))
        ]
        self._take_over(app, others)
        return bool(others)

    def _create(self, app: App, assessment: Assessment, request: DockerRequest, mine: set[str]) -> None:
        """Create the next containers of the app; a refusal by the engine ends an app that has started."""
        if assessment.state is AppState.SUBMITTED:
            self._creation.create_all(request, assessment.create, mine)  # the submitting caller gets the error
            return
        refused: dict[Attempt, LaunchError] = {}

        def create(attempt: Attempt) -> None:
            try:
                self._creation.create_one(request, attempt, mine, image=_first_image(app, attempt[0]))
            except (SchedulerRejectedError, AppConflictError, InvalidAppError) as error:
                refused[attempt] = error

        for_each_parallel(create, assessment.create)
        for attempt in assessment.create:
            if attempt in refused:
                role, k, number, _ = attempt
                cause = f"{role}/{k} could not be started again: {refused[attempt]}"
                self.set_mark(app, end_mark(number), EndMark(number, FAIL, cause))
                return

    def _remove_unneeded(self, mine: set[str], app: App | None, keep: Iterable[str]) -> None:
        """Remove containers that this call created and no longer needs, unless another process started them."""
        listed = {container.id: container for container in app.all} if app else {}
        for container_id in mine - set(keep):
            mine.discard(container_id)
            container = listed.get(container_id)
            # Renamed first, so that an observer cannot start it by its old name.
            if app is None or (container is not None and container.unstarted and self._discard(container)):
                self._engine.remove(container_id, force=False)

    def _start(self, app: App, container: Container) -> None:
        refusal = self._refusal_of_start(container)
        if refusal is not None:
            # An engine also refuses while it is busy.
            time.sleep(_START_AGAIN_S)
            refusal = self._refusal_of_start(container)
        if refusal is not None:
            cause = f"{container.role}/{container.replica} could not be started: {refusal}"
            number = container.app_attempt
            self.set_mark(app, end_mark(number), EndMark(number, FAIL, cause))

    def _refusal_of_start(self, container: Container) -> SchedulerRejectedError | None:
        """Start a container; return the engine's refusal if the inspection does not show the reason."""
        try:
            # By name, because an observer that takes the container over renames it first.
            self._engine.start(container.name)
        except (NotFoundError, TakenError):
            return None  # taken over, or being removed
        except SchedulerRejectedError as error:
            # Inspect it again, because the inspection may now show the reason.
            self._inspected_at.pop(container.id, None)
            self.details.pop(container.id, None)
            with contextlib.suppress(NotFoundError):
                state = self._engine.inspect(container.id)["State"]
                if state["Status"] == "created" and not start_error(state):
                    return error
        return None

    def _take_over(self, app: App, containers: list[Container]) -> None:
        """Start containers that other processes created; a later start by their creators then fails."""
        taken: list[Container] = []

        def rename(container: Container) -> None:
            if name := self._rename_taken(container):
                taken.append(dataclasses.replace(container, name=name))

        def start(container: Container) -> None:
            with contextlib.suppress(NotFoundError):
                state = self._engine.inspect(container.id)["State"]
                if state["Status"] == "created" and not start_error(state):
                    self._start(app, container)

        for_each_parallel(rename, containers)
        if not taken:
            return
        time.sleep(_IN_FLIGHT_S)
        # Another process may have created a container with the old name meanwhile. Rename that one too. The engine
        # serialises rename and start: either the start came first and the container counts, or its creator can no
        # longer find it by name.
        apps, _ = self._catalog.poll([app.app_id])
        if rivals := _rivals(apps.get(app.app_id), taken):
            for_each_parallel(self._rename_taken, rivals)
            apps, _ = self._catalog.poll([app.app_id])
        counted = {container.id for container in apps[app.app_id].replicas()} if app.app_id in apps else set()
        for_each_parallel(start, [container for container in taken if container.id in counted])

    def _rename_taken(self, container: Container) -> str:
        """Rename a container so that its creator cannot start it; return the new name, or "" if another was faster."""
        name = taken_name(container, uuid.uuid4().hex[:8])
        try:
            self._engine.rename(container.name, name)
        except (NotFoundError, TakenError):
            return ""
        return name

    def _overdue(self, container: Container) -> bool:
        moment = time.monotonic()
        # By name, because a changed name means that another process works on it.
        since = self._unstarted_since.setdefault(container.name, moment)
        return moment - since > _TAKEOVER_S

    def _discard(self, container: Container) -> bool:
        """Rename a container so that no process starts it; return False if another process was faster."""
        try:
            self._engine.rename(container.name, discarded_name(container, uuid.uuid4().hex[:8]))
        except (NotFoundError, TakenError):
            return False
        return True

    def _stop(self, app: App, containers: list[Container], *, must_report: bool) -> None:
        moment = time.monotonic()
        pause_s = max(_STOP_AGAIN_S, self._grace_s(app) + _AFTER_GRACE_S)
        due = [c for c in containers if moment - self._stopped_at.get(c.id, -math.inf) >= pause_s]
        first = [c for c in due if c.id not in self._stopped_at]
        stopped = self._stopped_by_others(app, first, pause_s) if first else set()
        # The engine kills them after their grace, and a second TERM would interrupt a program that writes a checkpoint.
        for container_id in stopped:
            self._stopped_at[container_id] = moment

        def stop(container: Container) -> None:
            try:
                self._engine.stop(container.id)
            except AppUnavailableError as error:
                if must_report:
                    raise
                # The container continues to run, and observers report it as running.
                text = (
                    "cannot stop container %s, retrying in %.0f s: %s; if this persists, run `docker rm -f` on its host"
                )
                log.warning(text, container.name, pause_s, error)
            self._stopped_at[container.id] = moment

        for_each_parallel(stop, [container for container in due if container.id not in stopped])

    def _grace_s(self, app: App) -> float:
        try:
            request = self._catalog.request(app)
        except DamagedError:
            return 0.0
        return max((role.body["StopTimeout"] for role in request.roles), default=0.0) if request else 0.0

    def _stopped_by_others(self, app: App, containers: Sequence[Container], pause_s: float) -> set[str]:
        """Return the ids of containers to which the engine has sent a signal since the end was decided.

        If another process decided the end, wait one to two seconds for its signals. Empty once they are overdue.
        """
        number = app.app_attempt()
        if self._decided.get(app.app_id) == number:
            return set()
        now = self._catalog.now
        marks = [mark.created for name, mark in app.marks.items() if name in {CANCEL, end_mark(number)}]
        if marks and now - max(marks) > pause_s:
            return set()
        # Services are stopped without a mark.
        since = min(marks or [container.created for container in containers])
        try:
            # In whole seconds, of which the present one may be over at once.
            until = int(now) + (2 if marks else 0)
            stops = self._engine.stops([c.id for c in containers], since, until, signalled=bool(marks))
        except SchedulerRejectedError:  # a restricted socket without events
            return set()
        found = [container.id for container in containers if container.id in stops]
        return {one for one in found if stops[one].by or self._stop_signal(one, stops[one]) in stops[one].signals}

    def _stop_signal(self, container_id: str, stop: OutsideStop) -> str | None:
        """Return the number of the signal that the engine sends first to stop a container; its image may name one."""
        if not stop.signals:
            return None
        with contextlib.suppress(NotFoundError):
            config = self._engine.inspect(container_id).get("Config") or {}
            return signal_number(str(config.get("StopSignal") or ""))
        return None

    def is_stopped(self, container: Container) -> bool:
        """Return whether a signal was sent to the container, by this observer or before it."""
        return container.id in self._stopped_at

    def set_mark(self, app: App, mark: str, end: EndMark | None = None) -> None:
        """Store a decision in the engine for all observers; the first one counts."""
        labels = {Label.DECISION: end.decision, Label.CAUSE: end.cause} if end else {}
        name, missing = mark_name(app.app_id, mark), ""
        for image in self._images(app):
            try:
                self._engine.create(name, mark_body(image, app.app_id, mark, **labels))
            except TakenError:
                return  # another process decided first
            except NotFoundError as error:
                missing = str(error)
            else:
                number = app.app_attempt()
                if not {CANCEL, end_mark(number)} & set(app.marks):
                    self._decided[app.app_id] = number
                return
        raise SchedulerRejectedError(
            f"cannot store the end of app {app.app_id!r} ({missing or 'the Docker engine has no image'}); "
            f"pull any image on the engine, and the next poll stores it"
        )

    def _images(self, app: App) -> Iterator[str]:
        """Yield images for a mark; first those of running containers, which cannot have been removed."""
        own = dict.fromkeys(c.image_id for c in sorted(app.all, key=lambda c: not c.live))
        yield from own
        # A mark is never started, so any image works.
        yield from [image for image in self._engine.images.ids() if image not in own][:_FOREIGN_IMAGES]


def _rivals(app: App | None, taken: Iterable[Container]) -> list[Container]:
    """Return containers of the same attempts that are not started, and that no process has renamed."""
    keys = {(c.role, c.replica, c.app_attempt, c.attempt) for c in taken}
    return [
        container
        for container in (app.all if app else ())
        if container.kind == Kind.REPLICA
        and container.unstarted
        and not (container.taken or container.discarded or container.renamed)
        and (container.role, container.replica, container.app_attempt, container.attempt) in keys
    ]


def _first_image(app: App, role: str) -> str | None:
    """Return the image id of the first attempt of a role, because the tag may have moved since."""
    found = [c for (name, _), attempts in app.attempts.items() if name == role for c in attempts]
    return min(found, key=lambda c: c.created).image_id if found else None
