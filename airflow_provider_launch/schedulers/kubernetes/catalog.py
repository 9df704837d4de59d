"""The apps of one namespace: reads and caches their Jobs, records and pods."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.manifests import plan_text
from airflow_provider_launch.schedulers.kubernetes.naming import APP_ID, Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.objects import App, Pod, apps_in, pods_in
from airflow_provider_launch.schedulers.kubernetes.reconcile import Assessment
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE, AppRecord, DamagedError, Plan, plan_in
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest, unpacked, variables_in
from airflow_provider_launch.specs.errors import UnknownAppException
from airflow_provider_launch.specs.states import AppState, is_terminal

_NAMED_APPS = 40
"""Maximum number of apps to select by name; for more apps, all are listed."""
_UNSTEADY_APPS = 3
_UNSTEADY_S = 10.0
"""Seconds between two reads of the pods of waiting apps, if there are more than `_UNSTEADY_APPS` apps."""
_PENDING_SHARE, _PENDING_MIN_S, _PENDING_MAX_S = 0.5, 2.0, 20.0
"""The pods of an app that waits are read again after this share of its wait, within these limits in seconds. Its start
is noticed earlier, because it changes the Jobs."""
_KEPT_APPS = 5000
_ASKED_S = 600.0
"""Apps that were requested within this many seconds stay cached, even if there are more than `_KEPT_APPS`."""
_TIDY_S = 60.0


@contextlib.contextmanager
def readable(record: AppRecord) -> Iterator[None]:
    """Raise a `DamagedError` instead of the errors that malformed annotations cause."""
    try:
        yield
    except UNREADABLE as error:
        raise DamagedError(
            f"the annotations of Service {record.name!r}, which are the record of the app, are damaged "
            f"({type(error).__name__}); restore them, or delete the app"
        ) from error


def selector(ids: list[str]) -> str:
    """Return the label selector of these apps; without ids, of all apps."""
    if not ids or len(ids) > _NAMED_APPS:
        return f"{Label.MANAGED}=true"
    return f"{Label.APP_ID}={ids[0]}" if len(ids) == 1 else f"{Label.APP_ID} in ({','.join(sorted(ids))})"


@dataclass
class CachedApp:
    """The cached facts about an app; all of them can be read again."""

    record_uid: str | None = None
    asked_at: float = float("-inf")
    request: KubernetesRequest | None = None
    plan: Plan | None = None
    pods: list[Pod] = field(default_factory=list)
    pods_of: tuple[str, ...] | None = None
    """Versions of the Jobs for which the pods were read."""
    pods_at: float = float("-inf")
    pending_since: float | None = None
    running_attempt: int | None = None
    """The last attempt of the app that was seen running."""
    wait_reason: str = ""
    """Why the app waits, from the latest events of one of its objects."""
    wait_reason_of: str = ""
    """The uid of that object."""
    wait_reason_at: float = float("-inf")
    queued: str = ""
    """Why the queue does not admit the app; empty until it was read."""
    queued_attempt: int = 0
    queued_at: float = float("-inf")
    removals_at: float = float("-inf")
    """When we last checked for pods that were removed while their programs ran."""
    final: DescribeAppResponse | None = None
    final_of: frozenset[str] = frozenset()
    """Uids of the Jobs from which `final` was computed."""
    refusal: str = ""
    """The cluster's refusal of the next step."""
    refused_at: float = float("-inf")

    def pause_s(self, state: AppState, moment: float) -> float:
        """Return the seconds between two reads of its pods if its Jobs do not change."""
        if state is not AppState.PENDING:
            self.pending_since = None
            return 0.0
        if self.pending_since is None:
            self.pending_since = moment
        waited_s = moment - self.pending_since
        return min(max(waited_s * _PENDING_SHARE, _PENDING_MIN_S), _PENDING_MAX_S)


class Catalog:
    """Reads the apps of one namespace and caches them."""

    def __init__(self, cluster: Cluster) -> None:
        self.mutex = threading.RLock()
        """Hold while listing apps and acting on the result, so that two threads do not repeat the work."""
        self._cluster = cluster
        self._cached: dict[str, CachedApp] = {}
        self._tidied_at = time.monotonic()

    def of(self, app_id: str) -> CachedApp:
        """Return the cached facts about an app."""
        cached = self._cached.setdefault(app_id, CachedApp())
        cached.asked_at = time.monotonic()
        return cached

    def jobs(self, ids: list[str]) -> tuple[dict[str, App], float]:
        """List the Jobs of these apps."""
        items, now = self._cluster.list("jobs", selector(ids))
        self._tidy()
        apps = apps_in(items)
        for app in apps.values():
            self.complete(app)
        return apps, now

    def whole_request(self, app_id: str) -> KubernetesRequest | None:
        """Return the request, with the values of its variables if the cluster still has the Jobs that store them."""
        cached = self.of(app_id)
        if cached.request is not None and not cached.request.is_whole:
            self.jobs([app_id])
        return cached.request

    def complete(self, app: App) -> None:
        """Read the values of the variables of a request from the Jobs, because the record does not have them."""
        cached = self._cached.get(app.app_id)
        if cached is None or cached.request is None or cached.request.is_whole:
            return
        for job in app.jobs.values():
            if text := job.notes.get(Annotation.REQUEST):
                with contextlib.suppress(*UNREADABLE):
                    cached.request = unpacked(text, variables_in(job.template))
                return

    def record(self, app_id: str) -> AppRecord | None:
        """Read and check the record of an app; None if the app does not exist."""
        return self.checked(self.unchecked_record(app_id))

    def unchecked_record(self, app_id: str) -> AppRecord | None:
        """Read the record of an app without a check; None if the app does not exist."""
        document = self._cluster.get("services", app_id)
        return AppRecord.of(document) if document else None

    def checked(self, record: AppRecord | None) -> AppRecord | None:
        """Check and cache a record."""
        if record is None:
            return None
        with readable(record):
            record.check()
            if self.of(record.name).record_uid != record.uid:
                # The app is new, or has the id of a deleted app.
                request = unpacked(record.annotations[Annotation.REQUEST])
                plan = plan_in(plan_text(request))
                self._cached[record.name] = CachedApp(record.uid, time.monotonic(), request, plan)
        return record

    def plan(self, app_id: str) -> Plan:
        """Return the plan of an app whose record was read."""
        plan = self.of(app_id).plan
        assert plan is not None, "the record was read"
        return plan

    def plan_for(self, app_id: str) -> Plan:
        """Return the plan of an app; raises `UnknownAppException` if the app does not exist."""
        cached = self._cached.get(app_id)
        if cached is not None and cached.plan is not None:
            return cached.plan
        if not APP_ID.fullmatch(app_id) or self.record(app_id) is None:
            raise UnknownAppException(app_id)
        return self.plan(app_id)

    def read_pods(self, apps: list[tuple[App, Assessment]]) -> None:
        """Read the pods of all apps that wait or whose Jobs have changed, with one request."""
        moment = time.monotonic()
        wanted, waiting = [], []
        is_due = False
        many = len(apps) > _UNSTEADY_APPS
        for app, assessment in apps:
            cached = self.of(app.app_id)
            pause_s = cached.pause_s(assessment.state, moment)
            # Before its release an app has no pods.
            if assessment.state in {AppState.SUBMITTED, AppState.UNKNOWN} or not app.jobs:
                continue
            jobs = [job for (_, attempt), job in app.jobs.items() if attempt == app.attempt]
            steady = is_terminal(assessment.state) or all(job.steady for job in jobs)
            if cached.pods_of != app.versions:
                wanted.append(app)
            elif not steady:
                waiting.append(app)
                is_due |= moment - cached.pods_at > (_UNSTEADY_S if many else pause_s)
        if is_due:
            # Read all of them together: a separate schedule for each app could cost a list request at each poll.
            wanted += waiting
        if not wanted:
            return
        items, _ = self._cluster.list("pods", selector([app.app_id for app in wanted]))
        pods: dict[str, list[Pod]] = {}
        for app_id, pod in pods_in(items):
            pods.setdefault(app_id, []).append(pod)
        for app in wanted:
            cached = self.of(app.app_id)
            cached.pods, cached.pods_of, cached.pods_at = pods.get(app.app_id, []), app.versions, moment

    def cached_pods(self, app_id: str, slug: str, k: int) -> list[Pod]:
        """Return the cached pods of a replica, in the order of its attempts."""
        cached = self._cached.get(app_id)
        pods = cached.pods if cached else []
        return sorted((p for p in pods if (p.role, p.replica) == (slug, k)), key=lambda pod: pod.order)

    def is_over(self, app_id: str) -> bool:
        """Return whether an app and all its pods have ended, so that no other pods will follow."""
        cached = self._cached.get(app_id)
        if cached is None or cached.final is None or not cached.pods:
            return False
        return all(pod.over or pod.exit_code is not None for pod in cached.pods)

    def current_pods(self, app_id: str, slug: str, k: int) -> list[Pod]:
        """Read the pods of a replica; raises `UnknownAppException` if the app does not exist."""
        items, _ = self._cluster.list("pods", f"{selector([app_id])},{Label.ROLE}={slug},{Label.INDEX}={k}")
        if not items and self.record(app_id) is None:
            raise UnknownAppException(app_id)
        return sorted((pod for _, pod in pods_in(items)), key=lambda pod: pod.order)

    def forget(self, app_id: str) -> None:
        """Drop a deleted app from the cache."""
        self._cached.pop(app_id, None)

    def _tidy(self) -> None:
        """Drop apps that are no longer polled from the cache: a triggerer runs for months."""
        moment = time.monotonic()
        if moment - self._tidied_at < _TIDY_S:
            return
        self._tidied_at = moment
        oldest = sorted(self._cached.items(), key=lambda item: item[1].asked_at)
        for number, (app_id, cached) in enumerate(oldest):
            if moment - cached.asked_at > _ASKED_S and len(oldest) - number > _KEPT_APPS:
                self._cached.pop(app_id, None)
            elif cached.final is not None and moment - cached.asked_at > _TIDY_S:
                # Later polls need only `final`; reading logs lists the pods again.
                cached.pods, cached.pods_of, cached.request = [], None, None
