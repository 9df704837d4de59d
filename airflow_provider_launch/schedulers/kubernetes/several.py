"""The Kubernetes scheduler of a connection with several namespaces or clusters, from which tasks choose.

Ids and handles do not name the namespace: an app is found by its record in the namespaces that the connection allows.
So the apps of a connection stay readable when it gets further namespaces. An app counts as missing only after all of
these namespaces have answered.

An id starts in one namespace only: each launch first claims it in its own namespace, and then searches for it in the
others. If two launch at the same time, at least one sees the claim of the other. It takes its own back, and tries again
after a random pause. Only a launch starts an app, so a claim that is taken back has started nothing.
"""

from __future__ import annotations

import builtins
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, ListAppResponse, LogChunk, Stream
from airflow_provider_launch.schedulers.kubernetes.catalog import selector
from airflow_provider_launch.schedulers.kubernetes.naming import APP_ID
from airflow_provider_launch.schedulers.kubernetes.record import AppRecord
from airflow_provider_launch.schedulers.responses import Answer, describe_each
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppUnavailableError,
    InvalidAppError,
    LaunchError,
    UnknownAppException,
)

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.schedulers.kubernetes.client import Cluster
    from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
    from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest
    from airflow_provider_launch.schedulers.log_streams import LogStream
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo

    class _Scheduler(Scheduler[Any]):
        """A `KubernetesScheduler` of one namespace; its module imports this one."""

        cluster: Cluster

        def missing_rights(self) -> builtins.list[str]: ...


@dataclass(frozen=True)
class Place:
    """A context and a namespace. None means that of the connection."""

    context: str | None = None
    namespace: str | None = None

    def __str__(self) -> str:
        return f"namespace {self.namespace or 'of the connection'}" + (f", context {self.context}" * bool(self.context))


def place_of(connection: KubernetesConnection, context: str | None, namespace: str | None) -> Place:
    """Return the place that a launch names, if the connection allows it."""
    given = {"context": (context, connection.contexts), "namespace": (namespace, connection.namespaces)}
    chosen = {}
    for name, (value, others) in given.items():
        own = getattr(connection, name)
        if value not in {None, own} and value not in (others or ()):
            allowed = [each for each in dict.fromkeys([own, *(others or ())]) if each is not None]
            raise InvalidAppError(
                f"option {name}={value!r}: the connection allows {', '.join(map(repr, allowed)) or 'only its own'}; "
                f"leave it out, or ask the administrator of the connection to add it to its field '{name}s'"
            )
        chosen[name] = None if value == own else value
    return Place(**chosen)


def places_of(connection: KubernetesConnection) -> list[Place]:
    """Return all places that tasks may choose, that of the connection first."""
    contexts, namespaces = connection.contexts or (), connection.namespaces or ()
    pairs = product([None, *contexts], [None, *namespaces])
    return list(dict.fromkeys(place_of(connection, context, namespace) for context, namespace in pairs))


def connection_to(connection: KubernetesConnection, place: Place) -> KubernetesConnection:
    """Return the connection to one place, from which nothing else can be chosen."""
    return replace(
        connection,
        context=place.context or connection.context,
        namespace=place.namespace or connection.namespace,
        contexts=None,
        namespaces=None,
    )


_KEPT_APPS = 5000
_ROUNDS, _PAUSE_S = 5, 0.5
"""How often a launch claims an id that another one claims at the same time, and the longest first pause."""


class _ClaimedTwiceError(AppConflictError):
    """Two launches have claimed the same id in two namespaces; this one has taken its claim back."""


class SeveralNamespaces:
    """Passes each call to the scheduler of the namespace that has the app."""

    connection: KubernetesConnection

    def use(self, schedulers: Mapping[Place, Any]) -> None:
        """Set the scheduler of each namespace."""
        self._mutex = threading.Lock()
        self._schedulers: Mapping[Place, _Scheduler] = schedulers
        self._found: LRUCache[str, _Scheduler] = LRUCache(_KEPT_APPS)
        """App to the scheduler of its namespace."""

    # ---- where an app is ---------------------------------------------------------------------------------------------

    def _distinct(self) -> Iterator[_Scheduler]:
        """Yield the scheduler of each namespace once: the connection may name its own namespace again."""
        seen = set()
        for scheduler in self._schedulers.values():
            if (address := _address(scheduler)) not in seen:
                seen.add(address)
                yield scheduler

    def _locate(self, app_ids: Iterable[str]) -> dict[str, _Scheduler | LaunchError]:
        """Find apps in all namespaces; an app that does not exist is left out.

        The error of an app: it is in two namespaces, or is not found while a namespace does not answer.
        """
        ids = [app_id for app_id in dict.fromkeys(app_ids) if APP_ID.fullmatch(app_id)]
        found, failure = self._having(ids)
        located: dict[str, _Scheduler | LaunchError] = {}
        for app_id, schedulers in found.items():
            if len(schedulers) > 1:
                names = " and ".join(repr(each.cluster.namespace) for each in schedulers)
                located[app_id] = AppConflictError(
                    f"app {app_id!r} exists in the namespaces {names}, so its state is unknown; delete the Service of "
                    f"the one that no task has launched"
                )
            elif schedulers:
                located[app_id] = schedulers[0]
            elif failure is not None:
                located[app_id] = failure
        with self._mutex:
            for app_id in ids:
                self._found.pop(app_id, None)
                at = located.get(app_id)
                if at is not None and not isinstance(at, LaunchError):
                    self._found[app_id] = at
        return located

    def _having(
        self, ids: builtins.list[str], but: tuple[str, str] | None = None
    ) -> tuple[dict[str, builtins.list[_Scheduler]], LaunchError | None]:
        """Return the schedulers of the namespaces that have each app, and the first error of a namespace."""
        found: dict[str, builtins.list[_Scheduler]] = {app_id: [] for app_id in ids}
        failure: LaunchError | None = None
        for scheduler in self._distinct() if ids else ():
            if _address(scheduler) == but:
                continue
            try:
                documents, _ = scheduler.cluster.list("services", selector(ids))
            except LaunchError as error:
                failure = failure or error
                continue
            for record in filter(None, map(AppRecord.of, documents)):
                if record.name in found:
                    found[record.name].append(scheduler)
        return found, failure

    def _search(self, app_id: str) -> _Scheduler | None:
        """Return the scheduler of the namespace that has the app now; None if the app does not exist."""
        at = self._locate([app_id]).get(app_id)
        if isinstance(at, LaunchError):
            raise at
        return at

    def _at(self, app_id: str) -> _Scheduler:
        """Return the scheduler of the namespace in which the app was last seen."""
        with self._mutex:
            at = self._found.get(app_id)
        if at is None and (at := self._search(app_id)) is None:
            raise UnknownAppException(app_id)
        return at

    # ---- submit ------------------------------------------------------------------------------------------------------

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesRequest]) -> str:
        request = dryrun_info.request
        at = self._schedulers[place_of(self.connection, request.context, request.namespace)]
        for tried in range(1, _ROUNDS + 1):
            found = self._search(request.app_id)
            if found is not None and _address(found) != _address(at):
                raise _conflict(request.app_id, at, [found])
            try:
                app_id = at.schedule(dryrun_info)
                break
            except _ClaimedTwiceError:
                if tried == _ROUNDS:
                    raise
                time.sleep(random.uniform(0, _PAUSE_S * 2**tried))  # noqa: S311 - not a secret
        with self._mutex:
            self._found[app_id] = at
        return app_id

    def checker_of(self, place: Place) -> Callable[[str], None]:
        """Return a check that refuses an id claimed in one namespace if another has it, too."""

        def check_claim(app_id: str) -> None:
            at = self._schedulers[place]
            found, failure = self._having([app_id], but=_address(at))
            if failure is not None:
                raise failure
            if found[app_id]:
                raise _conflict(app_id, at, found[app_id], _ClaimedTwiceError)

        return check_claim

    # ---- state -------------------------------------------------------------------------------------------------------

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = builtins.list(app_ids)
        with self._mutex:
            cached = {app_id: self._found[app_id] for app_id in ids if app_id in self._found}
        answers, failed = _described(cached)
        # An app that is gone may have been launched again in another namespace.
        unknown = [app_id for app_id in ids if app_id not in failed and answers.get(app_id) is None]
        located = self._locate(unknown)
        more, more_failed = _described(
            {app_id: at for app_id, at in located.items() if not isinstance(at, LaunchError)}
        )
        # A copy that a user of another namespace has made must not end the task at once: it can be deleted.
        failed |= more_failed | {
            app_id: AppUnavailableError(str(at)) if isinstance(at, AppConflictError) else at
            for app_id, at in located.items()
            if isinstance(at, LaunchError)
        }
        answers |= more
        if failed:
            if len(failed) == len(set(ids)):
                raise next(iter(failed.values()))
            texts = {app_id: str(error) for app_id, error in failed.items()}
            raise AppUnavailableError(next(iter(texts.values())), texts=texts)
        return {app_id: answers.get(app_id) for app_id in ids}

    def describe_native(self, app_id: str) -> AppDryRunInfo[KubernetesRequest] | None:
        at = self._search(app_id)
        return None if at is None else at.describe_native(app_id)

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        rows = [row for scheduler in self._distinct() for row in scheduler.list(cfg)]
        return sorted(rows, key=lambda row: row.app_id)

    def exists(self, app_id: str) -> bool:
        return self._search(app_id) is not None

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        return self._at(app_id).iter_results(app_id)

    def missing_rights(self) -> builtins.list[str]:
        """Return the missing permissions in all namespaces; nothing is created."""
        found = self._schedulers[Place()].missing_rights()
        for place, scheduler in self._schedulers.items():
            if place != Place():
                found += [f"{right} in {place}" for right in scheduler.missing_rights()]
        return found

    # ---- end ---------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._at(app_id).cancel(app_id)

    def _delete_existing(self, app_id: str) -> None:
        self._at(app_id).delete(app_id)

    def close(self) -> None:
        for scheduler in self._schedulers.values():
            scheduler.close()

    # ---- logs --------------------------------------------------------------------------------------------------------

    def read_logs(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogChunk:
        return self._at(app_id).read_logs(app_id, role_name, k, cursor, streams=streams)

    def stream_log(
        self, app_id: str, role_name: str, k: int, cursor: JsonValue = None, *, streams: Stream | None = None
    ) -> LogStream | None:
        return self._at(app_id).stream_log(app_id, role_name, k, cursor, streams=streams)

    def attempt_ending(self, app_id: str, role_name: str, k: int, attempt: int) -> str:
        return self._at(app_id).attempt_ending(app_id, role_name, k, attempt)


def _address(scheduler: _Scheduler) -> tuple[str, str]:
    return scheduler.cluster.url, scheduler.cluster.namespace


def _conflict(
    app_id: str, at: _Scheduler, others: Iterable[_Scheduler], kind: type[AppConflictError] = AppConflictError
) -> AppConflictError:
    names = " and ".join(repr(other.cluster.namespace) for other in others)
    return kind(
        f"app {app_id!r} exists in namespace {names}, and this launch names {at.cluster.namespace!r}; "
        f"nothing was started. Delete that app, or choose its namespace"
    )


def _described(
    apps: Mapping[str, _Scheduler],
) -> tuple[dict[str, DescribeAppResponse | None], dict[str, LaunchError]]:
    """Return the responses, and the errors of apps whose namespace did not answer."""
    answers: dict[str, Answer] = {}
    for scheduler in dict.fromkeys(apps.values()):
        ids = [app_id for app_id, at in apps.items() if at is scheduler]
        answers |= describe_each(scheduler.describe_many, ids, LaunchError)
    failed = {app_id: answer for app_id, answer in answers.items() if isinstance(answer, LaunchError)}
    return {app_id: answer for app_id, answer in answers.items() if not isinstance(answer, Exception)}, failed
