"""Networks on a Docker engine; removes duplicates, because the engine refuses an ambiguous name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.schedulers.docker.wire import Wire, document_in
from airflow_provider_launch.specs.errors import SchedulerRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Networks:
    """The networks of one engine; raises the errors of `Wire`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def ensure(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a bridge network of that name, unless it exists.

        Raises:
            SchedulerRejectedError: the engine is out of addresses.
        """
        found = self._named(name)
        if not found:
            body = {"Name": name, "CheckDuplicate": True, "Driver": "bridge", "Labels": dict(labels)}
            try:
                with self._wire.request("POST", "/networks/create", body=body):
                    pass
            except TakenError:
                return
            found = self._named(name)
        self._keep_first(found)

    def keep_first(self, name: str) -> bool:
        """Remove all but the first network of a name; return False if a duplicate does not belong to the launcher.

        Two launchers may have created it at the same moment, because the engine's own check is not atomic.
        """
        return self._keep_first(self._named(name))

    def _keep_first(self, networks: list[dict[str, Any]]) -> bool:
        later = sorted(networks, key=lambda network: (network["Created"], network["Id"]))[1:]
        ours = [network for network in later if Label.MANAGED in (network.get("Labels") or {})]
        for network in ours:
            self._remove(network["Id"])
        return len(ours) == len(later)

    def has(self, name: str) -> bool:
        """Return whether containers can join a network of that name."""
        return bool(self._named(name))

    def remove(self, name: str, app_id: str) -> None:
        """Remove the network that was created for this app."""
        for network in self._named(name):
            if (network.get("Labels") or {}).get(Label.APP_ID) == app_id:
                self._remove(network["Id"])

    def _named(self, name: str) -> list[dict[str, Any]]:
        with self._wire.request("GET", "/networks", {"filters": json.dumps({"name": [name]})}) as response:
            # The engine's filter also matches parts of names.
            return [network for network in document_in(response) if network["Name"] == name]

    def _remove(self, network_id: str) -> None:
        try:
            with self._wire.request("DELETE", f"/networks/{network_id}"):
                pass
        except (NotFoundError, SchedulerRejectedError):
            pass  # already removed, or in use
