"""How an engine is reached: docker-py's client as a connection describes it, and what breaks under it."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError

if TYPE_CHECKING:
    from docker import APIClient

    from airflow_provider_launch.schedulers.docker.options import DockerConnection

__all__ = ["connect", "has_no_session", "is_dead", "no_address", "transport_errors"]


def connect(url: str, connection: DockerConnection) -> APIClient:
    """Return a client that has agreed with the engine on a version of the API.

    Args:
        url: of the engine.
        connection: credentials and times.

    Raises:
        InvalidAppError: the connection has values that cannot be used.
        MissingDependencyError: a package is not installed.
        Exception: one of `transport_errors`.
    """
    try:
        from docker import tls
        from docker.errors import DockerException, TLSParameterError
        from docker.utils import parse_host
    except ImportError as error:
        raise MissingDependencyError(
            "the scheduler 'docker' needs the package docker; install airflow-provider-launch[docker]"
        ) from error
    if url.startswith("ssh://"):
        _require_ssh()
    if bool(connection.tls_cert) != bool(connection.tls_key):
        raise InvalidAppError("tls_cert and tls_key of the connection belong together; give both or none")
    if bool(connection.registry_username) != bool(connection.registry_password):
        raise InvalidAppError(
            "registry_username and registry_password of the connection belong together; give both or none"
        )
    try:
        parse_host(url)
    except (DockerException, ValueError) as error:
        raise no_address(url, error) from error
    try:
        config: Any = False
        if connection.tls_ca or connection.tls_cert:
            pair = (connection.tls_cert, connection.tls_key) if connection.tls_cert and connection.tls_key else None
            config = tls.TLSConfig(client_cert=pair, ca_cert=connection.tls_ca, verify=connection.tls_verify)
        client = _client(url, config, math.ceil(connection.timeout_s))
    except TLSParameterError as error:
        raise InvalidAppError(f"the TLS files of the connection cannot be used: {error}") from error
    if url.startswith("ssh://"):
        _share_sessions(client)
    return client


def no_address(url: str, error: Exception) -> InvalidAppError:
    """Return the error for a host that is none."""
    return InvalidAppError(
        f"host {url!r} of the connection is no address of a Docker engine ({error}); "
        f"write unix:///path, tcp://host:port or ssh://user@host"
    )


def transport_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what is raised when a request or its answer does not come through, and `others`."""
    from docker.errors import DockerException
    from requests import RequestException

    known = (RequestException, DockerException, OSError, *others)
    # docker-py lets those of ssh out as they are; they are no errors of the operating system.
    paramiko = sys.modules.get("paramiko")
    return (*known, paramiko.SSHException, EOFError) if paramiko else known


def is_dead(client: APIClient) -> bool:
    """Tell whether the connection by ssh under a client has ended; docker-py would go on with it."""
    ssh = getattr(getattr(client, "_custom_adapter", None), "ssh_client", None)
    transport = ssh.get_transport() if ssh else None
    return transport is not None and not transport.is_active()


def has_no_session(error: Exception) -> bool:
    """Tell whether a request by ssh was not sent, because the server opens no more sessions on this connection."""
    paramiko = sys.modules.get("paramiko")
    return paramiko is not None and isinstance(error, paramiko.ChannelException)


def _share_sessions(client: APIClient) -> None:
    """Let all requests have the same sessions: docker-py keeps one for each URL, and sshd allows ten by default."""
    adapter = getattr(client, "_custom_adapter", None)
    if adapter is not None:
        get = adapter.get_connection
        # The URL only tells its pools apart.
        adapter.get_connection = lambda _url, proxies=None: get("", proxies)


def _client(url: str, tls: Any, timeout_s: int) -> APIClient:
    from docker import APIClient
    from docker.errors import DockerException

    class Client(APIClient):
        """Takes the connection's word on TLS; requests would let `REQUESTS_CA_BUNDLE` overrule it."""

        def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
            chosen = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, chosen, cert) | {"verify": chosen}

        def _retrieve_server_version(self) -> Any:
            # Before this, requests would look for a `.netrc` at each request; no engine asks for a password.
            self.auth = lambda request: request
            # `/version`, where docker-py looks, starts programs of the engine, which takes ten times as long.
            try:
                answer = self.get(f"{self.base_url}/_ping", timeout=self.timeout)
            except Exception as error:  # as docker-py does: each transport, such as ssh://, has errors of its own
                raise DockerException(str(error)) from error
            return answer.headers.get("Api-Version") or super()._retrieve_server_version()  # type: ignore[misc]

    return Client(base_url=url, version="auto", tls=tls, timeout=timeout_s)


def _require_ssh() -> None:
    try:
        import paramiko  # type: ignore[import-untyped] # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingDependencyError(
            "a Docker engine behind ssh:// needs the package paramiko; install docker[ssh]"
        ) from error
