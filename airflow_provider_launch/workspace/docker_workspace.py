"""Workspaces for schedulers with container images: built on a Docker engine and pushed to a registry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.workspace.api import (
    DOCKER_IGNORE,
    DOCKERFILE,
    LAUNCH_IGNORE,
    TORCHX_IGNORE,
    WorkspaceMixin,
)
from airflow_provider_launch.workspace.files import WorkspaceFiles

if TYPE_CHECKING:
    from typing import IO

    from airflow_provider_launch.specs.roles import AppDef, Role
    from airflow_provider_launch.specs.workspaces import Workspace

log = logging.getLogger(__name__)

TORCHX_DOCKERFILE = DOCKERFILE
IMAGE_LABEL = "launch.io/workspace"
"""Label of every workspace image; its value is the digest of the image's inputs."""
_DEFAULT_DOCKERFILE = b"ARG IMAGE\nFROM $IMAGE\nCOPY workspace/ .\n"
_DEFAULT_NAME = "Dockerfile"
_IGNORE_NAMES = (DOCKER_IGNORE, LAUNCH_IGNORE, TORCHX_IGNORE)
# Imported by name, because the schedulers import this module.
_BUILDS = "airflow_provider_launch.schedulers.docker.images"
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_ID = "sha256:"


class ImageBuilds(Protocol):
    """The build and push calls of a Docker engine; errors are those of this package."""

    def image_id(self, image: str) -> str | None:
        """Return the id `sha256:...` of an image; None if the engine does not have it."""

    def pull(self, image: str, platform: str | None) -> None:
        """Pull an image."""

    def build(self, context: IO[bytes], query: Mapping[str, Any], *, quiet: bool) -> None:
        """Build an image from a packed directory."""

    def push(self, image: str, repository: str, tag: str) -> None:
        """Push an image under a name, unless the registry has it."""


class ImageRepoMissingError(InvalidAppError, KeyError):
    """There is no registry for a workspace image."""

    # KeyError would show the text as a quoted literal.
    def __str__(self) -> str:
        return str(self.args[0])


class DockerWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Builds each workspace into an image on top of the role's image; `Dockerfile.torchx` in it describes the build.

    Images are identified by a digest of their inputs, so an unchanged workspace is neither built nor pushed again.

    Args:
        *args: for the next base.
        docker_client: client of docker-py for the engine that builds. None: the engine of the option `build_host`.
        **kwargs: for the next base.
    """

    _docker_client: Any = None

    def __init__(self, *args: Any, docker_client: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._docker_client = docker_client

    def workspace_opts(self) -> runopts:
        """Return `image_repo`, `build_host`, `quiet` and `workspace_max_mb`."""
        opts = runopts()
        opts.add("image_repo", str, "Repository, with its registry, to which workspace images are pushed.")
        opts.add("build_host", str, "Docker engine that builds. None means `DOCKER_HOST`, or the default socket.")
        opts.add("quiet", bool, "Whether the output of builds is left out of the log.", default=False)
        opts.add("workspace_max_mb", float, "Maximum size of a workspace, in megabytes.", default=200.0)
        return opts

    # ---- build ---------------------------------------------------------------------------------------------------

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, Any], build_cache: MutableMapping[tuple[str, Workspace], str]
    ) -> None:
        """Set `role.image` to the `sha256:...` id of the image with the workspace; build it if the engine lacks it."""
        workspace = role.workspace
        if not workspace:
            return
        key = (role.image, workspace)
        if key not in build_cache:
            build_cache[key] = self._build(role, workspace, cfg)
        role.image = build_cache[key]

    def _build(self, role: Role, workspace: Workspace, cfg: Mapping[str, Any]) -> str:
        if role.image in {"", NONE}:
            raise InvalidAppError(
                f"role {role.name!r} has a workspace but no image to build on; name one that can run its program"
            )
        files = WorkspaceFiles.of(workspace, _IGNORE_NAMES)
        files.check_size(cfg.get("workspace_max_mb"))
        builds, platform = self._image_builds(cfg), cfg.get("platform")
        base = builds.image_id(role.image)
        if base is None or cfg.get("pull") == "always":
            if cfg.get("pull") == "never":
                raise SchedulerRejectedError(
                    f"the Docker engine that builds does not have image {role.image!r}, and option pull is 'never'; "
                    f"load it there, or use pull='missing'"
                )
            builds.pull(role.image, platform)
            base = builds.image_id(role.image) or role.image
        digest = hashlib.sha256(f"{base} {platform} {files.digest()}".encode()).hexdigest()[:32]
        name = f"launch-workspace:{digest}"
        built = builds.image_id(name)
        if built is None:
            with _build_lock(digest):
                built = builds.image_id(name)
                if built is None:
                    log.info("%s; building %s on %s", files, name, role.image)
                    self._send(builds, files, role.image, name, digest, cfg)
                    built = builds.image_id(name)
        else:
            log.info("%s; unchanged since %s was built", files, name)
        if built is None:
            raise InvalidAppError(f"the image {name} of {files} was removed right after its build; launch again")
        return built

    def _send(
        self, builds: ImageBuilds, files: WorkspaceFiles, image: str, name: str, digest: str, cfg: Mapping[str, Any]
    ) -> None:
        import json

        own = DOCKERFILE in files.entries
        arguments = {"IMAGE": image, "WORKSPACE": files.name}
        query: dict[str, Any] = {
            "t": name,
            "dockerfile": DOCKERFILE if own else _DEFAULT_NAME,
            "buildargs": json.dumps(arguments if own else {"IMAGE": image}),
            "labels": json.dumps({IMAGE_LABEL: digest}),
            "rm": "1",
            "forcerm": "1",
        }
        if platform := cfg.get("platform"):
            query["platform"] = platform
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as context:
            try:
                if own:
                    files.pack(context)
                else:
                    files.pack(context, "workspace/", {_DEFAULT_NAME: _DEFAULT_DOCKERFILE})
            except OSError as error:
                raise InvalidAppError(
                    f"{files} cannot be packed: {error.strerror} ({error.filename}); "
                    f"correct its permissions, or leave the file out by {LAUNCH_IGNORE}"
                ) from error
            context.seek(0)
            builds.build(context, query, quiet=bool(cfg.get("quiet")))

    # ---- push ----------------------------------------------------------------------------------------------------

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Return image to (repository, tag) of the images to push, and write these names into the roles.

        Raises:
            ImageRepoMissingError: there are images to push, but the option `image_repo` is not set.
        """
        found: dict[str, tuple[str, str]] = {}
        repository = cfg.get("image_repo")
        for role in app.roles:
            if not role.image.startswith(_ID):
                continue
            if not repository:
                raise _repository_missing(role)
            tag = role.image.removeprefix(_ID)
            found[role.image] = (str(repository), tag)
            role.image = f"{repository}:{tag}"
        if found:
            self._push_host = cfg.get("build_host")
        return found

    _push_host: str | None = None

    def push_images(self, images_to_push: Mapping[str, tuple[str, str]]) -> None:
        """Push images; content that the registry already has is not sent again.

        Raises:
            SchedulerRejectedError: the registry refuses, or the engine cannot reach it.
        """
        if not images_to_push:
            return
        builds = self._image_builds({"build_host": self._push_host})
        for image, (repository, tag) in images_to_push.items():
            builds.push(image, repository, tag)

    # ---- engine --------------------------------------------------------------------------------------------------

    def _image_builds(self, cfg: Mapping[str, Any]) -> ImageBuilds:
        """Return the engine that builds; the same object for the same host."""
        host = cfg.get("build_host")
        known: dict[str | None, ImageBuilds] = self.__dict__.setdefault("_known_builds", {})
        if host not in known:
            made: ImageBuilds = importlib.import_module(_BUILDS).connect_builds(host, self._docker_client)
            known[host] = made
        return known[host]


def refuse_no_repository(app: AppDef, cfg: Mapping[str, Any]) -> None:
    """Refuse workspaces whose images cannot be pushed anywhere, before they are built.

    Raises:
        ImageRepoMissingError: a role has a workspace, but the option `image_repo` is not set.
    """
    for role in app.roles:
        if role.workspace and not cfg.get("image_repo"):
            raise _repository_missing(role)


def _repository_missing(role: Role) -> ImageRepoMissingError:
    return ImageRepoMissingError(
        f"role {role.name!r} has a workspace, whose image must be pushed to a registry for the replicas; "
        f"set the option image_repo, such as 'registry.example/team/launch'"
    )


@contextlib.contextmanager
def _build_lock(digest: str) -> Iterator[None]:
    """Let the processes of this host build an image one after the other; the first build is enough for all."""
    path = Path(tempfile.gettempdir()) / f"launch-builds-{os.geteuid()}"
    with contextlib.ExitStack() as opened:
        try:
            directory = _own_directory(path)
            opened.callback(os.close, directory)
            file = _own_file(digest, directory)
            opened.callback(os.close, file)
        except OSError as error:
            raise SchedulerRejectedError(
                f"the folder {str(path)!r}, with locks for builds on this host, cannot be used: "
                f"{error.strerror or error}; remove it, or set TMPDIR to a folder of your own"
            ) from error
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(digest, dir_fd=directory)


def _own_file(name: str, directory: int) -> int:
    """Open a file, created if missing; refuse a link or pipe, which another process may have put there.

    Raises:
        OSError: it is not a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, f"{name!r} in it is not a regular file")
    return file


def _own_directory(path: Path) -> int:
    """Open a folder, created if missing; refuse one that another user owns or can write.

    Raises:
        OSError: it is not such a folder.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(directory)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(directory)
        owner = f"it belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
        raise PermissionError(errno.EACCES, f"{owner}, so another user could change it")
    return directory
