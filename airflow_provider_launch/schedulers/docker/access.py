"""How an engine is reached: docker-py's client as a connection describes it, and what breaks under it."""

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
    """Return a client that has agreed with the engine on a version of the API.

    Args:
        url: of the engine.
        connection: credentials and times.

    Raises:
        InvalidAppError: the connection has values that cannot be used.
        MissingDependencyError: a package is not installed.
        SchedulerRejectedError: the files of ssh on this host cannot be used.
        Exception: one of `transport_errors`.
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
        raise no_address(url, error) from error
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
    """Return whether an engine is reached by a network connection without TLS."""
    # A client that was given may be at a Unix socket.
    return not url.startswith("http+") and _address(url, connection).startswith("http://")


def _address(url: str, connection: DockerConnection) -> str:
    """Return the address as docker-py understands it."""
    from docker.utils import parse_host

    return str(parse_host(url, tls=bool(connection.tls_ca or connection.tls_cert)))


def _refuse_plaintext(url: str, connection: DockerConnection) -> None:
    """Refuse to send anything unencrypted, unless the connection permits it.

    Raises:
        InvalidAppError: it does not.
    """
    if not is_plaintext(url, connection):
        return
    asked = [name for name in ("tls_ca", "tls_cert", "tls_key", "tls_verify") if getattr(connection, name)]
    if os.environ.get("DOCKER_TLS_VERIFY") and not (connection.host and connection.plaintext):
        asked.append("DOCKER_TLS_VERIFY")
    if asked:
        raise InvalidAppError(
            f"{asked[0]} asks for TLS, and the Docker engine at {url!r} would be reached without it; name the files of "
            f"certificates in tls_ca, tls_cert and tls_key of the connection with a host tcp://, or use ssh://"
        )
    if not (connection.plaintext or _is_loopback(urlsplit(_address(url, connection)).hostname or "")):
        raise InvalidAppError(
            f"the Docker engine at {url!r} would be reached over the network without encryption; name the files of "
            f"certificates in tls_ca, tls_cert and tls_key of the connection, use ssh://, or permit it with plaintext"
        )
    if connection.registry_username:
        raise InvalidAppError(
            f"the Docker engine at {url!r} is reached without encryption, and registry_password is not sent that way; "
            f"use TLS, ssh:// or a Unix socket"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def http_target(url: str, connection: DockerConnection) -> HttpTarget | None:
    """Return where the engine listens; None: not at a socket that can be waited for.

    Raises:
        OSError: a file of the connection cannot be read.
    """
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


def no_address(url: str, error: Exception) -> InvalidAppError:
    """Return the error for an invalid host."""
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
    """Return whether the connection by ssh under a client has ended; docker-py would go on with it."""
    ssh = getattr(getattr(client, "_custom_adapter", None), "ssh_client", None)
    transport = ssh.get_transport() if ssh else None
    return transport is not None and not transport.is_active()


def has_no_session(error: Exception) -> bool:
    """Return whether a request by ssh was not sent, because the server opens no more sessions on this connection."""
    paramiko = sys.modules.get("paramiko")
    return paramiko is not None and isinstance(error, paramiko.ChannelException)


def _share_connections(client: APIClient, *, by_socket: bool) -> None:
    """Let all requests have the same connections: docker-py keeps some for each URL, and sshd allows ten by default."""
    adapter = getattr(client, "_custom_adapter", None)
    if adapter is None:
        return
    get = adapter.get_connection

    def shared(_url: Any, proxies: Any = None) -> Any:
        # The URL only distinguishes its pools.
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
    """Do the same for connections by a proxy, which come from managers of their own."""
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
        """Takes the connection's word on TLS; requests would let `REQUESTS_CA_BUNDLE` overrule it."""

        def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
            chosen = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, chosen, cert) | {"verify": chosen}

        def request(self, method: Any, url: Any, **how: Any) -> Any:  # type: ignore[override] # as it is called
            # The body of a request holds the values of an app: no answer sends them elsewhere.
            return super().request(method, url, **{**how, "allow_redirects": False})

        def _retrieve_server_version(self) -> Any:
            if url.startswith("ssh://"):
                # In place of docker-py's own, which waits without a limit; that one has not connected.
                self._custom_adapter = _ssh_adapter(url, timeout_s)
                self.mount("http+docker://ssh", self._custom_adapter)
            # Before this, requests would search for a `.netrc` at each request; no engine asks for a password.
            self.auth = lambda request: request
            # What is compressed may inflate without an end.
            self.headers["Accept-Encoding"] = "identity"
            for adapter in self.adapters.values():
                if isinstance(adapter, HTTPAdapter) and hasattr(adapter, "poolmanager"):
                    limit_pools(adapter.poolmanager)
                    _limit_proxies(adapter)
            # `/version`, where docker-py asks, starts programs of the engine, which takes ten times as long.
            try:
                answer = self.get(f"{self.base_url}/_ping", timeout=self.timeout, stream=True)
                beginning(answer.iter_content(_PING_BYTES), _PING_BYTES)
                version = answer.headers.get("Api-Version") or self._version_of_document()
            except Exception as error:  # as docker-py does: each transport, such as ssh://, has errors of its own
                with suppress(Exception):
                    self.close()  # nobody gets it
                raise DockerException(str(error)) from error
            if "Libpod-Api-Version" in answer.headers:
                with suppress(Exception):
                    self.close()
                raise InvalidAppError(
                    f"host {url!r} of the connection is Podman, whose API differs from that of Docker where apps begin "
                    f"and end; name a Docker engine"
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
    """Return docker-py's transport by ssh, with a limit of time for each of its steps, connected."""
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
            with suppress(Exception):  # of a connection that has ended; the garbage collector would print it
                super().close()

    class Adapter(SSHHTTPAdapter):
        ssh_client: Any
        ssh_params: dict[str, Any]

        def _create_paramiko_client(self, base_url: str) -> None:
            try:
                super()._create_paramiko_client(base_url)  # type: ignore[misc] # the stubs lack it
            except Exception as error:  # the parsers let out what they meet
                raise _broken_ssh_file(url, error) from error
            self.ssh_params.update(timeout=timeout_s, banner_timeout=timeout_s, auth_timeout=timeout_s)

        def _connect(self) -> None:
            client = self.ssh_client
            try:
                # The server may be silent at each key that is offered: all of them together have one limit more.
                limited(3 * timeout_s, lambda: client.connect(**self.ssh_params), client.close)
            except BaseException:
                client.close()
                raise
            transport = client.get_transport()
            transport.set_keepalive(_KEEPALIVE_S)
            # Its thread would live as long as the server does, after nobody has this adapter or an answer by it.
            weakref.finalize(self, _hang_up, transport.sock).atexit = False

        def get_connection(self, url: str | bytes, proxies: Any = None) -> SSHConnectionPool:
            pool: Any = super().get_connection(url, proxies)
            pool._new_conn = lambda: Connection(pool.ssh_transport, timeout_s, pool.ssh_host)  # noqa: SLF001 - no other way
            return pool  # type: ignore[no-any-return]

    return Adapter(str(parse_host(url)), timeout_s)


def _hang_up(sock: Any) -> None:
    with suppress(OSError):
        # After a plain close the thread that reads would log an error. What a ProxyCommand gives can only be closed.
        sock.shutdown(socket.SHUT_RDWR) if hasattr(sock, "shutdown") else sock.close()


def _broken_ssh_file(url: str, error: Exception) -> SchedulerRejectedError:
    """Return the error for what docker-py's reading of the files of ssh has met."""
    paramiko: Any = sys.modules["paramiko"]
    name, cause = "~/.ssh/config", str(error) or type(error).__name__
    try:
        paramiko.SSHClient().load_system_host_keys()
    except Exception as again:  # noqa: BLE001 - whatever it is: this is the file
        name = "~/.ssh/known_hosts"
        if isinstance(again, paramiko.hostkeys.InvalidHostKey):
            cause = f"the key of {again.line.split()[0][:100]!r} is broken: {again.exc}"
    return SchedulerRejectedError(
        f"{name} of the user that connects to {url} cannot be used: {cause}; "
        f"ask the administrator of this host to correct or remove what is broken in it"
    )


def _require_ssh() -> None:
    try:
        import paramiko  # type: ignore[import-untyped] # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingDependencyError(
            "a Docker engine behind ssh:// needs the package paramiko; install the extra 'ssh' of "
            "airflow-provider-launch"
        ) from error
