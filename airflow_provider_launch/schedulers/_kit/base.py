"""Base class of the built-in schedulers: options, connection and the checks of a dry run."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from airflow_provider_launch.schedulers._kit.overlays import refuse_unsupported_overlays
from airflow_provider_launch.schedulers._kit.refusals import refuse_pod_fields, refuse_unsupported
from airflow_provider_launch.schedulers.api import Capability, Scheduler, StructuredOpts
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.runopts import runopts

if TYPE_CHECKING:
    from typing_extensions import Self


class Connection(Protocol):
    """Options that the connection of every backend has."""

    @property
    def max_time_limit_s(self) -> float | None:
        """Return the longest `time_limit_s` of a launch."""
        ...


EVERYWHERE = frozenset(
    {
        Capability.REPLICA_RETRY,
        Capability.APPLICATION_RETRY,
        Capability.ADOPT,
        Capability.RANK0,
        Capability.PORTS,
        Capability.GPU,
        Capability.RESULT,
        Capability.ADDRESSES,
        Capability.SERVICE_ROLES,
        Capability.TIME_FILTER,
    }
)
"""The capabilities of every built-in scheduler."""

OptsT = TypeVar("OptsT", bound=StructuredOpts)
ConnectionT = TypeVar("ConnectionT", bound=Connection)
RequestT = TypeVar("RequestT")
ModelT = TypeVar("ModelT", bound=StructuredOpts)


class BuiltinScheduler(Scheduler[OptsT], Generic[OptsT, ConnectionT, RequestT]):
    """A scheduler with typed options, a typed connection and a request that is built without I/O.

    A backend sets the class attributes and implements `_build_request`, `_format_request` and `_app_slug` in addition
    to the abstract methods of `Scheduler`. Features that are not in its `capabilities` are refused here, at dry run.
    """

    name: ClassVar[str]
    """The name of the backend, as in its row of `schedulers.backends`."""

    opts_type: ClassVar[type[StructuredOpts]]
    """The options of a launch."""

    connection_type: ClassVar[type[StructuredOpts]]
    """The options of a connection; all of them have defaults."""

    app_id_pattern: ClassVar[re.Pattern[str]]
    """The ids that an app may have."""

    app_id_help: ClassVar[str]
    """The rest of the error for an invalid id: the reason and the fix, `cannot name a container; use 2 to 180 ...`."""

    needs_image: ClassVar[bool] = True
    """Whether a role without `image` is refused."""

    refusal_cures: ClassVar[Mapping[Capability, str]] = {}
    """The fix in the refusal of a capability, if there is a better one than leaving the feature out."""

    overlay_kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of overlays in `metadata[name]` of a role that are applied to its request; others are refused."""

    has_pod_fields: ClassVar[bool] = False
    """Whether a variable of a role may be a field of its pod."""

    factory_params: ClassVar[frozenset[str]] = frozenset()
    """Keywords of the factory in addition to the fields of `connection_type`."""

    needs_resource: ClassVar[bool] = False

    def __init__(self, session_name: str, connection: ConnectionT | None = None) -> None:
        super().__init__(self.name, session_name)
        self.connection: ConnectionT = connection or cast("ConnectionT", self.connection_type())
        self.max_time_limit_s = self.connection.max_time_limit_s

    @classmethod
    def create(cls, session_name: str, **kwargs: Any) -> Self:
        """Return the scheduler of a connection, without a request to its engine; see `connection_from`."""
        return cls(session_name, cast("ConnectionT", connection_from(cls.connection_type, kwargs)))

    def _run_opts(self) -> runopts:
        return self.opts_type.as_runopts()

    def _submit_dryrun(
        self, app: AppDef, cfg: OptsT | Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[RequestT]:
        opts = cast("OptsT", resolve_options(self.opts_type, cfg, strict=False))
        chosen = app_id or make_unique(self._app_slug(app.name))
        if not self._is_app_id(chosen):
            raise InvalidAppError(f"app id {chosen!r} {self.app_id_help}")
        refuse_unsupported(app, self.name, self.capabilities, needs_image=self.needs_image, cures=self.refusal_cures)
        refuse_unsupported_overlays(app, self.name, self.overlay_kinds)
        if not self.has_pod_fields:
            refuse_pod_fields(app, self.name)
        return AppDryRunInfo(self._build_request(app, opts, chosen), self._format_request)

    def _is_app_id(self, app_id: str) -> bool:
        return self.app_id_pattern.fullmatch(app_id) is not None

    @abc.abstractmethod
    def _app_slug(self, name: str) -> str:
        """Return the readable part of the ids of apps with this name; a random part is added."""

    @abc.abstractmethod
    def _build_request(self, app: AppDef, opts: OptsT, app_id: str) -> RequestT:
        """Return the request for `app`. The id was checked, and the app uses only declared capabilities."""

    @abc.abstractmethod
    def _format_request(self, request: RequestT) -> str:
        """Return the request as readable text, with secrets masked."""


def connection_from(connection_type: type[ModelT], kwargs: Mapping[str, Any]) -> ModelT:
    """Return the connection options from the keywords that all factories get; others are ignored."""
    names = {item.name for item in dataclasses.fields(connection_type)}  # type: ignore[arg-type] # all models are dataclasses
    given = {name: value for name, value in kwargs.items() if name in names}
    return resolve_options(connection_type, given, strict=True)
