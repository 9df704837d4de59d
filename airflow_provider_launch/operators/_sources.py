"""Restricts the files and addresses that an app lets the worker open to those in the DAG file or in `[launch]`.

Fields of pods that variables name are restricted likewise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.workspaces import Workspace

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef

_SHORTEST_PART = 3
"""Minimum length of the strings from a run that are searched in paths; shorter ones may be part of any path."""
_OF_PATH = r"[\w./~+%-]"
"""A character of a path."""


class Sources:
    """Decides which files and addresses the app of a task may name.

    Args:
        literals: the strings in the DAG file. An app that is written there may name only these. None allows all,
            because no template was rendered.
        foreign: for an app that a function builds: the strings from the run that the function received. The app may
            name all locations except these. None if the app is written in the DAG file.
    """

    def __init__(self, literals: Collection[str] | None, foreign: Collection[str] | None = None) -> None:
        self._literals = literals
        self._foreign = foreign

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
        raise InvalidAppError(
            f"{what} names {given!r}, which is not written in the DAG file: it came from a template, an XCom or the "
            f"configuration of a run, and the worker would open it with its own rights; write it into the DAG file, "
            f"or have the administrator add its folder or address to allowed_app_sources in the section launch"
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
        if self._foreign is not None:
            return text in (self._literals or ()) or not any(
                FIELD_PATH in _plain(each) and _shares(text, each) for each in self._foreign
            )
        # The rest of a field may be a template: `[FIELD_PATH]metadata.labels['{{ params.label }}']`.
        return self._literals is None or any(
            text == literal or ("{" in literal and text.startswith(literal.partition("{")[0]))
            for literal in self._literals
            if literal.startswith(FIELD_PATH)
        )

    def _is_of_dag_file(self, location: str) -> bool:
        if self._foreign is not None:
            return location in (self._literals or ()) or not any(_shares(location, text) for text in self._foreign)
        return self._literals is None or location in self._literals


def _shares(given: str, foreign: str) -> bool:
    """Return whether a text of an app contains a text from a run, or is a part of one, as in `--file=/path`.

    A folder is not the part of a path in it: a run may name `/project/train.py` of the workspace `/project`.
    """
    if given == foreign:
        return True
    whole, text = _plain(given).rstrip("/") or "/", _plain(foreign)
    # The value in `--dir=/a`, `dir=/a` and `-d/a`.
    parts = [text, text.partition("=")[2].strip(), text[2:] if re.match(r"-\w", text) else ""]
    if any(part == whole or (len(part) >= _SHORTEST_PART and part in whole) for part in parts):
        return True
    # A word may lead out of the folder to which a function or config adds it: `site={name: '../a'}`, `site.name=..`.
    if any(whole.startswith(word) if word[0] == "/" else ".." in word and word in whole for word in _words(text)):
        return True
    # `../../etc/a` may have become `/etc/a`; another path, or a short one, starts with a word of its own.
    is_outside = whole.startswith(("/", "../")) and len(whole) >= _SHORTEST_PART
    start = "" if is_outside else rf"(?<!{_OF_PATH})"
    ends = re.compile(rf"{start}{re.escape(whole)}(?:/\.?)*(?!{_OF_PATH})")
    return whole != "." and any(map(ends.search, parts))


def _words(text: str) -> list[str]:
    return [word for word in re.findall(rf"{_OF_PATH}+", text) if len(word) >= _SHORTEST_PART or word == ".."]


def _plain(text: str) -> str:
    """Return a text without signs that a parser adds or removes: a `$` of data is doubled in a field with macros.

    `//` and `/./` become `/`, and `./a` becomes `a`, as in a `Path`; YAML may join lines.
    """
    text = re.sub(r"\s+", " ", re.sub(r"[\\$'\"]", "", text))
    return re.sub(rf"(?<!{_OF_PATH})\./(?=.)", "", re.sub(r"/(?:\.?/)+", "/", text))


def strings_in(value: Any, seen_oids: Collection[int] = ()) -> Iterator[str]:
    """Yield all strings in a field of the operator.

    Args:
        value: the field before templates are rendered.
        seen_oids: `id()` of objects that Airflow has read from XComs; they are skipped.
    """
    if id(value) in seen_oids:
        return
    if isinstance(value, str):
        yield value
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
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "resolve"):
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
