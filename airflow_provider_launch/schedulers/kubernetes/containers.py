"""The init containers and sidecars of a pod, read from its status, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a container that only waits for its turn."""
_LINES, _TEXT = 5, 300
MAX_MESSAGE = 4096
"""Characters of a message that are kept: messages of registries, webhooks and nodes have no limit."""


@dataclass(frozen=True)
class SideContainer:
    """An init container or a sidecar."""

    name: str
    is_init: bool
    """Whether it starts before `main`, as an init container or native sidecar."""
    is_native: bool
    """Whether it is a native sidecar, which Kubernetes stops after `main`."""
    running: bool
    exit_code: int | None
    reason: str
    """The runtime's reason for its wait or end."""
    message: str
    """Its last lines if it has failed, or the runtime's message about its wait."""
    started: float | None
    finished: float | None

    @property
    def has_started(self) -> bool:
        """Whether it has a log."""
        return self.running or self.exit_code is not None

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{'init container' if self.is_init and not self.is_native else 'container'} {self.name!r}"

    @property
    def outlives(self) -> bool:
        """Whether it keeps the pod running after `main` has ended."""
        return self.running and not self.is_init

    @property
    def end(self) -> str:
        """How it failed."""
        if self.reason == "OOMKilled":
            return f"{self.title} out of memory (exit code {self.exit_code})"
        return f"{self.title} exit code {self.exit_code}"

    @property
    def last_lines(self) -> str:
        """The last lines that it wrote, joined into one."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return " / ".join(lines[-_LINES:])[-_TEXT:]


def side_containers(spec: Mapping[str, Any], status: Mapping[str, Any], main: str) -> tuple[SideContainer, ...]:
    """Return the containers of a pod except `main`, init containers first."""
    native = {one["name"] for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"}
    init = [_container(one, is_init=True, native=native) for one in status.get("initContainerStatuses") or []]
    others = [one for one in status.get("containerStatuses") or [] if one["name"] != main]
    return (*init, *(_container(one, is_init=False, native=native) for one in others))


def _container(document: Mapping[str, Any], *, is_init: bool, native: set[str]) -> SideContainer:
    state = document.get("state") or {}
    running, ended, waiting = (state.get(name) for name in ("running", "terminated", "waiting"))
    # A container that was restarted after a failure has the failure in its last state.
    last = (document.get("lastState") or {}).get("terminated") or {}
    current = ended or waiting or {}
    text = current.get("message", "") or last.get("message", "")
    if waiting and waiting.get("reason") == "CrashLoopBackOff":
        text = last.get("message", "") or text  # why it failed, instead of how long it waits
    return SideContainer(
        name=document["name"],
        is_init=is_init,
        is_native=document["name"] in native,
        running=running is not None,
        exit_code=ended.get("exitCode") if ended else None,
        reason=current.get("reason", ""),
        # The last lines of a program are at its end.
        message=text[-MAX_MESSAGE:],
        started=epoch((ended or running or {}).get("startedAt")),
        finished=epoch((ended or {}).get("finishedAt")),
    )


def wait_among(containers: Iterable[SideContainer]) -> tuple[str, str]:
    """Return reason and message if another container keeps `main` from starting, else two empty texts."""
    for one in containers:
        if not one.is_init:
            continue
        # Until it starts again, a native sidecar that has failed is shown as ended (1.33) or as waiting (later).
        has_failed = one.is_native and bool(one.exit_code)
        if (has_failed or not one.has_started) and one.reason not in STARTING:
            return one.reason, f"{one.title}: {one.message}"
        if one.running and not one.is_native:
            since = datetime.fromtimestamp(one.started or 0.0, timezone.utc)
            # Each change of this text is logged, so show the start time instead of the elapsed seconds.
            return f"{one.title} runs since {since:%H:%M:%S} UTC", ""
    return "", ""


def failed_among(containers: Iterable[SideContainer]) -> SideContainer | None:
    """Return the container that failed first; None if none failed. The end of a native sidecar does not count."""
    failed = [one for one in containers if one.exit_code and not one.is_native]
    return min(failed, key=lambda one: one.finished or 0.0, default=None)


def epoch(text: str | None) -> float | None:
    """Return the epoch seconds of an RFC 3339 time in UTC; None for None and for the runtime's "never"."""
    if not text or text.startswith(("0001", "1970-01-01T00:00:00")):
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
