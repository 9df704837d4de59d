"""A minimal client of the API server for the engine; tests use the official client."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Api:
    """An API server and the token of a user."""

    url: str
    certificate: Path
    token: str

    def request(self, method: str, path: str, body: object = None, timeout_s: float = 10.0) -> Any:
        """Return the answer as JSON, or as text if it is not JSON. A refusal raises OSError, too."""
        data = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.certificate))
        # Without a proxy of the machine, because the server is on this host.
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            text = answer.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def why_not_ready(self) -> str | None:
        """Return the reason why the server is not ready, or None."""
        try:
            self.request("GET", "/readyz", timeout_s=5)
        except OSError as error:
            return str(error)
        return None

    def why_no_node(self) -> str | None:
        """Return the reason why pods cannot run yet, or None."""
        try:
            nodes = self.request("GET", "/api/v1/nodes")["items"]
            self.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except OSError as error:
            return str(error)
        reason = "no node has registered"
        for node in nodes:
            ready = [one for one in node["status"].get("conditions", []) if one["type"] == "Ready"]
            if ready and ready[0]["status"] == "True" and not node["spec"].get("taints"):
                return None
            reason = ready[0]["message"] if ready else "the node says nothing yet"
        return reason
