"""Creates the objects of a submission: images and network, then one container per replica."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.naming import Label, container_name
from airflow_provider_launch.schedulers.docker.reconcile import Attempt
from airflow_provider_launch.schedulers.docker.request import NAMELESS, DockerRequest, container_body
from airflow_provider_launch.schedulers.docker.wire import BadRequestError
from airflow_provider_launch.specs.errors import AppConflictError, InvalidAppError, LaunchError, SchedulerRejectedError
from airflow_provider_launch.util.threads import for_each_parallel

_BLAMED = (
    ("reference format", "its field image"),
    ("bind source path", "its mounts"),
    ("mount", "its mounts"),
    ("volume", "its mounts"),
    ("memory", "its resource.memMB"),
    ("cpu", "its resource.cpu"),
    ("extra host", "option extra_hosts"),
    ("add-host", "option extra_hosts"),
    ("ulimit", "option ulimits"),
    ("shm", "option shm_size_mb"),
    ("working dir", "option working_dir"),
    ("network", "option network"),
)
"""Words of the engine's message to the field or option that it is about."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NO_IMAGE = re.compile("(?:no such )?image", re.IGNORECASE)


def blamed(error: LaunchError) -> str:
    """Return the field or option that a refusal of the engine is about, and the engine's message."""
    text = str(error)
    # A quoted part is text of the user, such as a program `network-train`.
    message = _QUOTED.sub("", text.lower())
    found = next((field for words, field in _BLAMED if words in message), "its container")
    return f"{found}: {text}"


def first_attempts(request: DockerRequest) -> list[Attempt]:
    """Return the attempts that a submission starts."""
    return [(role.name, k, 0, 0) for role in request.roles for k in range(role.num_replicas)]


class Creation:
    """Creates the images, network and containers of apps on one engine; existing objects are not changed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prepare(self, request: DockerRequest) -> None:
        """Make sure that images and the network exist."""
        if request.pull == "always":
            # Not images built here, which are in no registry; their base was pulled for the build.
            for image in {role.body["Image"] for role in request.roles if not role.body["Image"].startswith("sha256:")}:
                self._engine.images.pull(image, request.platform)
        if request.network in NAMELESS:
            return
        if request.own_network:
            labels = {Label.MANAGED: "true"}
            if request.network == request.app_id:
                labels[Label.APP_ID] = request.app_id
            self._engine.networks.ensure(request.network, labels)
        elif not self._engine.networks.has(request.network):
            raise SchedulerRejectedError(
                f"the Docker engine has no network {request.network!r}; create it, or use 'launch' or 'app'"
            )

    def create_all(self, request: DockerRequest, attempts: Iterable[Attempt], mine: set[str]) -> None:
        """Create one container for each attempt; the ids of those that did not exist go into `mine`."""
        for_each_parallel(lambda attempt: self.create_one(request, attempt, mine), attempts)

    def create_one(self, request: DockerRequest, attempt: Attempt, mine: set[str], *, image: str | None = None) -> None:
        """Create the container of an attempt; its id goes into `mine` if it did not exist.

        `image` is the id of the image of the first attempt, and None in the first attempt.

        Raises:
            InvalidAppError: the engine refuses a field of the role or an option; a retry would not help.
        """
        name, k, app_attempt, number = attempt
        role = request.role(name)
        container = container_name(request.app_id, role.slug, k, app_attempt, number)
        body = container_body(request, role, k, app_attempt, number)
        if image is not None:
            body["Image"] = image
        try:
            mine.add(self.create(request, container, body))
        except BadRequestError as error:
            raise InvalidAppError(f"role {name!r}: the Docker engine refuses {blamed(error)}") from error
        except TakenError as error:
            owner = (error.labels.get(Label.APP_ID), error.labels.get(Label.SPEC_HASH))
            if owner != (request.app_id, request.spec_hash):
                raise AppConflictError(
                    f"the engine has a container {container!r} that does not belong to this app "
                    f"{request.app_id!r}; remove it, or choose another app id"
                ) from error

    def create(self, request: DockerRequest, name: str, body: Mapping[str, Any]) -> str:
        """Create a container and return its id; pulls the image if it is missing and may be pulled.

        Raises:
            TakenError: a container of that name exists.
        """
        image = body["Image"]
        try:
            return self._engine.create(name, self._without_large_labels(body), request.platform)
        except NotFoundError as error:
            # The message names the missing object, and a network may be called `image`.
            if not _NO_IMAGE.match(str(error)):
                raise SchedulerRejectedError(f"the Docker engine refuses container {name!r}: {error}") from error
            if image.startswith("sha256:") and Label.ROLE in body["Labels"]:
                named = request.role(body["Labels"][Label.ROLE]).body["Image"]
                raise SchedulerRejectedError(
                    f"the Docker engine no longer has the image {named!r} of the first attempt ({error})"
                ) from error
            if request.pull == "never":
                raise SchedulerRejectedError(
                    f"the Docker engine has no image {image!r}, and option pull is 'never' ({error}); "
                    f"load the image, or use pull='missing'"
                ) from error
        self._engine.images.pull(image, request.platform)
        try:
            return self._engine.create(name, self._without_large_labels(body), request.platform)
        except NotFoundError as error:
            raise SchedulerRejectedError(f"the Docker engine refuses container {name!r}: {error}") from error

    def _without_large_labels(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        large = self._engine.images.large_labels(body["Image"])
        return {**body, "Labels": {**dict.fromkeys(large, ""), **body["Labels"]}} if large else body

    def undo(self, request: DockerRequest, mine: set[str]) -> None:
        """Remove the objects of a refused submission; best effort, errors are ignored."""
        try:
            for_each_parallel(lambda container: self._engine.remove(container, force=False), mine)
            self._engine.remove(request.app_id)
            self._engine.networks.remove(request.network, request.app_id)
        except LaunchError:
            pass
