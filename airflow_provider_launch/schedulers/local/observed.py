"""What was read of the apps of one root, as long as it is still true."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cachetools import FIFOCache

from airflow_provider_launch.schedulers.local.layout import JOURNAL
from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.responses import DescribeAppResponse
    from airflow_provider_launch.specs.roles import Role

POLL_AGAIN_S = 1.0
"""Seconds for which an answer is believed without a line in the journal: then the supervisor may have been killed."""
KEPT_ROLES = 1024
_MOST_NEWS, _LONGEST_PARTIAL = 16 * 1024 * 1024, 1024


class Observed:
    """Answers for live apps: one `fstat` of the journal shows which of them are out of date."""

    def __init__(self, root: str, is_supervised: Callable[[str], bool]) -> None:
        self._is_supervised = is_supervised
        self._path = f"{root}/{JOURNAL}"
        self._place = (0, 0)
        self._partial = b""
        self._answers: dict[str, tuple[float, DescribeAppResponse]] = {}
        # Read from several threads, so reading must not change the order.
        self._roles: FIFOCache[str, list[Role]] = FIFOCache(KEPT_ROLES)

    def forget_changed(self) -> None:
        """Read what is new in the journal, and forget the apps that it names."""
        try:
            file = open_regular(self._path)
        except (FileNotFoundError, NotRegularError, PermissionError):
            # Missing, or a program has put something else there, or closed it: nothing is known to be true.
            self._answers.clear()
            return
        with file:
            # Of what was opened: a program may exchange the file at any moment.
            status = os.fstat(file.fileno())
            inode, offset = self._place
            if inode != status.st_ino or not 0 <= status.st_size - offset <= _MOST_NEWS:
                # A new journal: the rest of the old one is not known. Or a program has made it as long as it likes.
                self._answers.clear()
                self._place, self._partial = (status.st_ino, status.st_size), b""
                return
            if status.st_size == offset:
                return
            file.seek(offset)
            data = file.read(status.st_size - offset)
        self._place = (inode, offset + len(data))
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_LONGEST_PARTIAL:]
        for line in lines:
            app_id = line.partition(b" ")[0].decode("utf-8", "replace")
            self._answers.pop(app_id, None)
            if line.endswith(b" DELETED"):
                self._roles.pop(app_id, None)

    def get(self, app_id: str) -> DescribeAppResponse | None:
        """Return the answer if it is still true."""
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
        """Keep the answer for a live app."""
        self._answers[app_id] = (time.monotonic(), response)

    def roles(self, app_id: str) -> list[Role] | None:
        """Return the roles, which never change."""
        return self._roles.get(app_id)

    def keep_roles(self, app_id: str, roles: list[Role]) -> None:
        """Keep the roles of the apps that were asked for last."""
        self._roles[app_id] = roles
