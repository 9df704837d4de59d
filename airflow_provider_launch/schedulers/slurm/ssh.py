"""Runs scripts over ssh: in shells that stay open, with a frame around each answer."""

from __future__ import annotations

import base64
import contextlib
import functools
import getpass
import io
import random
import shlex
import socket
import threading
import time
import uuid
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.slurm.transport import ANSWER_BYTES, Answer, AnswerTooLargeError
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    MissingDependencyError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.util.threads import limited

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.options import SlurmConnection

_SHELLS = 4
"""Maximum number of shells: sshd allows ten sessions per connection by default, and closed ones may linger."""
_KEEPALIVE_S = 30
_PAUSES_S = (0.2, 0.5, 1.0)
"""Pauses between attempts to connect to a server with too many logins."""
_CONNECT_LIMITS = 3
"""Time limit for a whole connect, as a multiple of the limit of one step."""
_RECV_BYTES = 256 * 1024
_LOGIN_BYTES, _CODE_BYTES, _ERROR_BYTES = 1024 * 1024, 10, 4 * 1024 * 1024
"""Maximum bytes of the output of login files, of an exit code, and of error texts."""


class SshTransport:
    """Runs scripts on a login node, over one connection that is opened on demand."""

    def __init__(self, connection: SlurmConnection) -> None:
        self._connection = connection
        self.host = f"login node {connection.ssh_host}"
        self._free = threading.Semaphore(_SHELLS)
        # Reads of logs that hang must not delay the states of apps.
        self._free_to_wait = threading.Semaphore(_SHELLS // 2)
        self._mutex = threading.Lock()
        self._clients: list[Any] = []
        self._idle: list[_Shell] = []

    def run(self, script: str, *args: str, stdin: bytes = b"", timeout_s: float, can_wait: bool = False) -> Answer:
        """Run a script to its end; see `Transport`."""
        if not can_wait:
            return self._run(script, args, stdin, timeout_s)
        began = time.monotonic()
        if not self._free_to_wait.acquire(timeout=timeout_s):
            raise SchedulerUnavailableError(f"{self.host}: logs were not read within {timeout_s:g} s")
        try:
            return self._run(script, args, stdin, max(1.0, timeout_s - (time.monotonic() - began)))
        finally:
            self._free_to_wait.release()

    def _run(self, script: str, args: tuple[str, ...], stdin: bytes, timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        if not self._free.acquire(timeout=timeout_s):
            raise SchedulerUnavailableError(f"{self.host}: {_SHELLS} commands have not ended within {timeout_s:g} s")
        try:
            while True:
                shell, is_used = self._shell()
                try:
                    answer = shell.run(script, args, stdin, deadline)
                except _ClosedError as error:
                    shell.close()
                    if is_used:
                        continue  # the server has closed the connection meanwhile; scripts may be run again
                    raise SchedulerUnavailableError(f"{self.host} closed the connection: {error}") from error
                except TimeoutError as error:
                    shell.close()
                    # Other shells of a silent connection would hang, too.
                    self._disconnect()
                    raise SchedulerUnavailableError(f"{self.host} has not answered within {timeout_s:g} s") from error
                except _EndlessError as error:
                    shell.close()
                    raise AnswerTooLargeError(self.host) from error
                except BaseException:
                    shell.close()  # its answer must not be read later
                    raise
                with self._mutex:
                    self._idle.append(shell)
                return answer
        finally:
            self._free.release()

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        self._disconnect()

    def _disconnect(self) -> None:
        with self._mutex:
            clients, self._clients, self._idle = self._clients, [], []
        for client in reversed(clients):
            with contextlib.suppress(Exception):  # of a connection that has ended
                client.close()

    def _shell(self) -> tuple[_Shell, bool]:
        """Return a shell, and whether it was used before."""
        with self._mutex:
            if self._idle:
                return self._idle.pop(), True
        paramiko = _paramiko()
        for is_last in (False, True):
            transport = self._transport()
            try:
                limit_s = self._connection.timeout_s
                channel = transport.open_session(timeout=limit_s)
                channel.settimeout(limit_s)
                # A server may accept a session and then stop answering, so limit the time.
                limited(limit_s, functools.partial(channel.exec_command, "exec /bin/sh"), channel.close)
                return _Shell(channel, limit_s), False
            except (paramiko.SSHException, OSError, EOFError) as error:
                # A closed connection is first noticed here.
                self._disconnect()
                if is_last:
                    raise SchedulerUnavailableError(f"{self.host} does not open a session: {error}") from error
        raise AssertionError("unreachable")

    def _transport(self) -> Any:
        with self._mutex:
            transport = self._clients[-1].get_transport() if self._clients else None
            if transport is not None and transport.is_active():
                return transport
            self._clients, self._idle = [], []
            self._clients = self._connect_with_retries()
            return self._clients[-1].get_transport()

    def _connect_with_retries(self) -> list[Any]:
        for pause_s in _PAUSES_S:
            try:
                return self._connect()
            except _DroppedError:
                # Vary the pause: many tasks that start together are refused together.
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        return self._connect()

    def _connect(self) -> list[Any]:
        where = self._connection
        host = where.ssh_host or ""
        user = where.ssh_user or getpass.getuser()
        if not where.ssh_jump_host:
            sock = self._socket(host, where.ssh_port)
            return [self._client(sock, host, where.ssh_port, user, where.ssh_host_key)]
        jump_user, jump, jump_port = _split_address(where.ssh_jump_host, user)
        first = self._client(self._socket(jump, jump_port), jump, jump_port, jump_user, where.ssh_jump_host_key)
        paramiko = _paramiko()
        try:
            way = first.get_transport().open_channel(
                "direct-tcpip", (host, where.ssh_port), ("127.0.0.1", 0), timeout=where.timeout_s
            )
            return [first, self._client(way, host, where.ssh_port, user, where.ssh_host_key)]
        except paramiko.SSHException as error:
            first.close()
            raise SchedulerUnavailableError(f"{jump} cannot connect to {self.host}: {error}") from error
        except BaseException:
            first.close()
            raise

    def _socket(self, host: str, port: int) -> socket.socket:
        try:
            sock = socket.create_connection((host, port), self._connection.timeout_s)
        except OSError as error:
            raise SchedulerUnavailableError(f"cannot connect to {host}:{port}: {error}") from error
        # Requests are small, so do not delay them until the answer to the previous one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _client(self, sock: Any, host: str, port: int, user: str, host_key: str | None) -> Any:
        paramiko = _paramiko()
        where = self._connection
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        name = host if port == 22 else f"[{host}]:{port}"  # noqa: PLR2004 - as known_hosts spells them
        limit = where.timeout_s
        try:
            if host_key:
                known = _host_key(name, host_key)
                client.get_host_keys().add(name, known.key.get_name(), known.key)
            else:
                client.load_system_host_keys()
            key = _private_key(where.ssh_key_secret, where.ssh_key_password) if where.ssh_key_secret else None
            if where.ssh_key_file:
                _check_key_file(where.ssh_key_file, where.ssh_key_password)
            is_given = key is not None or where.ssh_key_file is not None or where.ssh_password is not None
            connect = functools.partial(
                client.connect,
                host,
                port,
                username=user,
                sock=sock,
                pkey=key,
                key_filename=where.ssh_key_file,
                passphrase=where.ssh_key_password,
                password=where.ssh_password,
                allow_agent=not is_given,
                look_for_keys=not is_given,
                timeout=limit,
                banner_timeout=limit,
                auth_timeout=limit,
                channel_timeout=limit,
            )
            # Each step has a limit, but a server can prolong the login by many steps.
            limited(_CONNECT_LIMITS * limit, connect, client.close)
        except BaseException as error:
            client.close()
            sock.close()
            raise self._explained(error, host, user) from error
        transport = client.get_transport()
        transport.set_keepalive(_KEEPALIVE_S)
        # Without this the reader thread would outlive this object, as long as the server stays connected.
        weakref.finalize(self, _end, transport.sock).atexit = False
        return client

    def _explained(self, error: BaseException, host: str, user: str) -> BaseException:
        paramiko = _paramiko()
        if isinstance(error, paramiko.BadHostKeyException):
            return SchedulerRejectedError(
                f"{host} has another host key than expected; check the server, then the key in the connection"
            )
        if isinstance(error, paramiko.AuthenticationException):
            return SchedulerRejectedError(
                f"{host} refuses user {user!r}: {error}; check key and user in the connection"
            )
        if isinstance(error, paramiko.SSHException) and "known_hosts" in str(error):
            return SchedulerRejectedError(
                f"the host key of {host} is unknown; set ssh_host_key in the connection, or add it to known_hosts"
            )
        if isinstance(error, paramiko.SSHException) and "banner" in str(error):
            return _DroppedError(
                f"{host} closed the connection before the SSH banner; it may have too many logins: {error}"
            )
        if isinstance(error, paramiko.SSHException | OSError | EOFError):
            return SchedulerUnavailableError(f"cannot connect to {host} by SSH: {error}")
        return error


class _DroppedError(SchedulerUnavailableError):
    """The server has closed the connection at once, as sshd does at random beyond `MaxStartups` open logins."""


class _ClosedError(Exception):
    """The shell has ended without an answer."""


class _EndlessError(Exception):
    """The answer exceeds the size limit."""


class _Shell:
    """One shell on the login node, which runs one script after the other."""

    def __init__(self, channel: Any, timeout_s: float) -> None:
        self._channel = channel
        self._rest = b""
        # Skip the output of login files, which comes before this mark.
        mark = uuid.uuid4().hex
        try:
            deadline = time.monotonic() + timeout_s
            self._send(f"printf '%s\\n' {mark}\n".encode(), deadline)
            self._until(f"{mark}\n".encode(), deadline, _LOGIN_BYTES)
        except (_ClosedError, _EndlessError, TimeoutError) as error:
            raise OSError(f"its shell does not answer: {error}") from error

    def run(self, script: str, args: tuple[str, ...], stdin: bytes, deadline: float) -> Answer:
        """Run a script and return its answer.

        Raises TimeoutError at the deadline, _ClosedError if the answer is incomplete, _EndlessError if it is too large.
        """
        mark = uuid.uuid4().hex
        command = shlex.join(["/bin/sh", "-c", script, "launch", *args])
        text = (
            f"exec 3>&1; error=$({{ base64 -d <<'{mark}' | {command} 3>&-\n"
            f"{base64.b64encode(stdin).decode()}\n{mark}\n"
            f'}} 2>&1 1>&3); printf \'\\n{mark} %s\\n%s\\n{mark}\\n\' "$?" "$error"\n'
        )
        self._send(text.encode(), deadline)
        out = self._until(f"\n{mark} ".encode(), deadline)
        code = self._until(b"\n", deadline, _CODE_BYTES)
        error = self._until(f"\n{mark}\n".encode(), deadline, _ERROR_BYTES)
        if not code.isdigit():
            raise _ClosedError("its code is not a number")
        return Answer(int(code), out, error.decode("utf-8", "replace"))

    def close(self) -> None:
        """Close the shell."""
        with contextlib.suppress(Exception):  # of a connection that has ended
            self._channel.close()

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            sent = 0
            while sent < len(data):
                self._channel.settimeout(_left(deadline))
                sent += self._channel.send(data[sent : sent + _RECV_BYTES])
        except TimeoutError:
            raise
        except (OSError, EOFError) as error:
            raise _ClosedError(str(error)) from error

    def _until(self, end: bytes, deadline: float, limit: int = ANSWER_BYTES) -> bytes:
        """Return the bytes up to `end`, which is left out."""
        data, searched = bytearray(self._rest), 0
        while (found := data.find(end, searched)) < 0:
            searched = max(0, len(data) - len(end))
            try:
                self._channel.settimeout(_left(deadline))
                part = self._channel.recv(_RECV_BYTES)
            except TimeoutError:
                raise
            except (OSError, EOFError) as error:
                raise _ClosedError(str(error)) from error
            if not part:
                raise _ClosedError("the answer was cut off")
            data += part
            # Bytes after `end` belong to the next part of the answer.
            if len(data) > limit + len(end) and data.find(end, 0, limit + len(end)) < 0:
                raise _EndlessError
        self._rest = bytes(data[found + len(end) :])
        return bytes(data[:found])


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _paramiko() -> Any:
    try:
        import paramiko  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            "ssh_host of a connection to Slurm needs the package paramiko; "
            "install the extra 'slurm' of airflow-provider-launch"
        ) from error
    return paramiko


def _private_key(text: str, password: str | None, option: str = "ssh_key_secret") -> Any:
    paramiko = _paramiko()
    # The form has no line breaks; in JSON they are `\\n`.
    text = text.replace("\\n", "\n").strip() + "\n"
    reason = ""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(text), password)
        except (paramiko.SSHException, ValueError, IndexError) as error:
            reason = reason or type(error).__name__
    raise InvalidAppError(
        f"{option} of the connection is not a valid private key, or ssh_key_password does not open it ({reason})"
    )


def _check_key_file(path: str, password: str | None) -> None:
    """Refuse an invalid key file, which paramiko would ignore without an error."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidAppError(f"ssh_key_file of the connection cannot be read: {error}") from error
    _private_key(text, password, "ssh_key_file")


def _host_key(name: str, text: str) -> Any:
    hostkeys = _paramiko().hostkeys
    known, reason = None, ""
    try:
        known = hostkeys.HostKeyEntry.from_line(f"{name} {text.strip()}")
    except Exception as error:  # noqa: BLE001 - paramiko raises any error
        reason = f" ({type(error).__name__})"
    if known is None:
        raise InvalidAppError(
            f"the host key of {name} in the connection is not valid{reason}; write `type key`, as "
            f"`ssh-keyscan` prints it after the name"
        )
    return known


def _split_address(text: str, user: str) -> tuple[str, str, int]:
    name, _, rest = text.rpartition("@")
    host, _, port = rest.partition(":")
    if port and not port.isdigit():
        raise InvalidAppError(f"ssh_jump_host {text!r} has a port that is not a number; write user@host:port")
    return name or user, host, int(port or 22)


def _end(sock: Any) -> None:
    with contextlib.suppress(OSError):
        # After a plain close the reader thread would log an error. A channel through a jump host can only be closed.
        sock.shutdown(socket.SHUT_RDWR) if isinstance(sock, socket.socket) else sock.close()
