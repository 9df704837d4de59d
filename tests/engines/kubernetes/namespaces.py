"""Namespaces of tests, marked by a label."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, AuthorizationV1Api, CoreV1Api, RbacAuthorizationV1Api

from tests.engines.kubernetes.process import until

LABEL = "launch.io/tests"
_USER = "launch-limited"


def create(client: ApiClient, labels: Mapping[str, str] | None = None) -> str:
    """Return a new namespace in which pods may be created at once."""
    core = CoreV1Api(client)
    name = f"launch-tests-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{secrets.token_hex(4)}"
    core.create_namespace({"metadata": {"name": name, "labels": {LABEL: "true", **(labels or {})}}})

    def complete() -> bool:
        # Pods are refused until the service account exists, shortly after the namespace.
        return bool(core.list_namespaced_service_account(name, field_selector="metadata.name=default").items)

    until(complete, 30, f"namespace {name} got no service account")
    return name


def delete(client: ApiClient, name: str) -> None:
    """Delete a namespace and its objects, without waiting for the end of its pods."""
    try:
        CoreV1Api(client).delete_namespace(name)
    except ApiException as error:
        if error.status not in {404, 409}:  # deleted, or being deleted
            raise


def grant(client: ApiClient, namespace: str, rules: list[dict[str, Any]]) -> str:
    """Return the token of a user with exactly the rules of a Role in the namespace.

    Called again it replaces the rules.
    """
    core, rbac = CoreV1Api(client), RbacAuthorizationV1Api(client)
    subject = {"kind": "ServiceAccount", "name": _USER, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _USER}
    meta = {"name": _USER}
    _ensure(core.create_namespaced_service_account, namespace, {"metadata": meta})
    if not _ensure(rbac.create_namespaced_role, namespace, {"metadata": meta, "rules": rules}):
        rbac.replace_namespaced_role(_USER, namespace, {"metadata": meta, "rules": rules})
    _ensure(rbac.create_namespaced_role_binding, namespace, {"metadata": meta, "roleRef": role, "subjects": [subject]})
    asked = [
        {"namespace": namespace, "group": rule["apiGroups"][0], "verb": rule["verbs"][0], "resource": resource}
        for rule in rules
        # Permission for one object by name does not extend to others.
        for resource in rule["resources"][:1]
        if not rule.get("resourceNames")
    ]
    user = f"system:serviceaccount:{namespace}:{_USER}"
    # New permissions take effect after a moment.
    until(lambda: all(_may(client, user, right) for right in asked), 30, f"{user} did not get the rights of its Role")
    wanted = {"spec": {"expirationSeconds": 24 * 3600}}
    return core.create_namespaced_service_account_token(_USER, namespace, wanted).status.token


def remove_all(kubeconfig: Path) -> Iterator[str]:
    """Delete all namespaces of tests, of any session; yield the names."""
    with config.new_client_from_config(str(kubeconfig)) as client:
        for found in CoreV1Api(client).list_namespace(label_selector=LABEL).items:
            delete(client, found.metadata.name)
            yield found.metadata.name


def _may(client: ApiClient, user: str, right: dict[str, str]) -> bool:
    resource, _, subresource = right["resource"].partition("/")
    attributes = {**right, "resource": resource, "subresource": subresource}
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    return bool(AuthorizationV1Api(client).create_subject_access_review(review).status.allowed)


def _ensure(create: Any, namespace: str, body: dict[str, Any]) -> bool:
    try:
        create(namespace, body)
    except ApiException as error:
        if error.status != 409:
            raise
        return False
    return True
