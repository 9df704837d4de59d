"""The connections in use by the triggers of one process: scheduler and poller of each."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.hooks.launch import LaunchHook

if TYPE_CHECKING:
    from airflow_provider_launch.hooks.extras import LaunchOptions
    from airflow_provider_launch.schedulers.api import Scheduler


@dataclass
class Shared:
    """What all triggers of one connection use."""

    hook: LaunchHook
    poller: Poller
    users: int = 0
    _for_kills: Scheduler[Any] | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> LaunchOptions:
        """The content of the connection."""
        return self.hook.options

    @property
    def scheduler(self) -> Scheduler[Any]:
        """Its scheduler."""
        return self.hook.scheduler

    def for_kills(self) -> Scheduler[Any]:
        """Return another scheduler of the connection, which asks Airflow nothing.

        A request of the pollers that hangs does not keep it busy.
        """
        with self._mutex:
            if self._for_kills is None:
                self._for_kills = self.hook.new_scheduler()
            return self._for_kills

    def close(self) -> None:
        """Free both."""
        self.poller.join(0.5)
        if self._for_kills is not None:
            self._for_kills.close()
        self.hook.close()


class Connections:
    """Connections in use. Called from helper threads: reading a connection asks Airflow."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, str], Shared] = {}
        self._mutex = threading.Lock()

    def join(self, conn_id: str) -> Shared:
        """Return what the triggers of a connection share; each `join` needs its `leave`.

        The connection is read each time: two that were changed in between do not share a scheduler.
        """
        hook = LaunchHook.for_connection(conn_id)
        options = hook.options
        key = (conn_id, repr((options.backend, sorted(options.params.items(), key=str))))
        with self._mutex:
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = Shared(hook, Poller(hook.scheduler))
            shared.users += 1
            return shared

    def keep(self, shared: Shared) -> bool:
        """Join again what is still in use, without a request; False: its last user has gone."""
        with self._mutex:
            if shared.users == 0:
                return False
            shared.users += 1
            return True

    def leave(self, shared: Shared) -> None:
        """Go; the last one closes the scheduler."""
        with self._mutex:
            shared.users -= 1
            if shared.users:
                return
            self._shared = {key: kept for key, kept in self._shared.items() if kept is not shared}
        shared.close()
