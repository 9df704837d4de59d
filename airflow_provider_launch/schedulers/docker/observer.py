"""What every observer of an app does: it reads, assesses, and does the next step that is due.

Retries are made by the observers; `reconcile.assess` explains how observers keep out of each other's way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cachetools import LRUCache

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers._kit.reconcile import reconcile
from airflow_provider_launch.schedulers.docker.catalog import Catalog
from airflow_provider_launch.schedulers.docker.containers import (
    App,
    Container,
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
from airflow_provider_launch.schedulers.docker.reconcile import (
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
"""Steps of one poll of an app; what is left is for the next poll."""
_TAKEOVER_S = 10.0
"""How long another observer's container may stay unstarted until its creator counts as dead."""
_IN_FLIGHT_S = 1.0
"""How long a start may be under way in the engine before it shows: from then on a new name does not stop it."""
_POLL_AGAIN_S, _POLL_AGAIN_MAX_S = 1.0, 600.0
"""How often a container is inspected that was never started, at first and after long."""
_START_AGAIN_S = 0.5
"""How long after a refusal without a reason a container is started again, once."""
_SOON_S = 30.0
"""How long somebody may be about to start it."""
_STOP_AGAIN_S = 60.0
_SIGKILL_CODE, _CAUSE_S, _LIMITED_CAUSE_S = 137, 0.2, 1.5
"""How long the cause of a kill may come after the end; where there is a limit of memory, it is waited for longer."""
_FOREIGN_IMAGES = 3
_KEPT_CONTAINERS = 50_000
_KILLED = {137, 143, 255}
"""Exit codes of what an engine kills when it ends or starts, or finds dead after a crash of its host."""
_DOWN_NS = 900 * 1_000_000_000
"""How long an engine may have been down until its start no longer counts as the reason of an end."""


class Observer:
    """Assesses the apps of one engine and brings them on."""

    def __init__(self, engine: Engine, catalog: Catalog, creation: Creation) -> None:
        # What can be learnt again may go, but not between two containers of one app: a triggerer lives for months.
        self.details: LRUCache[str, Detail] = LRUCache(_KEPT_CONTAINERS)
        """What was learnt of containers, by their ids."""
        self.ended_at: LRUCache[str, int] = LRUCache(_KEPT_CONTAINERS)
        """When containers with exit code 0 ended, by their ids, in epoch seconds; of others the detail shows it."""
        self._engine = engine
        self._catalog = catalog
        self._creation = creation
        self._polled_at: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        self._first_polled_at: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        """When a container was first polled."""
        self._unstarted_since: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        self._stopped_at: LRUCache[str, float] = LRUCache(_KEPT_CONTAINERS)
        self._asked: LRUCache[str, bool] = LRUCache(_KEPT_CONTAINERS)

    def assess(self, app: App, now: float, *, submitted: bool = False, made: Collection[str] = ()) -> Assessment:
        """Return how an app is and what it needs.

        Args:
            app: as the engine lists it.
            now: the engine's time in epoch seconds.
            submitted: the caller is at work on the submission.
            made: ids of containers that the caller has just created.
        """
        self.learn_of_stops([app], now)
        for container in to_inspect(app):
            # What was made in this moment has nothing to report.
            if container.id not in made:
                self.inspect(container)
        return assess(app, Plan.of(app), self.details, now, submitted=submitted)

    def learn_of_stops(self, apps: Iterable[App], now: float) -> None:
        """Learn by one request whether programs that ended with 0 did so because somebody else stopped them.

        Args:
            apps: as the engine lists them.
            now: the engine's time in epoch seconds.
        """
        ended = [container for app in apps if not Plan.of(app).accepts_stop for container in ended_well(app)]
        new = [container for container in ended if container.id not in self._asked]
        if not new:
            return
        since = min(container.created for container in new)
        try:
            stops = self._engine.stops([container.id for container in new], since, int(now) + 1)
        except SchedulerRejectedError:  # a socket that does not show events
            stops = {}
        for container in new:
            stop = stops.get(container.id)
            if stop is not None and stop.ended_at is not None:
                self.ended_at[container.id] = stop.ended_at
            if stop is not None and (stop.by or stop.restarts):
                self.inspect(container)
                if container.id in self.details:
                    known = self.details[container.id]
                    self.details[container.id] = dataclasses.replace(known, outside=stop.by, restarts=stop.restarts)
            self._asked[container.id] = True

    def learn_ends(self, app: App) -> None:
        """Learn when replicas ended of which the engine has forgotten the events, by a request for each of them."""
        for container in app.replicas():
            has_ended = not (container.live or container.unstarted)
            if has_ended and container.id not in self.details and container.id not in self.ended_at:
                self.inspect(container)

    def inspect(self, container: Container) -> None:
        """Learn the detail of a container; again while it was never started, which may change."""
        known = self.details.get(container.id)
        moment = time.monotonic()
        if known is not None:
            final = known.finished or known.error or container.kind == Kind.MARK
            waited_s = moment - self._first_polled_at.setdefault(container.id, moment)
            pause_s = _POLL_AGAIN_S if waited_s < _SOON_S else min(2 * waited_s, _POLL_AGAIN_MAX_S)
            if final or (container.unstarted and moment - self._polled_at.get(container.id, moment) < pause_s):
                return
        if container.exit_code == _SIGKILL_CODE:
            # The engine learns of the end and of its cause by two messages.
            self._let_pass(_CAUSE_S)
        try:
            document = self._engine.inspect(container.id)
            late = time.monotonic() - self._catalog.listed_at > _LIMITED_CAUSE_S
            if container.exit_code == _SIGKILL_CODE and not late and _hides_a_cause(document):
                self._let_pass(_LIMITED_CAUSE_S)
                document = self._engine.inspect(container.id)
        except NotFoundError:
            return
        detail = Detail.of(document)
        self.details[container.id] = self._noted(detail)
        self._polled_at[container.id] = moment

    def _let_pass(self, seconds: float) -> None:
        """Wait until the last list is so old: of many containers that ended together, one waits for all."""
        time.sleep(max(0.0, self._catalog.listed_at + seconds - time.monotonic()))

    def _noted(self, detail: Detail) -> Detail:
        """Add that the engine was restarted, if it was: only the time of the end shows it."""
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
        """Do what the app needs, step by step, reading it before each; return how it is then, None: it is gone.

        Args:
            app_id: the app.
            submitted: the caller is at work on the submission.
            cancelled: the caller wants it to end, and gets the error if that fails.
            mine: containers that the caller has just created.
            request: of the submission.
        """
        created = set() if mine is None else mine

        def read() -> tuple[App, Assessment] | None:
            apps, now = self._catalog.poll([app_id])
            app = apps.get(app_id)
            if app is None:
                self._give_back(created, None, keep=())
                return None
            assessment = self.assess(app, now, submitted=submitted, made=created)
            # While others are still to be created, what exists waits for them.
            wanted = app.replicas() if assessment.create else assessment.start
            self._give_back(created, app, keep=[c.id for c in wanted])
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
        """Do one step; True: poll again at once."""
        if assessment.mark is not None:
            self.set_mark(app, assessment.mark.name, assessment.mark)
            return True
        if assessment.discard:
            for_each_parallel(self._discard, assessment.discard)
            return True
        if assessment.stop:
            self._stop(assessment.stop, must_report=cancelled)
            return False
        if assessment.create:
            request = self._catalog.request(app)
            if request is not None:
                self._create(app, assessment, request, mine)
            return request is not None
        startable = [c for c in assessment.start if c.id in mine]
        for_each_parallel(lambda container: self._start(app, container), startable)
        mine -= {c.id for c in startable}
        # Of two submitters one takes over: each would only undo what the other has begun.
        others = [
            c for c in assessment.start if c not in startable and ((submitted and not c.taken) or self._overdue(c))
        ]
        self._take_over(app, others)
        return bool(others)

    def _create(self, app: App, assessment: Assessment, request: DockerRequest, mine: set[str]) -> None:
        """Create what the app needs next; what the engine refuses to an app that has begun ends it."""
        if assessment.state is AppState.SUBMITTED:
            self._creation.create_all(request, assessment.create, mine)  # the caller that submits it gets the error
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

    def _give_back(self, mine: set[str], app: App | None, keep: Iterable[str]) -> None:
        """Remove containers that this call made and that shall not start after all; what somebody has started stays."""
        listed = {container.id: container for container in app.all} if app else {}
        for container_id in mine - set(keep):
            mine.discard(container_id)
            container = listed.get(container_id)
            # The new name comes first: an observer about to start it under the old one is too late then.
            if app is None or (container is not None and container.unstarted and self._discard(container)):
                self._engine.remove(container_id, force=False)

    def _start(self, app: App, container: Container) -> None:
        refusal = self._refusal_of_start(container)
        if refusal is not None:
            # An engine that is busy for a moment refuses as well.
            time.sleep(_START_AGAIN_S)
            refusal = self._refusal_of_start(container)
        if refusal is not None:
            cause = f"{container.role}/{container.replica} could not be started: {refusal}"
            number = container.app_attempt
            self.set_mark(app, end_mark(number), EndMark(number, FAIL, cause))

    def _refusal_of_start(self, container: Container) -> SchedulerRejectedError | None:
        """Start a container; return the engine's refusal if the container itself does not show why."""
        try:
            # By name: an observer that takes the container over renames it first.
            self._engine.start(container.name)
        except (NotFoundError, TakenError):
            return None  # taken over, or being removed
        except SchedulerRejectedError as error:
            # Its inspection shows why, to everyone.
            self._polled_at.pop(container.id, None)
            self.details.pop(container.id, None)
            with contextlib.suppress(NotFoundError):
                state = self._engine.inspect(container.id)["State"]
                if state["Status"] == "created" and not start_error(state):
                    return error
        return None

    def _take_over(self, app: App, containers: list[Container]) -> None:
        """Start what others have created; their own start, if it still comes, then fails."""
        taken: list[Container] = []

        def rename(container: Container) -> None:
            name = taken_name(container, uuid.uuid4().hex[:8])
            with contextlib.suppress(NotFoundError, TakenError):  # somebody else was faster
                self._engine.rename(container.name, name)
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
        # Under a name that became free somebody may have made another one, and a start in flight may have met that.
        apps, _ = self._catalog.poll([app.app_id])
        counted = {container.id for container in apps[app.app_id].replicas()} if app.app_id in apps else set()
        for_each_parallel(start, [container for container in taken if container.id in counted])

    def _overdue(self, container: Container) -> bool:
        moment = time.monotonic()
        # A name that changes means that somebody is at work.
        since = self._unstarted_since.setdefault(container.name, moment)
        return moment - since > _TAKEOVER_S

    def _discard(self, container: Container) -> bool:
        """See that nobody starts the container any more; False: somebody else was faster."""
        try:
            self._engine.rename(container.name, discarded_name(container, uuid.uuid4().hex[:8]))
        except (NotFoundError, TakenError):
            return False
        return True

    def _stop(self, containers: list[Container], *, must_report: bool) -> None:
        moment = time.monotonic()
        due = [c for c in containers if moment - self._stopped_at.get(c.id, -_STOP_AGAIN_S) >= _STOP_AGAIN_S]

        def stop(container: Container) -> None:
            try:
                self._engine.stop(container.id)
            except AppUnavailableError as error:
                if must_report:
                    raise
                # It runs on, and that is what observers see.
                text = "container %s cannot be stopped, which is tried again in %.0f s: %s"
                log.warning(text, container.name, _STOP_AGAIN_S, error)
            self._stopped_at[container.id] = moment

        for_each_parallel(stop, due)

    def set_mark(self, app: App, mark: str, end: EndMark | None = None) -> None:
        """Write a decision into the engine, where all observers see it; the first one counts.

        Raises:
            SchedulerRejectedError: the engine has no image any more of which a container can be made.
        """
        labels = {Label.DECISION: end.decision, Label.CAUSE: end.cause} if end else {}
        name, missing = mark_name(app.app_id, mark), ""
        for image in self._images(app):
            try:
                self._engine.create(name, mark_body(image, app.app_id, mark, **labels))
            except TakenError:
                return  # somebody else decided first
            except NotFoundError as error:
                missing = str(error)
            else:
                return
        raise SchedulerRejectedError(
            f"it cannot be written down that app {app.app_id!r} ends ({missing or 'the Docker engine has no image'}); "
            f"pull any image there, and try again"
        )

    def _images(self, app: App) -> Iterator[str]:
        """Yield images for a mark, the surest first: somebody may have removed them, but not under what runs."""
        own = dict.fromkeys(c.image_id for c in sorted(app.all, key=lambda c: not c.live))
        yield from own
        # A mark is never started, so any image will do.
        yield from [image for image in self._engine.images.ids() if image not in own][:_FOREIGN_IMAGES]


def _first_image(app: App, role: str) -> str | None:
    """Return the id of the image that the first attempt of a role ran: its name may mean another one by now."""
    found = [c for (name, _), attempts in app.attempts.items() if name == role for c in attempts]
    return min(found, key=lambda c: c.created).image_id if found else None


def _hides_a_cause(document: Mapping[str, Any]) -> bool:
    """Return whether a killed container may have run out of memory, and the engine does not report it (yet)."""
    return bool((document.get("HostConfig") or {}).get("Memory")) and not document["State"].get("OOMKilled")
