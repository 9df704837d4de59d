"""Cache of responses about the apps of one root, invalidated by the journal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cachetools import FIFOCache

from airflow_provider_launch.schedulers.local.layout import JOURNAL
from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.local.records import Version
    from airflow_provider_launch.schedulers.responses import DescribeAppResponse
    from airflow_provider_launch.specs.roles import Role

    Files = tuple[Version, Version | None]

POLL_AGAIN_S = 1.0
"""Seconds after which a cached response is checked even without a journal line: the supervisor may have been killed."""
KEPT_ROLES = 1024
_KEPT_BYTES = 64 * 1024 * 1024
"""Maximum memory of the cached responses of all apps together, as estimated."""
_APP_BYTES, _REPLICA_BYTES = 4096, 256
_MOST_NEWS, _LONGEST_PARTIAL = 64 * 1024, 1024
"""Maximum bytes of the journal that are read: a thousand changes. If there are more, all apps are read again, which
takes as long for honest apps, while a program can write a million line ends."""


class Kept:
    """A response and the versions of the files from which it was built; with `damage`, they have this error instead."""

    __slots__ = ("damage", "files", "has_errors", "response")

    def __init__(self, files: Files, response: DescribeAppResponse, damage: str = "") -> None:
        self.files = files
        self.response = response
        self.damage = damage
        self.has_errors = False
        """Whether the error files of its replicas were read."""


class KeptResponses:
    """Cached responses of all apps. Those of ended apps do not change, and their error files can be large."""

    def __init__(self) -> None:
        self._apps: FIFOCache[str, Kept] = FIFOCache(_KEPT_BYTES, getsizeof=_memory_of)

    def get(self, app_id: str, files: Files) -> Kept | None:
        """Return the response that was built from these versions of the files."""
        found = self._apps.get(app_id)
        return found if found is not None and found.files == files else None

    def keep(self, app_id: str, kept: Kept) -> None:
        """Cache a response, or again one that has grown; the oldest entries are dropped."""
        self._apps.pop(app_id, None)
        with contextlib.suppress(ValueError):  # it is larger than the whole cache
            self._apps[app_id] = kept


def _memory_of(kept: Kept) -> int:
    texts = [
        text
        for role in kept.response.roles_statuses
        for one in role.replicas
        for text in (one.hostname, one.structured_error_msg, one.reason or "")
    ]
    # Metadata and roles are those of the record, which the cache of records may have dropped.
    record = kept.files[0][1]
    return _APP_BYTES + record + _REPLICA_BYTES * len(texts) + sum(map(len, texts))


class Observed:
    """Cached responses of live apps; one `fstat` of the journal shows whether some are out of date."""

    def __init__(self, root: str, is_supervised: Callable[[str], bool]) -> None:
        self._is_supervised = is_supervised
        self._path = f"{root}/{JOURNAL}"
        self._position = (0, 0)
        self._partial = b""
        self._answers: dict[str, tuple[float, DescribeAppResponse]] = {}
        # Read from several threads, so reading must not change the order.
        self._roles: FIFOCache[str, list[Role]] = FIFOCache(KEPT_ROLES)

    def forget_changed(self) -> None:
        """Read the new lines of the journal, and drop the apps that they name from the cache."""
        try:
            file = open_regular(self._path)
        except (FileNotFoundError, NotRegularError, PermissionError):
            # The journal is missing, or a program has replaced or closed it: trust nothing.
            self._answers.clear()
            return
        with file:
            # `fstat` of the open file, because a program may replace the file at any moment.
            status = os.fstat(file.fileno())
            inode, offset = self._position
            if inode != status.st_ino or not 0 <= status.st_size - offset <= _MOST_NEWS:
                # A new journal, so the rest of the old one was missed, or there are too many lines.
                self._answers.clear()
                self._roles.clear()
                self._position, self._partial = (status.st_ino, status.st_size), b""
                return
            if status.st_size == offset:
                return
            file.seek(offset)
            data = file.read(status.st_size - offset)
        self._position = (inode, offset + len(data))
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_LONGEST_PARTIAL:]
        for line in lines:
            app_id = line.partition(b" ")[0].decode("utf-8", "replace")
            self._answers.pop(app_id, None)
            if line.endswith(b" DELETED"):
                self._roles.pop(app_id, None)

    def get(self, app_id: str) -> DescribeAppResponse | None:
        """Return the response if it is still valid."""
        found = self._answers.get(app_id)
        if found is None:
            return None
        observed_at, answer = found
        if time.monotonic() - observed_at > POLL_AGAIN_S:
            if not self._is_supervised(app_id):
                return None
            self.keep(app_id, answer)
        return answer

    def keep(self, app_id: str, response: DescribeAppResponse) -> None:
        """Cache the response of a live app."""
        self._answers[app_id] = (time.monotonic(), response)

    def roles(self, app_id: str) -> list[Role] | None:
        """Return the roles, which never change."""
        return self._roles.get(app_id)

    def keep_roles(self, app_id: str, roles: list[Role]) -> None:
        """Cache the roles of an app; the oldest entries are dropped."""
        self._roles[app_id] = roles
