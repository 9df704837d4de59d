"""Restricts the files and addresses that an app lets the worker open to those in the DAG file or in `[launch]`.

Fields of pods that variables name are restricted likewise.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import linecache
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_launch.operators.templates import is_plain_object
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.workspaces import Workspace

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef

_MOST_PARTS = 64
"""Most parts of a path that is searched in code."""


class Sources:
    """Decides which files and addresses the app of a task may name.

    Args:
        literals: the strings in the fields of the task in the DAG file. An app that is written there may name only
            these. None allows all, because no template was rendered.
        code: for an app of a function that received texts of a run: returns the strings in the code of the function.
            The app may name these, and paths that consist of them: `/opt/conf/a.yaml` of `/opt/conf` and `a.yaml`.
        is_own: a function builds the app without a text of a run, so the app may name all locations.
    """

    def __init__(
        self,
        literals: Collection[str] | None,
        code: Callable[[], Iterable[str]] | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        self._literals = literals
        self._code = code
        self._is_own = is_own

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
            origin = "the function received texts of a run"
        raise InvalidAppError(
            f"{what} names {given!r}, which is not written in {place}: {origin}, and the worker would open it with its "
            f"own rights; write it there, or have the administrator add its folder or address to allowed_app_sources "
            f"in the section launch"
        )

    def check_option(self, given: str, location: str, what: str) -> None:
        """Do the same for an option of the task, which the DAG file contains also if a function builds the app."""
        Sources(self._literals).check(given, location, what)

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
        if self._is_own or (self._literals is None and self._code is None):
            return True
        fields = [each for each in self._written if each.startswith(FIELD_PATH) and each != FIELD_PATH]
        # The rest of a field may be a value: `[FIELD_PATH]metadata.labels['{{ params.label }}']`.
        if self._code is not None:
            return any(text.startswith(each) for each in fields) or text.removeprefix(FIELD_PATH) in self._written
        return any(text == each or ("{" in each and text.startswith(each.partition("{")[0])) for each in fields)

    def _is_of_dag_file(self, location: str) -> bool:
        if self._is_own or (self._literals is None and self._code is None):
            return True
        return location in self._written or (self._code is not None and is_joined(location, self._written))

    @functools.cached_property
    def _written(self) -> Collection[str]:
        return {*(self._literals or ()), *(self._code() if self._code else ())}


def is_joined(location: str, texts: Collection[str]) -> bool:
    """Return whether a path consists of whole texts, joined by slashes."""
    path = _plain(location)
    first = {_plain(text) for text in texts}
    others = {text.strip("/") for text in first}
    ends = [*(match.start() for match in re.finditer("/", path)), len(path)]
    starts = [0]
    for start in starts if len(ends) <= _MOST_PARTS else ():
        for end in ends:
            if end > start and path[start:end] in (others if start else first):
                if end == len(path):
                    return True
                starts += [end + 1] if end + 1 not in starts else []
    return False


def _plain(path: str) -> str:
    """Return a path as a `Path` would write it: without `//`, `/./` or a slash at its end."""
    scheme, mark, rest = path.rpartition("://")
    return f"{scheme}{mark}{re.sub('/(?:[.]?/)+', '/', rest).removeprefix('./').rstrip('/')}"


def texts_of_code(function: Any) -> Iterator[str]:
    """Yield the strings that the author of a function wrote in its module, and those in variables that it sees.

    Only variables that no function changes count, because a function may put a text of a run into others.

    Args:
        function: a function, an object that can be called, or a result of `functools.partial`.
    """
    if isinstance(function, functools.partial):
        yield from _texts_of_values([*function.args, *function.keywords.values()])
        yield from texts_of_code(function.func)
        return
    function = inspect.unwrap(function)
    method = function if inspect.isroutine(function) else function.__call__
    function = getattr(method, "__func__", method)
    variables: dict[str, Any] = getattr(function, "__globals__", {})
    changed: set[str] = set()
    with contextlib.suppress(TypeError):  # a function of C has no file
        yield from texts_of_file(inspect.getsourcefile(function) or "", variables, changed)
    seen = {name: value for name, value in variables.items() if not name.startswith("__")}
    with contextlib.suppress(AttributeError, ValueError):  # not a function, or a cell is empty
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        seen.update((name, cell.cell_contents) for name, cell in cells)
    yield from _texts_of_values(value for name, value in seen.items() if name not in changed)
    yield from _texts_of_values(getattr(function, "__defaults__", None) or ())
    yield from _texts_of_values((getattr(function, "__kwdefaults__", None) or {}).values())


def texts_of_file(file: str, variables: dict[str, Any] | None = None, changed: set[str] | None = None) -> Iterator[str]:
    """Yield the strings in a Python file and the path of its folder; nothing if there is no such file.

    Args:
        file: its path.
        variables: those of the module, to read a file in a zip archive.
        changed: gets the names of variables that functions in the file change.
    """
    lines = linecache.getlines(file, variables)
    if not lines:
        return
    if Path(file).is_absolute():  # not "<stdin>"
        yield str(Path(file).parent)
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.Constant):
                yield from strings_in(node.value)
            elif isinstance(node, (ast.Global, ast.Nonlocal)) and changed is not None:
                changed.update(node.names)


def _texts_of_values(values: Iterable[Any]) -> Iterator[str]:
    """Yield the strings in values that cannot change."""
    for value in values:
        if isinstance(value, (str, PurePath, tuple, frozenset)):
            yield from strings_in(value)


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
    given, allowed = urlsplit(location), urlsplit(place)
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
