"""One attempt of a pipeline task: its input and output files, and its record."""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._airflow import AirflowSkipException
from airflow_provider_launch._task.errors import FinalAppError
from airflow_provider_launch.operators._record import NextStep, RecordStore, next_step
from airflow_provider_launch.pipelines.apps import code_folder
from airflow_provider_launch.pipelines.executors import LOCAL
from airflow_provider_launch.pipelines.folders import private_folder, remove_folder
from airflow_provider_launch.pipelines.gates import skipped
from airflow_provider_launch.pipelines.identities import (
    app_identity,
    dag_identity,
    git_identity,
    image_identities,
    provider_identity,
    with_digests,
)
from airflow_provider_launch.pipelines.ids import folder_of
from airflow_provider_launch.pipelines.objects import file_of, notebook_copy, object_names
from airflow_provider_launch.pipelines.records import KEY, AttemptRecord, appended, summary
from airflow_provider_launch.schedulers.ids import slug
from airflow_provider_launch.settings import LAUNCH_HOME
from airflow_provider_launch.specs.secret_names import is_secret_name
from airflow_provider_launch.specs.secrets import MASK, masked_document, masked_text
from airflow_provider_launch.util.paths import expanded

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.pipelines.catalog import CatalogItem, Earlier, RunCatalog
    from airflow_provider_launch.pipelines.executors import Placement
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.statuses import RoleStatus

XCOM_KEY = "attempt"
_SMALL_S = 1.0
"""Seconds after which a step on local processes is no longer small."""


class Attempt:
    """The work of a `StepOperator` besides launching, for one try."""

    def __init__(self, operator: Any, context: Context, place: Placement, record: AttemptRecord) -> None:
        self._op = operator
        self._ti = context["ti"]
        self._context = context
        self._place = place
        self._store = context.get("task_state_store")
        self._items: list[CatalogItem] = []
        self._is_app_alive = False
        self._kept: list[dict[str, Any]] | None = None
        self._save_at = math.inf
        self.record = record

    @classmethod
    def start(cls, operator: Any, context: Context, place: Placement) -> Attempt:
        """Return a new attempt."""
        return cls(operator, context, place, AttemptRecord(context["ti"].try_number, place.type, _now()))

    @classmethod
    def resume(cls, operator: Any, context: Context, place: Placement) -> Attempt:
        """Return the attempt that was deferred."""
        attempt = cls.start(operator, context, place)
        attempt.restore()
        return attempt

    def restore(self) -> None:
        """Load the record that was saved before the deferral."""
        stored = self._stored()
        self._is_app_alive = True
        record = AttemptRecord.from_json(stored[-1]) if stored else None
        if record is not None and not record.ended:
            from airflow_provider_launch.pipelines.catalog import CatalogItem

            record.data_dir = str(self._own_folder(record.data_dir) or "")
            self.record = record
            self._items = [item for item in map(CatalogItem.from_json, record.catalog) if item is not None]

    # ---- files -----------------------------------------------------------------------------------------------

    def prepare_files(self, objects: Sequence[str] = ()) -> Path | None:
        """Return the folder of the task with its input files; None if the task has no catalog and no objects.

        Args:
            objects: files of the objects that the task may read.
        """
        step = self._op.step
        keeps_notebook = bool(notebook_copy(step)) and self._place.sees_files
        if not step.catalog and not objects and not object_names(step) and not keeps_notebook:
            return None
        if self._store is None:
            raise FinalAppError(
                f"task {self._ti.task_id!r} uses files or objects of the catalog, which needs Airflow 3.3 or newer: "
                f"this Airflow cannot store which folder its app uses; pass values instead, or upgrade Airflow"
            )
        again = self._folder_in_use()
        if again is not None:
            # The app of the last try uses it.
            self._is_app_alive = True
            self.record.data_dir = str(again)
            return again
        self._remove_old_folders()
        # The name cannot be guessed, because the parent folder is open to the users of containers.
        folder = self._base() / f"{self._name()}-{len(self._stored())}-{secrets.token_hex(16)}"
        folder.mkdir(mode=0o700)
        if self._place.backend is not None and self._place.backend.in_containers:
            # The program may run as another user there.
            folder.chmod(0o777)
        self.record.data_dir = str(folder)
        self.save()
        self._copy_project(folder)
        if step.catalog.compute_data_folder:
            inner = folder / step.catalog.compute_data_folder
            inner.mkdir(parents=True, exist_ok=True)
            inner.chmod(folder.stat().st_mode)
        self._items += self._catalog().get([*step.catalog.get, *objects], folder)
        self._op.log.info("copied %d files from the catalog", len(self._items))
        return folder

    def _copy_project(self, folder: Path) -> None:
        """Copy the files of the project that the pipeline names."""
        model, step = self._op.model, self._op.step
        if step.catalog and (patterns := step.catalog.project or model.project):
            from airflow_provider_launch.pipelines.catalog import copy_project

            count = copy_project(code_folder(model, self._place.settings, step), patterns, folder)
            self._op.log.info("copied %d files of the project", count)

    def store_files(self) -> None:
        """Store the output files of a task that succeeded."""
        self._is_app_alive = False
        if self.record.data_dir:
            self._put(is_strict=True)
        elif self._store is not None and (self._op.step.catalog.put or object_names(self._op.step)):
            from airflow_provider_launch.pipelines.catalog import CatalogError

            raise CatalogError("the record of the task names no folder of this task, so its files cannot be stored")

    def _put(self, *, is_strict: bool) -> None:
        step = self._op.step
        objects = [file_of(self._ti.task_id, name) for name in object_names(step)]
        made = [name for name in (*objects, notebook_copy(step)) if name]
        items = self._catalog().put(step.catalog.put, Path(self.record.data_dir), is_strict=is_strict, files=made)
        self._items += items
        for item in items:
            self._op.log.info("stored %s, %d bytes, sha256 %s", item.name, item.size, item.sha256)

    def _catalog(self) -> RunCatalog:
        from airflow.sdk import ObjectStoragePath

        # Imported here, because most steps have no catalog.
        from airflow_provider_launch.pipelines.catalog import RunCatalog

        model = self._op.model
        where = self._op.render_template(model.catalog, self._context) or f"file://{LAUNCH_HOME('catalog')}"
        if "://" not in where:
            where = f"file://{(model.folder / where).resolve()}"
        base = ObjectStoragePath(where, conn_id=model.catalog_conn_id or None)
        return RunCatalog(
            base, self._ti.dag_id, self._ti.run_id, self._ti.task_id, self._op.scope.folders_of(self._ti.map_index),
            self._earlier(),
        )  # fmt: skip

    def _earlier(self) -> dict[str, Earlier]:
        """Return the tasks before this one that store files."""
        from airflow_provider_launch.pipelines.catalog import Earlier

        tasks = self._op.dag.task_dict
        found: dict[str, Earlier] = {}
        for task_id in self._op.get_flat_relative_ids(upstream=True):
            task = tasks[task_id]
            step = getattr(task, "step", None)
            if step is None or not (step.catalog or object_names(step) or notebook_copy(step)):
                continue
            fan_out = task.scope.fan_out
            count = cache(partial(self._element_count, fan_out))
            found[task_id] = Earlier(task.order, folder_of(fan_out), count) if fan_out else Earlier(task.order)
        # A task that ran before Clear and is skipped now still has its old files.
        plain = [task_id for task_id in found if not tasks[task_id].scope.group]
        old = skipped(self._ti, plain, -1)
        return {task_id: one for task_id, one in found.items() if task_id not in old}

    def _element_count(self, fan_out: str) -> int:
        return len(self._ti.xcom_pull(task_ids=fan_out, map_indexes=-1) or ())

    def _base(self) -> Path:
        given = self._place.settings.data_dir
        base = expanded(given) if given else LAUNCH_HOME("pipelines", "data")
        return private_folder(base, is_volume=bool(given))

    def _name(self) -> str:
        ti, run = self._ti, self._context["dag_run"]
        parts = (ti.dag_id, ti.run_id, str(run.start_date or ""), ti.task_id, str(ti.map_index))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
        return f"{slug(f'{ti.dag_id}-{ti.task_id}', 40)}-{digest}"

    def _folder_in_use(self) -> Path | None:
        """Return the folder of the last try, if this try will follow its app."""
        record = RecordStore(self._store).load()
        clears = int(getattr(self._context["dag_run"], "clear_number", 0) or 0)
        step = next_step(record, clears, int(getattr(self._ti, "max_tries", -1)), int(self._op.retries or 0))
        stored = self._stored()
        return self._own_folder(stored[-1].get("data_dir")) if stored and step is NextStep.RESUME else None

    def _own_folder(self, recorded: object) -> Path | None:
        """Return the recorded folder; None if it is not one of this task, because users can edit the record."""
        if not isinstance(recorded, str) or not recorded:
            return None
        folder = self._base() / PurePath(recorded).name
        is_own = str(folder) == recorded and folder.name.startswith(f"{self._name()}-")
        return folder if is_own and folder.is_dir() and not folder.is_symlink() else None

    def _remove_old_folders(self) -> None:
        for folder in self._base().glob(f"{self._name()}-*"):
            remove_folder(folder)

    # ---- record ----------------------------------------------------------------------------------------------

    def describe(
        self, app: AppDef, cfg: Mapping[str, Any], parameters: Mapping[str, Any], *, is_code_ours: bool
    ) -> None:
        """Record what will be launched; not the commit if a run chose `code_dir`, whose configuration git would run."""
        settings = self._place.settings
        if not is_code_ours:
            self._op.log.info("the commit of the code is not recorded, because 'code_dir' is not written in the file")
        found = [
            git_identity(code_folder(self._op.model, settings, self._op.step)) if is_code_ours else None,
            *image_identities(app),
            app_identity(app),
            dag_identity(self._ti),
            provider_identity(),
        ]
        record = self.record
        record.code = [one.to_json() for one in found if one is not None]
        # Additions of a connection are shown in the request.
        shown = {name: getattr(settings, name) for name in ("image", "env", "cpu", "gpu", "memory_mb", "replicas")}
        record.config = _masked({"conn_id": self._op.launch_conn_id, **shown, **cfg})
        record.parameters = _masked(parameters)
        self._save_at = time.monotonic() + (_SMALL_S if self._place.type == LOCAL else 0)
        self.save_running()
        self._is_app_alive = True

    def save_running(self, *, at_once: bool = False) -> None:
        """Save the record while the app runs, in case this worker is killed; of local processes not at once.

        Most small steps have ended by then, and are saved at their end. A task that is deferred reads it in another
        process, so it saves `at_once` if it has not yet.
        """
        if time.monotonic() >= self._save_at or (at_once and self._save_at < math.inf):
            self._save_at = math.inf
            self.save()

    def note_end(self, statuses: Sequence[RoleStatus]) -> None:
        """Record which images ran."""
        self.record.code = with_digests(self.record.code, statuses)

    def add_code(self, identities: Sequence[Mapping[str, Any]] | None) -> None:
        """Record further code identities; an executor may leave fields out."""
        blank = {"type": "plugin", "identifier": "", "dependable": False, "message": ""}
        self.record.code = [*self.record.code, *({**blank, **one} for one in identities or ())]

    def succeed(self, value: Mapping[str, Any], returned: Mapping[str, Any], tracked: Mapping[str, Any]) -> None:
        """Close the record after a success; `tracked` are metrics besides those that are returned."""
        metrics = {item.name for item in self._op.step.returns or () if item.kind == "metric"}
        self.record.returned = _masked(returned)
        self.record.metrics = {**tracked, **{name: returned[name] for name in returned if name in metrics}}
        self.record.handle = value["handle"]
        self.record.exit_codes = value["roles"]
        self._end(value["state"])

    @contextlib.contextmanager
    def failing_ends(self) -> Iterator[None]:
        """Close the record if the block fails."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Close the record after a failure; errors in here are only logged."""
        from airflow_provider_launch._airflow import redact

        record = self.record
        # The last lines of the app may have secrets that are known by their value alone.
        record.error = masked_text(str(redact(str(error) or type(error).__name__)))[:4000]
        status = getattr(error, "status", None)
        if status is not None:
            self._is_app_alive = False
            record.exit_codes = {
                role.role: [replica.exit_code for replica in role.replicas] for role in getattr(status, "roles", ())
            }
        if record.data_dir and not self._is_app_alive:
            # Files of a failed task may explain the failure; the original error is still the one that is raised.
            try:
                self._put(is_strict=False)
            except Exception as problem:  # noqa: BLE001 - see above
                self._op.log.warning("files of the failed task could not be stored in the catalog: %s", problem)
        with contextlib.suppress(Exception):
            skipped = isinstance(error, AirflowSkipException)
            self._end("SKIPPED" if skipped else str(getattr(status, "state", "FAILED")))

    def save(self) -> None:
        """Save the current record."""
        self.record.catalog = [item.to_json() for item in self._items]
        if self._store is not None:
            # An error in saving must not fail the task.
            with contextlib.suppress(Exception):
                if self._kept is None and self._ti.try_number == 1:
                    self._kept = []  # nothing is stored before the first try, and what reads its folder has read
                kept: Any = appended(self._stored(), self.record.to_json())
                self._store.set(KEY, kept)
                self._kept = kept

    def _end(self, state: str) -> None:
        self.record.ended, self.record.state = _now(), state
        self.save()
        if self.record.data_dir and not self._is_app_alive:
            # Otherwise the next try may follow the app; if not, it removes the folder.
            remove_folder(Path(self.record.data_dir))
        self._op.log.info("%s", summary(self.record))
        with contextlib.suppress(Exception):
            self._ti.xcom_push(XCOM_KEY, self.record.to_json())

    def _stored(self) -> list[dict[str, Any]]:
        if self._kept is None:
            # Once, because only this task writes them.
            found: Any = self._store.get(KEY, None) if self._store is not None else None
            self._kept = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        return self._kept


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


_TEXTS = (str, list, tuple, dict)


def _masked(value: Any, name: str = "") -> Any:
    """Return plain JSON with likely secrets masked."""
    from airflow_provider_launch._airflow import redact

    if name and is_secret_name(name):
        return masked_document({name: value}, by_name=True)[name] if isinstance(value, _TEXTS) else value and MASK
    if isinstance(value, Mapping):
        return {str(key): _masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(item) for item in value]
    return masked_text(str(redact(value))) if isinstance(value, str) else value
