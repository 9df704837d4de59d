"""The local directories that replicas see as their workspace."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.paths import expanded

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_LONGEST, _SHOWN = 64 * 1024, 200
"""Maximum characters of the text of a workspace, and of the part that an error shows."""
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass
class Workspace:
    """Local paths, each with its sub-directory of the remote workspace root; an empty text means the root."""

    projects: dict[str, str]

    def __post_init__(self) -> None:
        """Turn `file://` URLs into paths, and refuse other URLs."""
        given: object = self.projects
        if not isinstance(given, Mapping):
            raise InvalidAppError(f"projects of a workspace must be a mapping of path to sub-directory, not {given!r}")
        self.projects = {_path_of(project): target for project, target in self.projects.items()}

    def __bool__(self) -> bool:
        return bool(self.projects)

    def __hash__(self) -> int:
        return hash(frozenset(self.projects.items()))

    def __str__(self) -> str:
        return ";".join(f"{path}:{target}" if target else path for path, target in self.projects.items())

    def is_unmapped_single_project(self) -> bool:
        """Return whether this is one project that becomes the root."""
        return len(self.projects) == 1 and not next(iter(self.projects.values()))

    def merge_into(self, outdir: str | Path) -> None:
        """Copy every project to its target below `outdir`.

        Directories are merged with existing ones; links stay links; modes, times and empty directories are kept.
        Nothing is written through a link in `outdir`: it is replaced.
        A project that is a file goes into the target if the target is a directory, else it becomes the target.

        Raises:
            ValueError: a target lies outside `outdir`, or below a link in it.
            FileNotFoundError: a project does not exist.
        """
        root = Path(outdir)
        for project, target in self.projects.items():
            relative = PurePosixPath(target)
            if relative.is_absolute() or ".." in relative.parts:
                msg = f"workspace target {target!r} of {project!r} is outside the workspace; give a path below it"
                raise ValueError(msg)
            source = expanded(project)
            is_dir, found = source.is_dir(), root / relative
            if not is_dir and (not target or target.endswith("/") or (found.is_dir() and not found.is_symlink())):
                relative /= source.name
            destination = root / relative
            if any((root / parent).is_symlink() for parent in relative.parents[:-1]):
                msg = f"workspace target {target!r} of {project!r} is below a link in the workspace; choose another one"
                raise ValueError(msg)
            if relative.parts and destination.is_symlink():
                destination.unlink()
            if is_dir:
                _merge_directory(source, destination, skip=root.resolve())
                continue
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, destination)

    @staticmethod
    def from_str(workspace: str | None) -> Workspace:
        """Return the workspace that a YAML text describes: one path, or a mapping of path to target.

        Raises:
            ValueError: the text is neither.
        """
        if not workspace or not workspace.strip():
            return Workspace(projects={})
        import yaml

        shown = repr(workspace if len(workspace) <= _SHOWN else f"{workspace[:_SHOWN]}...")
        if len(workspace) > _LONGEST:
            msg = f"workspace {shown} has more than {_LONGEST} characters"
            raise ValueError(msg)
        text = textwrap.dedent(workspace)
        # BaseLoader keeps every scalar as text: `~` is a path here, and a directory may be named 2024.
        try:
            # The text may come from a run: loading a deep one would exhaust the stack.
            problem = _problem(text, yaml.parse(text, Loader=yaml.BaseLoader))
            parsed = yaml.load(text, Loader=yaml.BaseLoader) if problem is None else {}  # noqa: S506 - it only makes text
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # also a number of a character that is too large
            msg = f"workspace {shown} is not valid YAML: {error}"
            raise ValueError(msg) from error
        if problem is not None:
            msg = f"workspace {shown}: {problem}"
            raise ValueError(msg)
        if isinstance(parsed, str):
            return Workspace(projects={parsed: ""})
        if not isinstance(parsed, dict):
            msg = f"workspace {shown} is neither a path nor a mapping of path to sub-directory"
            raise ValueError(msg)  # noqa: TRY004 - the text is wrong, not its type
        return Workspace(projects={path: "" if target in _NULLS else target for path, target in parsed.items()})


def _problem(text: str, events: Iterable[Any]) -> str | None:
    """Return why a workspace cannot be read: a list or mapping within another one, an alias, or an escape."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        if depth > 1 or isinstance(event, yaml.AliasEvent):
            return f"the target in line {event.start_mark.line + 1} must be one path"
        depth -= isinstance(event, yaml.CollectionEndEvent)
        # A path that a run names is recognized by its characters.
        if getattr(event, "style", None) == '"' and "\\" in text[event.start_mark.index : event.end_mark.index]:
            return f"the text in line {event.start_mark.line + 1} has an escape; use single quotes, without '\\'"
    return None


def _path_of(project: str) -> str:
    project = str(project)  # some write a `Path`
    scheme = _SCHEME.match(project)
    if scheme is None:
        return project
    if scheme[1] == "file":
        return project[scheme.end() :]
    raise InvalidAppError(
        f"workspace {project!r} is not a directory of this host; write its files into a directory, such as one of "
        f"tempfile.mkdtemp(), and give its path"
    )


def _merge_directory(source: Path, destination: Path, *, skip: Path) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            target = destination / entry.name
            # Otherwise a file of an earlier project would be written through a link; and os.symlink does not replace a
            # file, but merging twice must work.
            if target.is_symlink() or (entry.is_symlink() and target.is_file()):
                target.unlink()
            if entry.is_symlink():
                target.symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                # Otherwise an output directory inside the project would be copied into itself endlessly.
                if Path(entry.path).resolve() != skip:
                    _merge_directory(Path(entry.path), target, skip=skip)
            else:
                shutil.copy2(entry.path, target)
    shutil.copystat(source, destination)
