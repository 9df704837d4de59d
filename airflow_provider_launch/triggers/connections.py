"""The connections used by the triggers of one process, each with its scheduler and poller."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.hooks.launch import LaunchHook

if TYPE_CHECKING:
    from airflow_provider_launch.connections.extras import LaunchOptions
    from airflow_provider_launch.schedulers.api import Scheduler


@dataclass
class Shared:
    """Scheduler and poller shared by all triggers of one connection."""

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
        """Return a separate scheduler for cancels; makes no request to Airflow.

        It is not blocked by a request of the poller that hangs.
        """
        with self._mutex:
            if self._for_kills is None:
                self._for_kills = self.hook.new_scheduler()
            return self._for_kills

    def close(self) -> None:
        """Close poller and schedulers."""
        self.poller.join(0.5)
        if self._for_kills is not None:
            self._for_kills.close()
        self.hook.close()


class Connections:
    """The connections in use. Called from helper threads, because reading a connection asks Airflow."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, str], Shared] = {}
        self._mutex = threading.Lock()

    def join(self, conn_id: str) -> Shared:
        """Return the shared parts of a connection; each `join` needs a `leave`.

        The connection is read each time, so that triggers do not share a scheduler across a change of it.
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
        """Join again without a request; return False if the last user has left."""
        with self._mutex:
            if shared.users == 0:
                return False
            shared.users += 1
            return True

    def leave(self, shared: Shared) -> None:
        """Leave the connection; the last user closes the scheduler."""
        with self._mutex:
            shared.users -= 1
            if shared.users:
                return
            self._shared = {key: kept for key, kept in self._shared.items() if kept is not shared}
        shared.close()
