"""The mixins that add workspaces to a scheduler, and the walk over a workspace on any file system."""

from __future__ import annotations

import abc
import fnmatch
import posixpath
import re
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.workspaces import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_launch.specs.roles import AppDef, Role

LAUNCH_IGNORE = ".launchignore"
TORCHX_IGNORE = ".torchxignore"
DOCKER_IGNORE = ".dockerignore"
DOCKERFILE = "Dockerfile.torchx"
"""The build file of a workspace image, in the root of the workspace; no pattern leaves it out."""
_NEVER = frozenset({".", "", DOCKERFILE})
_IGNORE_BYTES = 64 * 1024
"""Maximum size of an ignore file, whose patterns are compared with each path of the workspace."""


@dataclass(frozen=True)
class IgnoreRules:
    """The patterns that apply in one directory, and whether entries that match none are left out."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()
    """Patterns, each with whether it leaves out its matches."""
    leaves_out: bool = False

    @staticmethod
    def of(lines: Iterable[str]) -> IgnoreRules:
        """Return the rules of an ignore file: one shell pattern per line, `#` comments, `!` includes again."""
        found = []
        for line in map(str.strip, lines):
            if not line or line.startswith("#"):
                continue
            pattern = line.removeprefix("!").strip().removeprefix("./").strip("/")
            if pattern:
                found.append((re.compile(fnmatch.translate(pattern)), not line.startswith("!")))
        return IgnoreRules(tuple(found))

    def is_left_out(self, path: str) -> bool:
        """Return whether a file is left out; `path` is relative to the root, with `/`."""
        return self.inside(path).leaves_out

    def inside(self, path: str) -> IgnoreRules:
        """Return the rules within a directory: the patterns after the last one that matches it, and its own state."""
        if path in _NEVER:
            return self if path != DOCKERFILE else IgnoreRules()
        for at in range(len(self.patterns) - 1, -1, -1):
            pattern, leaves_out = self.patterns[at]
            if pattern.match(path):
                return IgnoreRules(self.patterns[at + 1 :], leaves_out)
        return self

    @property
    def keeps_nothing(self) -> bool:
        """Return whether all left-out files stay left out: no later pattern includes any again."""
        return self.leaves_out and all(leaves_out for _, leaves_out in self.patterns)


def ignore_lines(name: str, file: IO[bytes]) -> list[str]:
    """Return the lines of an ignore file.

    Raises:
        InvalidAppError: it has more than 64 KB.
    """
    data = file.read(_IGNORE_BYTES + 1)
    if len(data) > _IGNORE_BYTES:
        raise InvalidAppError(
            f"{name!r} has more than {_IGNORE_BYTES // 1024} KB; leave out whole directories in it, or copy the files "
            f"that the app needs into another directory"
        )
    return data.decode("utf-8", "surrogateescape").splitlines()


T = TypeVar("T")
PackageType = TypeVar("PackageType")
WorkspaceConfigType = TypeVar("WorkspaceConfigType")
BuildCache = dict[tuple[str, Workspace], str]
"""(image, workspace) to the image that contains the workspace."""


@dataclass
class PkgInfo(Generic[PackageType]):
    """The result of a `WorkspaceBuilder`."""

    img: str
    """The image."""
    lazy_overrides: dict[str, Any]
    metadata: PackageType


@dataclass
class WorkspaceBuilder(Generic[PackageType, WorkspaceConfigType]):
    """Builds a workspace without a launch; see `Runner.build_standalone_workspace`."""

    cfg: WorkspaceConfigType

    @abc.abstractmethod
    def build_workspace(self, sync: bool = True) -> PkgInfo[PackageType]:
        """Return the package; with `sync`, wait until it is complete."""


class WorkspaceMixin(Generic[T]):
    """Lets a scheduler build images that contain workspaces. It may stand anywhere among the base classes.

    Implement `caching_build_workspace_and_update_role`, or the older `build_workspace_and_update_role` for one
    directory. `T` is the type that `dryrun_push_images` returns and `push_images` takes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """Return the launch options for workspaces; `run_opts()` includes them."""
        return runopts()

    def build_workspaces(self, roles: Iterable[Role], cfg: Mapping[str, Any]) -> None:
        """Build the workspace of each role that has one, and set `role.image` to the result.

        Raises:
            InvalidAppError: a workspace is missing, too large, or cannot be built.
            SchedulerUnavailableError: the engine that builds cannot be reached.
        """
        build_cache: BuildCache = {}
        for role in roles:
            if role.workspace:
                self.caching_build_workspace_and_update_role(role, cfg, build_cache)

    def prepare_workspaces(self, roles: Iterable[Role], cfg: Mapping[str, Any]) -> None:
        """Prepare the workspaces at dry run: build them, unless the scheduler copies them when the app is submitted."""
        self.build_workspaces(roles, cfg)

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, Any], build_cache: MutableMapping[tuple[str, Workspace], str]
    ) -> None:
        """Build the workspace of one role and set `role.image`.

        Args:
            role: has a workspace.
            cfg: resolved options.
            build_cache: the results of this call of `build_workspaces` so far.
        """
        workspace = role.workspace
        if not workspace:
            return
        key = (role.image, workspace)
        if key not in build_cache:
            if workspace.is_unmapped_single_project():
                self.build_workspace_and_update_role(role, next(iter(workspace.projects)), cfg)
            else:
                with tempfile.TemporaryDirectory(prefix="launch-workspace-") as merged:
                    workspace.merge_into(merged)
                    self.build_workspace_and_update_role(role, merged, cfg)
            build_cache[key] = role.image
        role.image = build_cache[key]

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Build the directory `workspace` into an image and set `role.image`; the older hook."""
        raise NotImplementedError(
            f"{type(self).__name__} must override `caching_build_workspace_and_update_role` "
            f"or `build_workspace_and_update_role`"
        )

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> T:
        """Return the images that `push_images` will push, and write their future names into the roles."""
        raise NotImplementedError(f"{type(self).__name__} does not push images")

    def push_images(self, images_to_push: T) -> None:
        """Push the images that `dryrun_push_images` returned."""
        raise NotImplementedError(f"{type(self).__name__} does not push images")


def walk_workspace(
    fs: Any, path: str, ignore_name: str = LAUNCH_IGNORE
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (directory, its directories, its files) of the entries that an ignore file keeps.

    Args:
        fs: an fsspec file system.
        path: root of the workspace.
        ignore_name: the ignore file in the root; the default also reads the older `.torchxignore`.
    """
    names = (LAUNCH_IGNORE, TORCHX_IGNORE) if ignore_name == LAUNCH_IGNORE else (ignore_name,)
    rules = IgnoreRules()
    for name in names:
        file = posixpath.join(path, name)
        if fs.exists(file):
            with fs.open(file, "rb") as opened:
                rules = IgnoreRules.of(ignore_lines(file, opened))
            break
    inside = {".": rules}
    for directory, dirs, files in fs.walk(path, detail=True):
        below = posixpath.relpath(directory, path)
        own = inside.pop(below, None)
        if own is None:
            continue
        prefix = "" if below == "." else f"{below}/"
        for name in dirs:
            found = own.inside(prefix + name)
            if not found.keeps_nothing:
                inside[prefix + name] = found
        kept = {name: info for name, info in dirs.items() if not own.is_left_out(prefix + name)}
        kept_files = {name: info for name, info in files.items() if not own.is_left_out(prefix + name)}
        if not own.leaves_out or kept or kept_files:
            yield directory, kept, kept_files


class CopiedWorkspaceMixin(WorkspaceMixin[None]):
    """For schedulers that copy workspaces into the app's directory when it is submitted; nothing is built."""

    def workspace_opts(self) -> runopts:
        """Return `workspace_max_mb`."""
        opts = runopts()
        opts.add("workspace_max_mb", float, "Maximum size of a workspace, in megabytes.", default=200.0)
        return opts

    def prepare_workspaces(self, roles: Iterable[Role], cfg: Mapping[str, Any]) -> None:
        """Do nothing: the files are copied when the directory of the app is created."""

    def caching_build_workspace_and_update_role(
        self,
        role: Role,
        cfg: Mapping[str, Any],  # noqa: ARG002 - it builds nothing
        build_cache: MutableMapping[tuple[str, Workspace], str],  # noqa: ARG002 - the same
    ) -> None:
        """Refuse to build a workspace without a launch."""
        if role.workspace:
            raise UnsupportedError(
                f"role {role.name!r}: this scheduler copies a workspace when an app is launched, and cannot build one; "
                f"launch the app with its workspace"
            )
