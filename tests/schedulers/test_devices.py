"""Device files of named devices."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.devices import get_device_mounts
from airflow_provider_launch.specs.named_resources_aws import EFA_DEVICE, NEURON_DEVICE
from airflow_provider_launch.specs.roles import DeviceMount


def test_each_device_file_is_mounted():
    assert get_device_mounts({EFA_DEVICE: 2, NEURON_DEVICE: 1}) == [
        DeviceMount("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
        DeviceMount("/dev/infiniband/uverbs1", "/dev/infiniband/uverbs1"),
        DeviceMount("/dev/neuron0", "/dev/neuron0"),
    ]


def test_an_unknown_device_is_skipped_with_a_warning():
    with pytest.warns(UserWarning, match="quantum"):
        assert get_device_mounts({"quantum": 1}) == []
