"""Access to AWS: makes the clients of a connection."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection

_POOL = 20
_ATTEMPTS = 3


@dataclass(frozen=True)
class Clients:
    """Thread-safe clients, all made together because sessions are not thread-safe."""

    batch: Any
    submit: Any
    """Sends each request once, because a repeated SubmitJob creates a second job."""
    logs: Any
    make: Callable[[str, str | None], Any]
    """Makes a client for another service, in the given Region or in the same one."""


MakeClients = Callable[["AwsBatchConnection"], Clients]


def make_clients(connection: AwsBatchConnection) -> Clients:
    """Return the clients of a connection without `aws_conn_id`.

    Raises:
        MissingDependencyError: boto3 is not installed.
        InvalidAppError: the connection has invalid values.
    """
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise MissingDependencyError(
            "the scheduler 'aws_batch' needs the package boto3; install the extra 'aws' of airflow-provider-launch"
        ) from error
    if connection.aws_conn_id:
        raise InvalidAppError(
            f"aws_conn_id={connection.aws_conn_id!r} names a connection of Airflow, which only its hook can read; "
            f"use LaunchHook, or give region_name and credentials"
        )
    try:
        session = Session(profile=connection.profile_name)
        session.register_component("data_loader", _loader())
        if connection.region_name:
            session.set_config_variable("region", connection.region_name)
        if connection.aws_access_key_id and connection.aws_secret_access_key:
            session.set_credentials(
                connection.aws_access_key_id, connection.aws_secret_access_key, connection.aws_session_token
            )
        theirs = Config(**connection.config_kwargs) if connection.config_kwargs else None
        if connection.role_arn:
            _assume(session, connection, theirs)
        return clients_of(session.create_client, connection, theirs)
    except (BotoCoreError, ValueError, TypeError) as error:
        raise InvalidAppError(
            f"AWS cannot be used with this connection: {error}; correct region_name, profile_name, config_kwargs or "
            f"the credentials"
        ) from error


@functools.cache
def _loader() -> Any:
    """Return botocore's loader of its models, which caches them, because loading is the slowest part."""
    from botocore.loaders import create_loader

    return create_loader()


def clients_of(
    create_client: Callable[..., Any],
    connection: AwsBatchConnection,
    config: Any = None,
    endpoints: Callable[[str], str | None] | None = None,
) -> Clients:
    """Return the clients of a session, whose method `create_client` has credentials and Region.

    `config` is the user's botocore config, into which ours is merged; `endpoints` returns the user's endpoint of a
    service.
    """
    from botocore.config import Config

    def client(name: str, attempts: int = _ATTEMPTS, region: str | None = None) -> Any:
        ours = Config(
            connect_timeout=min(10.0, connection.timeout_s),
            read_timeout=connection.timeout_s,
            max_pool_connections=_POOL,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            user_agent_extra="airflow-provider-launch",
            # A custom endpoint has no host name for each bucket.
            **({"s3": {"addressing_style": "path"}} if name == "s3" and connection.endpoint_url else {}),
        )
        own = connection.logs_endpoint_url if name == "logs" else None
        theirs = endpoints(name) if endpoints else None
        return create_client(
            name,
            config=config.merge(ours) if config is not None else ours,
            endpoint_url=own or connection.endpoint_url or theirs,
            **({"verify": connection.verify} if connection.verify else {}),
            **({"region_name": region} if region else {}),
        )

    return Clients(
        client("batch"), client("batch", 1), client("logs"), lambda name, region: client(name, region=region)
    )


def _assume(session: Any, connection: AwsBatchConnection, config: Any) -> None:
    """Give the session the keys of the role, which botocore renews before they expire."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    address = connection.sts_endpoint_url or connection.endpoint_url
    own = {"endpoint_url": address, "verify": connection.verify, "config": config}
    sts = {name: value for name, value in own.items() if value}
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=lambda *args, **kwargs: session.create_client(*args, **{**kwargs, **sts}),
        source_credentials=session.get_credentials(),
        role_arn=connection.role_arn,
        extra_args={
            "RoleSessionName": connection.role_session_name,
            **({"DurationSeconds": connection.role_duration_s} if connection.role_duration_s else {}),
            **({"ExternalId": connection.external_id} if connection.external_id else {}),
        },
    )
    session._credentials = DeferredRefreshableCredentials(  # noqa: SLF001 - botocore has no public way
        refresh_using=fetcher.fetch_credentials, method="assume-role"
    )


class TokenBucket:
    """Limits requests to `rate` per second, with bursts of half a second; other requests wait."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate / 2)
        self._tokens = self._most
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait until a request may be sent."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate) - 1
            self._at = now
            wait_s = max(0.0, -self._tokens / self._rate)
        if wait_s:
            time.sleep(wait_s)


_buckets: dict[tuple[Any, ...], TokenBucket] = {}
_buckets_lock = threading.Lock()


def bucket(service: str, rate: float, connection: AwsBatchConnection) -> TokenBucket:
    """Return the bucket that connections with the same credentials and Region share."""
    account = connection.aws_conn_id or connection.role_arn or connection.aws_access_key_id or connection.profile_name
    key = (service, rate, account, connection.region_name, connection.endpoint_url)
    with _buckets_lock:
        return _buckets.setdefault(key, TokenBucket(rate))
