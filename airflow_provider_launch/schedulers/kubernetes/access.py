"""Access to a cluster: address, credentials and connections, from a kubeconfig or a service account."""

from __future__ import annotations

import base64
import math
import os
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError, SchedulerRejectedError
from airflow_provider_launch.specs.secrets import masked_text
from airflow_provider_launch.util.http_answer import HttpTarget
from airflow_provider_launch.util.whole_answers import limit_pools

if TYPE_CHECKING:
    from urllib3 import PoolManager

    from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HTTP_PORT, _HTTPS_PORT = 80, 443
_CONNECTIONS = 16
_ONE_LINE = (
    "the form has one line, in which YAML loses its line breaks: give JSON, as `kubectl config view --raw --minify "
    "--flatten -o json` prints it, or the file as base64"
)
_CURE = "correct the connection, or set in_cluster"
_TOKEN_S = 60.0
"""Seconds after which the token is read again, because the cluster renews it."""
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)


class _ServiceAccount:
    """The service account of this pod, with the attributes of `kubernetes.client.Configuration` that are used here.

    Importing the package instead takes 0.2 s and 20 MB in each process.
    """

    verify_ssl, assert_hostname, tls_server_name = True, None, None
    ca_cert_data, cert_file, key_file = None, None, None

    def __init__(self) -> None:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
        if not host or not port:
            raise ValueError("in_cluster needs KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which pods have")
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.ssl_ca_cert = str(_SERVICE_ACCOUNT / "ca.crt")
        self._token, self._read_at = "", -math.inf
        self.auth_settings()

    def auth_settings(self) -> dict[str, dict[str, str]]:
        """Return the header with the token."""
        if time.monotonic() - self._read_at >= _TOKEN_S:
            self._token, self._read_at = _text_of("token"), time.monotonic()
        return {"BearerToken": {"in": "header", "key": "authorization", "value": f"bearer {self._token}"}}


def _text_of(name: str) -> str:
    """Return the text of a file of the service account."""
    path = _SERVICE_ACCOUNT / name
    if not (text := path.read_text(encoding="utf-8").strip()):
        raise ValueError(f"{path} is empty")
    return text


class Access:
    """Address, credentials and connections."""

    def __init__(self, connection: KubernetesConnection) -> None:
        self.stamps = stamps(connection)
        self._unreadable: tuple[type[Exception], ...] = _UNREADABLE
        self._configuration: Any
        self.pool: PoolManager
        try:
            is_inside = _is_inside(connection)
            # Proxies have rules of their own, which the package applies.
            if is_inside and not getproxies().keys() - {"no"}:
                from urllib3 import PoolManager

                self._configuration = found = _ServiceAccount()
                self.pool = PoolManager(maxsize=_CONNECTIONS, cert_reqs=ssl.CERT_REQUIRED, ca_certs=found.ssl_ca_cert)
                namespace: str | None = _text_of("namespace")
            else:
                namespace = self._use_package(connection, is_inside=is_inside)
            self.namespace: str = connection.namespace or namespace or "default"
            self.url: str = self._configuration.host.rstrip("/")
            limit_pools(self.pool)
        except ImportError as error:
            raise MissingDependencyError(
                "the scheduler 'kubernetes' needs the package kubernetes; install the extra 'kubernetes' of "
                "airflow-provider-launch"
            ) from error
        except UnicodeEncodeError:
            # The text and the cause of the error would quote the secret.
            raise InvalidAppError(
                f"the kubeconfig of the connection cannot be used: user name or password have characters that are not "
                f"allowed in an HTTP header; {_CURE}"
            ) from None
        except self._unreadable as error:
            text = " ".join(str(error).split())[:300]
            raise InvalidAppError(f"the kubeconfig of the connection cannot be used: {text}; {_CURE}") from error

    def _use_package(self, connection: KubernetesConnection, *, is_inside: bool) -> str | None:
        """Let the package `kubernetes` read the credentials; return the namespace."""
        from kubernetes import client, config
        from urllib3.exceptions import HTTPError
        from urllib3.util import parse_url

        self._unreadable = (config.ConfigException, HTTPError, *_UNREADABLE)
        self._configuration = client.Configuration()
        self._configuration.connection_pool_maxsize = _CONNECTIONS
        namespace = _load(connection, config, self._configuration, is_inside=is_inside)
        host = self._configuration.host.rstrip("/")
        if parse_url(host).scheme not in {"http", "https"}:
            raise ValueError(f"the server {masked_text(host)!r} of the cluster is not a valid https:// address")
        self.pool = client.ApiClient(self._configuration).rest_client.pool_manager
        return namespace

    def target(self) -> HttpTarget | None:
        """Return the address of the API server; None if its proxy does not work with plain sockets."""
        parts = urlsplit(self.url)
        found = self._configuration
        proxy: Any = getattr(self.pool, "proxy", None)
        if proxy is not None and proxy.scheme != "http":
            return None
        context = None
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=found.ssl_ca_cert, cadata=found.ca_cert_data)
            if not found.verify_ssl or found.assert_hostname is False:
                context.check_hostname = False
            if not found.verify_ssl:
                context.verify_mode = ssl.CERT_NONE
            if found.cert_file:
                context.load_cert_chain(found.cert_file, found.key_file)
        port = parts.port or (_HTTPS_PORT if context else _HTTP_PORT)
        name = str(found.tls_server_name or found.assert_hostname or "")
        through = (str(proxy.host), proxy.port or _HTTP_PORT) if proxy else None
        headers = tuple((getattr(self.pool, "proxy_headers", None) or {}).items())
        return HttpTarget(
            str(parts.hostname), port, context=context, server_name=name, proxy=through, proxy_headers=headers
        )

    def headers(self) -> dict[str, str]:
        """Return the headers with the credentials, which are renewed when due."""
        try:
            settings: list[Any] = [*self._configuration.auth_settings().values()]
        except self._unreadable as error:
            raise SchedulerRejectedError(
                f"the credentials for the Kubernetes API at {masked_text(self.url)} cannot be renewed "
                f"({type(error).__name__}); check that their file or program exists"
            ) from error
        return {
            found["key"]: _header(found["key"], found["value"])
            for found in settings
            if found["in"] == "header" and found["value"]
        }


def refuse_programs(secret: str | None) -> None:
    """Refuse an inline kubeconfig that starts programs: editors of a connection could run them on every worker."""
    import yaml

    try:
        document = yaml.safe_load(_plain(secret or ""))
    except yaml.YAMLError:
        return  # refused with the reason when it is used
    users = document.get("users") if isinstance(document, dict) else None
    for item in users if isinstance(users, list) else []:
        user = item.get("user") if isinstance(item, dict) else None
        for key in ("exec", "auth-provider"):
            if isinstance(user, dict) and user.get(key):
                raise InvalidAppError(
                    f"kubeconfig_secret: user {item.get('name')!r} starts a program ({key}) on each host that uses the "
                    f"connection; name a file by kubeconfig_path, give a token or certificate, or set "
                    f"allow_kubeconfig_exec in the section launch of airflow.cfg"
                )


def stamps(connection: KubernetesConnection) -> tuple[object, ...]:
    """Return a value that changes when the kubeconfig or the certificate of the cluster is written."""
    files = [str(_SERVICE_ACCOUNT / "ca.crt")]
    if not connection.kubeconfig_secret:
        given = connection.kubeconfig_path or os.environ.get("KUBECONFIG") or "~/.kube/config"
        files += given.split(os.pathsep)
    return tuple(map(_stamp, files))


def _stamp(path: str) -> object:
    try:
        found = Path(path).expanduser().stat()
    except (OSError, RuntimeError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _header(name: str, value: str) -> str:
    """Return the value without surrounding blanks: many files end in a line feed."""
    text = value.strip()
    if any(character < " " or "\x7f" <= character < "\xa0" or character > "\xff" for character in text):
        raise InvalidAppError(
            f"the credentials of the connection cannot be sent: the value of the header {name!r} has control "
            f"characters, or characters beyond latin-1; give the token in the connection as the cluster issued it"
        )
    return text


def _plain(secret: str) -> str:
    """Return the kubeconfig, decoded if it is base64: the form has one line for it."""
    try:
        return base64.b64decode("".join(secret.split()), validate=True).decode()
    except ValueError:
        return secret


def _is_inside(connection: KubernetesConnection) -> bool:
    """Return whether to use the service account of this pod."""
    if connection.in_cluster and connection.context:
        raise ValueError(f"in_cluster and the kubeconfig context {connection.context!r} are both set; remove one")
    if connection.in_cluster is not None:
        return connection.in_cluster
    given = connection.kubeconfig_path or connection.kubeconfig_secret or connection.context
    return not given and (_SERVICE_ACCOUNT / "token").exists()


def _refuse_missing(given: str | None, default: str) -> None:
    """Refuse a path of which no file exists, because the error of the package names no path."""
    if any(Path(path).expanduser().exists() for path in (given or default).split(os.pathsep) if path):
        return
    if given:
        raise ValueError(f"kubeconfig_path={given!r} does not exist on this host")
    raise ValueError(f"no kubeconfig_path is set, and {default!r} does not exist on this host")


def _load(connection: KubernetesConnection, config: Any, configuration: Any, *, is_inside: bool) -> str | None:
    """Fill in `configuration` and return its namespace."""
    import yaml

    if is_inside:
        config.load_incluster_config(client_configuration=configuration)
        return _text_of("namespace")
    how = {"context": connection.context, "client_configuration": configuration, "persist_config": False}
    try:
        if connection.kubeconfig_secret:
            document = yaml.safe_load(_plain(connection.kubeconfig_secret))
            if not isinstance(document, dict):
                raise ValueError(f"kubeconfig_secret is not a valid kubeconfig; {_ONE_LINE}")
            config.load_kube_config_from_dict(document, **how)
            contexts = {item["name"]: item["context"] for item in document.get("contexts") or []}
            context = contexts[connection.context or document["current-context"]]
            clusters = {item["name"]: item["cluster"] for item in document["clusters"]}
            cluster = clusters[context["cluster"]]
        else:
            _refuse_missing(connection.kubeconfig_path, config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
            config.load_kube_config(config_file=connection.kubeconfig_path, **how)
            every, current = config.list_kube_config_contexts(connection.kubeconfig_path)
            context = next((item for item in every if item["name"] == connection.context), current)["context"]
            where = connection.kubeconfig_path or config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION
            merged = config.kube_config.KubeConfigMerger(where).config
            cluster = merged["clusters"].get_with_name(context["cluster"])["cluster"]
        if "proxy-url" in cluster:
            # The package reads it only from version 37 on.
            configuration.proxy = cluster["proxy-url"]
        namespace = context.get("namespace")
    except yaml.YAMLError:
        # The text of the error would quote the secret.
        name = "kubeconfig_secret" if connection.kubeconfig_secret else connection.kubeconfig_path or "the file"
        cure = (
            f"; {_ONE_LINE}"
            if connection.kubeconfig_secret and "\n" not in connection.kubeconfig_secret.strip()
            else ""
        )
        raise ValueError(f"{name} is neither YAML nor JSON{cure}") from None
    return None if namespace is None else str(namespace)
