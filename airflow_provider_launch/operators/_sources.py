"""Restricts the files and addresses that an app lets the worker open to those in the DAG file or in `[launch]`.

Fields of pods that variables name are restricted likewise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_launch.operators.templates import is_plain_object
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.workspaces import Workspace

if TYPE_CHECKING:
    from airflow_provider_launch.operators._code import Code
    from airflow_provider_launch.specs.roles import AppDef


class Sources:
    """Decides which files and addresses the app of a task may name.

    Args:
        literals: the strings in the fields of the task in the DAG file. An app that is written there may name only
            these. None allows all, because no template was rendered.
        code: the texts that a function could name which builds the app.
        folders: marks such as `.` that the file has for a folder; in `literals` they may have any meaning.
        is_free: the app of a component with arguments that are written in the DAG file may name all locations.
        are_options_built: whether the code also makes the options of the task.
    """

    def __init__(
        self,
        literals: Collection[str] | None,
        code: Code | None = None,
        *,
        folders: Collection[str] = (),
        is_free: bool = False,
        are_options_built: bool = False,
    ) -> None:
        self._are_options_built = are_options_built
        self._literals = literals
        self._folders = folders
        self._code = code
        self._is_free = is_free or (literals is None and code is None)

    def check(self, given: str, location: str, what: str) -> None:
        """Refuse a location that came from a run, unless the configuration allows it.

        Args:
            given: path or address as written in the app.
            location: path or address that would be opened.
            what: name of the field, for the error.

        Raises:
            InvalidAppError: it is not allowed.
        """
        if self._is_of_dag_file(given) or any(_is_below(location, place) for place in _allowed()):
            return
        place, origin = "the DAG file", "it came from a template, an XCom or the configuration of a run"
        if self._code is not None:
            place = "the DAG file or in the module of the function that built the app"
            origin = "the function may have it from a run"
        raise InvalidAppError(
            f"{what} names {given!r}, which is not written in {place}: {origin}, and the worker would open it with its "
            f"own rights; write it there, or have the administrator add its folder or address to allowed_app_sources "
            f"in the section launch"
        )

    def check_option(self, given: str, location: str, what: str) -> None:
        """Do the same for an option of the task, which the DAG file contains also if a function builds the app."""
        code = self._code if self._are_options_built else None
        Sources(self._literals, code, folders=self._folders).check(given, location, what)

    def check_variables(self, app: AppDef) -> None:
        """Refuse variables that a text from a run would make a field of the pod, because such a text is data.

        Raises:
            InvalidAppError: names role and variable.
        """
        for role in app.roles:
            for name, text in role.env.items():
                if str(text).startswith(FIELD_PATH) and not self._is_field_of_dag_file(text):
                    raise InvalidAppError(
                        f"role {role.name!r}: the value of variable {name} begins with {FIELD_PATH}, which stands for "
                        f"a field of the pod, and came from a template, an XCom or the configuration of a run; write "
                        f"it into the DAG file, or change the value"
                    )

    def _is_field_of_dag_file(self, text: str) -> bool:
        written = {*(self._literals or ()), *(self._code.texts if self._code else ())}
        fields = [each for each in written if each.startswith(FIELD_PATH) and each != FIELD_PATH]
        # The rest of a field may be a value: `[FIELD_PATH]metadata.labels['{{ params.label }}']`.
        if self._code is not None:
            return self._is_free or text.removeprefix(FIELD_PATH) in written or text.startswith((*fields,))
        return self._is_free or any(
            text == each or ("{" in each and text.startswith(each.partition("{")[0])) for each in fields
        )

    def _is_of_dag_file(self, location: str) -> bool:
        names = self._folders if is_mark(location) else self._literals or ()
        return self._is_free or location in names or (self._code is not None and self._code.names(location))


def is_mark(text: str) -> bool:
    """Return whether a text names no file by itself: a DAG file has many such as the empty one, `/` and `.`."""
    return not text.strip("/.~")


def folders_of(workspace: object, app: object) -> Iterator[str]:
    """Yield the directories of the workspace of a task, in any of its forms, and of those of its app.

    Not an empty text: `workspace=""` means that there is no workspace.
    """
    for value in (workspace, *(role.get("workspace") for role in roles_of(app))):
        projects = getattr(value, "projects", value)
        if isinstance(projects, str):
            found = [projects]
            with contextlib.suppress(ValueError, AttributeError):
                found += Workspace.from_str(projects).projects
        else:
            found = [*map(str, projects)] if isinstance(projects, Mapping) else []
            # In JSON, that of a role is `{"projects": {...}}`.
            own = projects.get("projects") if isinstance(projects, Mapping) else None
            found += own if isinstance(own, Mapping) else ()
        yield from filter(None, found)


def parts_of_arguments(texts: Iterable[str]) -> Iterator[str]:
    """Yield the value in each argument such as `--config_dir=conf`."""
    return (text.partition("=")[2] for text in texts if "=" in text and "{" not in text)


def roles_of(app: Any) -> list[Any]:
    """Return the fields of each role of an app, which may be a mapping; none if it is not valid."""
    roles = app.get("roles") if isinstance(app, Mapping) else getattr(app, "roles", None)
    found = roles if isinstance(roles, list) else []
    return [each if isinstance(each, Mapping) else getattr(each, "__dict__", {}) for each in found]


def strings_in(value: Any, seen_oids: Collection[int] = ()) -> Iterator[str]:
    """Yield all strings in a field of the operator.

    Args:
        value: the field before templates are rendered.
        seen_oids: `id()` of objects that Airflow has read from XComs; they are skipped.
    """
    if id(value) in seen_oids:
        return
    if isinstance(value, (str, PurePath)):
        yield (value := str(value))
        # The string may describe a workspace, by path and target.
        if ":" in value and "{" not in value:
            with contextlib.suppress(ValueError, AttributeError):
                yield from Workspace.from_str(value).projects
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from strings_in(name, seen_oids)
            yield from strings_in(each, seen_oids)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from strings_in(each, seen_oids)
    elif is_plain_object(value):
        for field in dataclasses.fields(value):
            yield from strings_in(getattr(value, field.name), seen_oids)


def _allowed() -> list[str]:
    from airflow_provider_launch._airflow import conf

    return [each.strip() for each in conf.get("launch", "allowed_app_sources", fallback="").split(",") if each.strip()]


def _is_below(location: str, place: str) -> bool:
    """Return whether a location is the allowed place or below it; links are resolved first."""
    try:
        given, allowed = urlsplit(location), urlsplit(place)
    except ValueError:
        return False
    if "::" in location:
        return False  # a chain of file systems, in which the first one fetches from any other
    if given.scheme in {"", "file"} or allowed.scheme in {"", "file"}:
        if given.scheme not in {"", "file"} or allowed.scheme not in {"", "file"} or given.netloc:
            return False
        path = unquote(given.path) if given.scheme else location
        root = Path(os.path.realpath(allowed.path if allowed.scheme else place))
        return Path(os.path.realpath(path)).is_relative_to(root)
    if (given.scheme, given.netloc) != (allowed.scheme, allowed.netloc):
        return False
    steps = unquote(given.path).split("/")
    root_steps = allowed.path.rstrip("/").split("/")
    return not {".", ".."} & {*steps} and steps[: len(root_steps)] == root_steps
