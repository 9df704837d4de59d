"""What is on record of the apps below one root, as launchers read and write it; `layout` names the files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError

__all__ = ["Records", "can_name_an_app"]

_APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SWEEP_EVERY_S = 3600.0


def can_name_an_app(app_id: str) -> bool:
    """Tell whether the id can be the name of a directory, and of none outside the root."""
    return _APP_ID.fullmatch(app_id) is not None


class Records:
    """The directories of the apps: built, read, marked and removed.

    What cannot be read is an error, never taken for an app that does not exist.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._is_used = False

    def dir(self, app_id: str) -> str:
        """Return the directory of the app, whether it exists or not."""
        # The id comes from a handle, which anybody can write.
        return f"{self.root}/apps/{app_id if can_name_an_app(app_id) else '.none'}"

    def ids(self) -> list[str]:
        """Return the ids of all apps, sorted.

        Raises:
            SchedulerUnavailableError: the root has gone away.
        """
        with self.readable():
            try:
                return sorted(os.listdir(f"{self.root}/apps"))
            except FileNotFoundError:
                self._refuse_missing_root()
                return []

    def app(self, app_id: str) -> dict[str, Any] | None:
        """Return the request of the app, or None where there is no such app.

        Raises:
            SchedulerUnavailableError: the root has gone away.
        """
        found: dict[str, Any] | None
        with self.readable():
            found = layout.read_json(f"{self.dir(app_id)}/{layout.APP}")
        if found is not None:
            self._is_used = True
        else:
            self._refuse_missing_root()
        return found

    def state(self, app_id: str) -> dict[str, Any] | None:
        """Return what the supervisor saw last, or None where it has written nothing yet."""
        found: dict[str, Any] | None = layout.read_json(f"{self.dir(app_id)}/{layout.STATE}")
        return found

    def has_ended(self, app_id: str) -> bool:
        """Tell whether the state is final."""
        document = self.state(app_id)
        return document is not None and bool(document["final"])

    def is_supervised(self, app_id: str) -> bool:
        """Tell whether a supervisor of the app lives."""
        return processes.is_locked(f"{self.dir(app_id)}/{layout.LOCK}")

    def commit(self, app_id: str, document: dict[str, Any]) -> None:
        """Build the directory beside its place and rename it: the app exists whole or not at all.

        Nothing happens where another process was first; who asks for the app sees which one it is.
        """
        temporary = f"{self.root}/building/{app_id}.{uuid.uuid4().hex}"
        try:
            for path in (self.root, f"{self.root}/building", f"{self.root}/apps", temporary):
                os.makedirs(path, mode=0o700, exist_ok=True)
            layout.write_json(f"{temporary}/{layout.APP}", document, durable=True)
            os.rename(temporary, self.dir(app_id))
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise SchedulerRejectedError(
                    f"cannot write {self.root!r}: {error.strerror}; free or choose another root in the connection"
                ) from error

    def write_end(self, app_id: str, document: dict[str, Any]) -> None:
        """Write the final state in place of the supervisor."""
        layout.write_json(f"{self.dir(app_id)}/{layout.STATE}", document, durable=True)
        layout.append_journal(self.root, app_id, document["state"])

    def mark(self, app_id: str, name: str) -> bool:
        """Leave a mark for the supervisor; tell whether the app is still there."""
        with self.readable():
            try:
                os.close(os.open(f"{self.dir(app_id)}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except FileNotFoundError:
                return False
        return True

    def remove(self, app_id: str) -> None:
        """Remove an app that has ended."""
        with self.readable():
            layout.remove_app(self.root, self.dir(app_id))

    def sweep(self, keep_s: float) -> None:
        """Remove apps that ended more than `keep_s` seconds ago, at most once an hour for a root."""
        stamp = Path(self.root, "swept")
        now = time.time()
        if stamp.exists() and now - stamp.stat().st_mtime < _SWEEP_EVERY_S:
            return
        stamp.touch()
        for app_dir in Path(self.root, "apps").iterdir():
            # One that cannot be read or removed must not keep the others.
            with contextlib.suppress(OSError):
                if self.has_ended(app_dir.name) and now - (app_dir / layout.STATE).stat().st_mtime > keep_s:
                    layout.remove_app(self.root, str(app_dir))

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """Turn errors of the file system into what a scheduler raises."""
        try:
            yield
        except (NotADirectoryError, PermissionError) as error:
            raise SchedulerRejectedError(
                f"cannot use {self.root!r}: {error.strerror}; choose another root in the connection"
            ) from error
        except OSError as error:
            raise SchedulerUnavailableError(f"cannot use {self.root!r}: {error.strerror}") from error

    def _refuse_missing_root(self) -> None:
        # Nobody removes a root with live apps below it; an empty mount point says nothing of them.
        if self._is_used and not os.path.isdir(f"{self.root}/apps"):
            raise SchedulerUnavailableError(f"the root {self.root!r} is missing; it was there before, bring it back")
