"""The first steps of a submission: check that the cluster accepts the app, and claim its name."""

from __future__ import annotations

import logging
import re
import time
from decimal import Decimal

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers._kit.refusals import refuse_other_spec
from airflow_provider_launch.schedulers.kubernetes.catalog import Catalog, selector
from airflow_provider_launch.schedulers.kubernetes.client import Cluster, MalformedError
from airflow_provider_launch.schedulers.kubernetes.manifests import job_body, pod_body, record_body
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation
from airflow_provider_launch.schedulers.kubernetes.pod_events import is_gated
from airflow_provider_launch.schedulers.kubernetes.record import AppRecord
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest, restricted
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)

log = logging.getLogger(__name__)

_DELETION_S, _PAUSE_S = 30.0, 0.2


class Claims:
    """Claims the names of apps in one namespace."""

    def __init__(self, cluster: Cluster, catalog: Catalog) -> None:
        self._cluster = cluster
        self._catalog = catalog

    def claim(self, request: KubernetesRequest) -> tuple[bool, KubernetesRequest]:
        """Create the record of the app; return whether it is new, and the request as the namespace accepts it."""
        # Fail before anything is created if pods cannot be listed, because then the app could not be followed.
        self._cluster.list("pods", selector([request.app_id]))
        request, refusal = self._fitted(request)
        deadline = time.monotonic() + _DELETION_S
        while True:
            if refusal is None:
                try:
                    self._cluster.create("services", record_body(request))
                except TakenError:
                    pass
                except NotFoundError as error:
                    raise self._no_namespace(error) from error
                except MalformedError as error:
                    raise InvalidAppError(f"the Service of the app, see option overlay.service: {error}") from error
                else:
                    return True, request
            # A refused app may already run: the first submission may have used up the quota.
            existing = self._cluster.get("services", request.app_id)
            if existing is None:
                if refusal is not None:
                    raise refusal
                refusal = self._refusal(request)
                continue
            record = AppRecord.of(existing)
            if record is not None and record.deleting and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
                refusal = self._refusal(request)
                continue
            self._refuse_other(request, record)
            return False, request

    def take_back(self, request: KubernetesRequest) -> None:
        """Remove the record of a refused submission. Errors are ignored, because the caller raises the refusal."""
        try:
            if (record := self._catalog.record(request.app_id)) is not None:
                self._cluster.delete("services", record.name, record.uid)
        except LaunchError:
            pass
        self._catalog.forget(request.app_id)

    def _fitted(self, request: KubernetesRequest) -> tuple[KubernetesRequest, LaunchError | None]:
        """Return the request, restricted if the namespace requires that, and the server's refusal of it."""
        refusal = self._refusal(request)
        if refusal is None or request.security != "auto" or not asks_for_restricted(str(refusal)):
            return request, refusal
        log.warning(
            "namespace %s enforces the Pod Security Standard 'restricted': pods of app %s run without root and "
            "capabilities, as with security='restricted'",
            self._cluster.namespace,
            request.app_id,
        )
        request = restricted(request)
        return request, self._refusal(request)

    def _refusal(self, request: KubernetesRequest) -> LaunchError | None:
        """Return the server's refusal of the pods and Jobs of the app; None if it accepts them."""
        for role in request.roles:
            job = job_body(request, role, 0)
            for kind, body in (("pods", pod_body(job)), ("jobs", job)):
                try:
                    made = self._cluster.create(kind, body, dry_run=True)
                except TakenError:
                    continue
                except NotFoundError as error:
                    return self._no_namespace(error)
                except MalformedError as error:
                    # Another submission would get the same answer.
                    has_overlay = request.has_overlay or bool(role.overlays)
                    where = ", see option overlay and the overlays of the role" if has_overlay else ""
                    return InvalidAppError(f"role {role.name!r}: the cluster refuses its {kind}{where}: {error}")
                except SchedulerRejectedError as error:
                    if is_passing(str(error)):
                        continue
                    return SchedulerRejectedError(f"role {role.name!r}: {error}")
                if kind == "pods" and request.is_group and not is_gated(made):
                    return SchedulerRejectedError(
                        f"option queue: Kueue does not manage the pods of namespace {self._cluster.namespace!r}, so "
                        f"queue {request.queue!r} cannot admit an app of several Jobs as one; ask the administrator of "
                        f"the cluster to enable Kueue's integration 'pod' for this namespace, or use one role "
                        f"without APPLICATION retries"
                    )
        return None

    def _no_namespace(self, error: NotFoundError) -> SchedulerRejectedError:
        return SchedulerRejectedError(
            f"the cluster at {self._cluster.url} has no namespace {self._cluster.namespace!r} ({error}); "
            f"create it, or name another one in the connection"
        )

    def _refuse_other(self, request: KubernetesRequest, record: AppRecord | None) -> None:
        if record is None:
            raise AppConflictError(
                f"namespace {self._cluster.namespace!r} has a Service {request.app_id!r} that is not an app of the "
                f"launcher; nothing was started. Remove it, or choose another id"
            )
        refuse_other_spec("kubernetes", request.app_id, request.spec_hash, record.annotations.get(Annotation.SPEC_HASH))
        if record.deleting:
            raise SchedulerUnavailableError(
                f"the previous app {request.app_id!r} is still being deleted; the same call may succeed later"
            )


_QUOTA = re.compile(r"exceeded quota: \S+, requested: (?P<requested>\S+), used: \S+, limited: (?P<limited>\S+)")
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})")


def is_passing(text: str) -> bool:
    """Return whether a quota is only used up for now, so that the pods start when others have ended."""
    found = _QUOTA.search(text)
    if found is None or "jobs" in found["requested"]:
        return False
    requested, limited = _quantities(found["requested"]), _quantities(found["limited"])
    return all(name in limited and wanted <= limited[name] for name, wanted in requested.items())


def asks_for_restricted(text: str) -> bool:
    """Return whether the namespace refuses a pod only because of the Pod Security Standard `restricted`."""
    return 'violates PodSecurity "restricted:' in text


def quantity(text: str) -> Decimal:
    """Return the number in a Kubernetes quantity such as `500m` or `1Gi`."""
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a valid Kubernetes quantity")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def _quantities(text: str) -> dict[str, Decimal]:
    pairs = (part.partition("=") for part in text.rstrip(";").split(","))
    return {name: quantity(value) for name, _, value in pairs}
