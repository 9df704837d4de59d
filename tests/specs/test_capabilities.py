"""Typed keys of hardware facts, and keys of metadata that are stored data."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs.capabilities import CapabilityKey
from airflow_provider_launch.specs.metadata_keys import NA, TORCHX_CONTEXT_NAME, app_metadata
from airflow_provider_launch.specs.resources import Resource

PORTS: CapabilityKey[int] = CapabilityKey("nic", "ports", int)


def test_a_capability_is_stored_under_a_plain_key():
    resource = Resource(cpu=1, gpu=0, memMB=1)
    PORTS.set(resource, 4)

    assert resource.capabilities == {"nic.ports": 4}
    assert PORTS.get(resource) == 4


def test_an_absent_capability_is_the_default():
    resource = Resource(cpu=1, gpu=0, memMB=1)

    assert PORTS.get(resource) is None
    assert PORTS.get(resource, 2) == 2


@pytest.mark.parametrize(("value", "kind"), [("4", "str"), (True, "bool")])
def test_a_stored_value_of_another_type_is_refused(value, kind):
    resource = Resource(cpu=1, gpu=0, memMB=1, capabilities={"nic.ports": value})

    with pytest.raises(TypeError, match=f"nic.ports.*expected `int`, got `{kind}`"):
        PORTS.get(resource)


def test_metadata_keys_are_stored_data():
    assert (TORCHX_CONTEXT_NAME, NA) == ("TORCHX_CONTEXT_NAME", "<<NA>>")
    assert (app_metadata.CONTEXT, app_metadata.VERSION) == ("torchx/context", "torchx/version")
    assert (app_metadata.SCHEDULER, app_metadata.ROLES_PREFIX) == ("torchx/scheduler", "torchx/roles.")
