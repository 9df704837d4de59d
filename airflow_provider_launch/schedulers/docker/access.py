"""Connects to an engine: configures docker-py's client from a connection and checks its transport."""

from __future__ import annotations

import json
import math
import os
import socket
import ssl
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError, SchedulerRejectedError
from airflow_provider_launch.specs.secrets import masked_text
from airflow_provider_launch.util.http_answer import HttpTarget
from airflow_provider_launch.util.threads import limited
from airflow_provider_launch.util.whole_answers import LimitedResponse, beginning, limit_pools, time_limit, whole

if TYPE_CHECKING:
    from docker import APIClient
    from docker.transport.sshconn import SSHHTTPAdapter

    from airflow_provider_launch.schedulers.docker.options import DockerConnection

_KEEPALIVE_S = 30
_KEPT_CONNECTIONS = 16
_PORT, _TLS_PORT = 2375, 2376
_PING_BYTES = 1024


def connect(url: str, connection: DockerConnection) -> APIClient:
    """Return a client that has negotiated the API version with the engine.

    Raises those in `transport_errors`, in addition to errors of the connection's values.
    """
    try:
        from docker import tls
        from docker.errors import DockerException, TLSParameterError
        from docker.utils import parse_host
    except ImportError as error:
        raise MissingDependencyError(
            "the scheduler 'docker' needs the package docker; install the extra 'docker' of airflow-provider-launch"
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
        raise invalid_host(url, error) from error
    _refuse_plaintext(url, connection)
    try:
        config: Any = False
        if connection.tls_ca or connection.tls_cert:
            pair = (connection.tls_cert, connection.tls_key) if connection.tls_cert and connection.tls_key else None
            verify = connection.tls_verify is not False
            config = tls.TLSConfig(client_cert=pair, ca_cert=connection.tls_ca, verify=verify)
        client = _client(url, config, math.ceil(connection.timeout_s))
    except TLSParameterError as error:
        raise InvalidAppError(f"the TLS files of the connection cannot be used: {error}") from error
    if url.startswith(("ssh://", "unix://")):
        _share_connections(client, by_socket=url.startswith("unix://"))
    return client


def is_plaintext(url: str, connection: DockerConnection) -> bool:
    """Return whether an engine is reached over the network without TLS."""
    # A client passed by the caller may use a Unix socket.
    return not url.startswith("http+") and _address(url, connection).startswith("http://")


def _address(url: str, connection: DockerConnection) -> str:
    """Return the address as docker-py parses it."""
    from docker.utils import parse_host

    return str(parse_host(url, tls=bool(connection.tls_ca or connection.tls_cert)))


def _refuse_plaintext(url: str, connection: DockerConnection) -> None:
    """Refuse an unencrypted network connection, unless the connection permits it."""
    if not is_plaintext(url, connection):
        return
    shown = masked_text(url)
    asked = [name for name in ("tls_ca", "tls_cert", "tls_key", "tls_verify") if getattr(connection, name)]
    if os.environ.get("DOCKER_TLS_VERIFY") and not (connection.host and connection.plaintext):
        asked.append("DOCKER_TLS_VERIFY")
    if asked:
        raise InvalidAppError(
            f"{asked[0]} asks for TLS, but the Docker engine at {shown!r} would be reached without it; set the "
            f"certificate files in tls_ca, tls_cert and tls_key of the connection with a host tcp://, or use ssh://"
        )
    if not (connection.plaintext or _is_loopback(urlsplit(_address(url, connection)).hostname or "")):
        raise InvalidAppError(
            f"the Docker engine at {shown!r} would be reached over the network without encryption; set the certificate "
            f"files in tls_ca, tls_cert and tls_key of the connection, use ssh://, or permit it with plaintext"
        )
    if connection.registry_username:
        raise InvalidAppError(
            f"the Docker engine at {shown!r} is reached without encryption, so registry_password is not sent; "
            f"use TLS, ssh:// or a Unix socket"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def http_target(url: str, connection: DockerConnection) -> HttpTarget | None:
    """Return the address of the engine for a plain socket; None if the connection is not a plain socket."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return HttpTarget("localhost", unix_path=parts.path)
    if parts.scheme not in {"tcp", "http", "https"} or not parts.hostname:
        return None
    has_tls = bool(connection.tls_ca or connection.tls_cert)
    if not has_tls and parts.scheme != "https":
        return HttpTarget(parts.hostname, parts.port or _PORT)
    context = ssl.create_default_context(cafile=connection.tls_ca)
    if connection.tls_verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.tls_cert:
        context.load_cert_chain(connection.tls_cert, connection.tls_key)
    return HttpTarget(parts.hostname, parts.port or _TLS_PORT, context=context)


def invalid_host(url: str, error: Exception) -> InvalidAppError:
    """Return the error for an invalid host."""
    return InvalidAppError(
        f"host {masked_text(url)!r} of the connection is not a valid address of a Docker engine "
        f"({masked_text(str(error))}); write unix:///path, tcp://host:port or ssh://user@host"
    )


def transport_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions of failed requests and broken responses, and `others`."""
    from docker.errors import DockerException
    from requests import RequestException

    errors = (RequestException, DockerException, OSError, *others)
    # docker-py does not translate errors of paramiko, which are not OSErrors.
    paramiko = sys.modules.get("paramiko")
    return (*errors, paramiko.SSHException, EOFError) if paramiko else errors


def is_dead(client: APIClient) -> bool:
    """Return whether the ssh connection of a client has ended, which docker-py does not notice."""
    ssh = getattr(getattr(client, "_custom_adapter", None), "ssh_client", None)
    transport = ssh.get_transport() if ssh else None
    return transport is not None and not transport.is_active()


def has_no_session(error: Exception) -> bool:
    """Return whether a request by ssh was not sent because the connection has too many sessions."""
    paramiko = sys.modules.get("paramiko")
    return paramiko is not None and isinstance(error, paramiko.ChannelException)


def _share_connections(client: APIClient, *, by_socket: bool) -> None:
    """Use one pool for all requests, because docker-py has a pool per URL and sshd allows ten sessions by default."""
    adapter = getattr(client, "_custom_adapter", None)
    if adapter is None:
        return
    get = adapter.get_connection

    def shared(_url: Any, proxies: Any = None) -> Any:
        # docker-py uses the URL only as the key of its pools.
        pool = get("", proxies)
        if by_socket and "_new_conn" not in vars(pool):
            pool._new_conn = _limited_connections(pool._new_conn)  # noqa: SLF001 - no other way
        return pool

    adapter.get_connection = shared


def _limited_connections(make: Callable[[], Any]) -> Callable[[], Any]:
    def limited() -> Any:
        connection = make()
        connection.response_class = LimitedResponse
        return connection

    return limited


def _limit_proxies(adapter: Any) -> None:
    """Limit responses also on connections through a proxy, which have their own managers."""
    make = adapter.proxy_manager_for

    def limited(*args: Any, **how: Any) -> Any:
        manager = make(*args, **how)
        limit_pools(manager)
        return manager

    adapter.proxy_manager_for = limited


def _client(url: str, tls: Any, timeout_s: int) -> APIClient:
    from docker import APIClient
    from docker.errors import DockerException
    from requests.adapters import HTTPAdapter

    class Client(APIClient):
        """Uses the TLS settings of the connection; requests would override them with `REQUESTS_CA_BUNDLE`."""

        def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
            chosen = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, chosen, cert) | {"verify": chosen}

        def request(self, method: Any, url: Any, **how: Any) -> Any:  # type: ignore[override] # as it is called
            # A redirect must not send the body, which contains values of an app, to another server.
            return super().request(method, url, **{**how, "allow_redirects": False})

        def _retrieve_server_version(self) -> Any:
            if url.startswith("ssh://"):
                # Replaces docker-py's adapter, which waits without a limit and has not connected yet.
                self._custom_adapter = _ssh_adapter(url, timeout_s)
                self.mount("http+docker://ssh", self._custom_adapter)
            # Keeps requests from reading `.netrc` at each request; an engine needs no password.
            self.auth = lambda request: request
            # A compressed response could inflate without limit.
            self.headers["Accept-Encoding"] = "identity"
            for adapter in self.adapters.values():
                if isinstance(adapter, HTTPAdapter) and hasattr(adapter, "poolmanager"):
                    limit_pools(adapter.poolmanager)
                    _limit_proxies(adapter)
            # Not `/version` as in docker-py, because there the engine starts programs, which takes ten times as long.
            try:
                answer = self.get(f"{self.base_url}/_ping", timeout=self.timeout, stream=True)
                beginning(answer.iter_content(_PING_BYTES), _PING_BYTES)
                version = answer.headers.get("Api-Version") or self._version_of_document()
            except Exception as error:  # as docker-py does: each transport, such as ssh://, has its own errors
                with suppress(Exception):
                    self.close()  # it is not returned
                raise DockerException(str(error)) from error
            if "Libpod-Api-Version" in answer.headers:
                with suppress(Exception):
                    self.close()
                raise InvalidAppError(
                    f"host {masked_text(url)!r} of the connection is Podman, whose API differs from Docker's for "
                    f"starts and ends of containers; use a Docker engine"
                )
            return version

        def _version_of_document(self) -> str:
            with (
                time_limit(timeout_s),
                self.get(f"{self.base_url}/version", timeout=self.timeout, stream=True) as answer,
            ):
                document = json.loads(whole(answer.iter_content(_PING_BYTES), 1024 * _PING_BYTES))
            return str(document["ApiVersion"])

    return Client(
        base_url=url,
        version="auto",
        tls=tls,
        timeout=timeout_s,
        use_ssh_client=url.startswith("ssh://"),
        max_pool_size=_KEPT_CONNECTIONS,
    )


def _ssh_adapter(url: str, timeout_s: int) -> SSHHTTPAdapter:
    """Return docker-py's ssh transport, connected, with a timeout for each step."""
    from docker.transport.sshconn import SSHConnection, SSHConnectionPool, SSHHTTPAdapter
    from docker.utils import parse_host

    class Connection(SSHConnection):
        response_class = LimitedResponse

        def connect(self) -> None:
            transport: Any = self.ssh_transport
            session = transport.open_session(timeout=timeout_s)
            try:
                session.settimeout(timeout_s)
                limited(timeout_s, lambda: session.exec_command("docker system dial-stdio"), session.close)
            except BaseException:
                session.close()
                raise
            self.sock = session

        def close(self) -> None:
            with suppress(Exception):  # the connection may have ended; the garbage collector would print the error
                super().close()

    class Adapter(SSHHTTPAdapter):
        ssh_client: Any
        ssh_params: dict[str, Any]

        def _create_paramiko_client(self, base_url: str) -> None:
            try:
                super()._create_paramiko_client(base_url)  # type: ignore[misc] # the stubs lack it
            except Exception as error:  # the parsers do not translate their errors
                raise _broken_ssh_file(url, error) from error
            self.ssh_params.update(timeout=timeout_s, banner_timeout=timeout_s, auth_timeout=timeout_s)

        def _connect(self) -> None:
            client = self.ssh_client
            try:
                # The server may be slow at each offered key, so all keys together get three timeouts.
                limited(3 * timeout_s, lambda: client.connect(**self.ssh_params), client.close)
            except BaseException:
                client.close()
                raise
            transport = client.get_transport()
            transport.set_keepalive(_KEEPALIVE_S)
            # Otherwise its thread would outlive this adapter and all its responses.
            weakref.finalize(self, _hang_up, transport.sock).atexit = False

        def get_connection(self, url: str | bytes, proxies: Any = None) -> SSHConnectionPool:
            pool: Any = super().get_connection(url, proxies)
            pool._new_conn = lambda: Connection(pool.ssh_transport, timeout_s, pool.ssh_host)  # noqa: SLF001 - no other way
            return pool  # type: ignore[no-any-return]

    return Adapter(str(parse_host(url)), timeout_s)


def _hang_up(sock: Any) -> None:
    with suppress(OSError):
        # After a plain close the reader thread would log an error. A ProxyCommand can only be closed.
        sock.shutdown(socket.SHUT_RDWR) if hasattr(sock, "shutdown") else sock.close()


def _broken_ssh_file(url: str, error: Exception) -> SchedulerRejectedError:
    """Return the error for a file of ssh that docker-py cannot read."""
    paramiko: Any = sys.modules["paramiko"]
    name, cause = "~/.ssh/config", str(error) or type(error).__name__
    try:
        paramiko.SSHClient().load_system_host_keys()
    except Exception as again:  # noqa: BLE001 - any error means that this is the broken file
        name = "~/.ssh/known_hosts"
        if isinstance(again, paramiko.hostkeys.InvalidHostKey):
            cause = f"the key of {again.line.split()[0][:100]!r} is broken: {again.exc}"
    return SchedulerRejectedError(
        f"{name} of the user that connects to {masked_text(url)} cannot be used: {cause}; "
        f"ask the administrator of this host to fix it"
    )


def _require_ssh() -> None:
    try:
        import paramiko  # type: ignore[import-untyped] # noqa: F401 - only checks that it is installed
    except ImportError as error:
        raise MissingDependencyError(
            "a Docker engine behind ssh:// needs the package paramiko; install the extra 'ssh' of "
            "airflow-provider-launch"
        ) from error
