"""Device files of the named devices of a resource."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.named_resources_aws import EFA_DEVICE, NEURON_DEVICE
from airflow_provider_launch.specs.roles import DeviceMount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATHS = {
    EFA_DEVICE: "/dev/infiniband/uverbs{}",
    NEURON_DEVICE: "/dev/neuron{}",
}
KNOWN_DEVICES = frozenset(_PATHS)
"""Kinds of devices for which this module has the device files."""


def to_devicemounts(num_devices: int, path: str) -> list[DeviceMount]:
    """Return mounts of the first `num_devices` device files; `{}` in `path` is the number of the device."""
    paths = [path.format(number) for number in range(num_devices)]
    return [DeviceMount(src_path=path, dst_path=path) for path in paths]


DEVICES: Mapping[str, Callable[[int], list[DeviceMount]]] = {
    name: functools.partial(to_devicemounts, path=path) for name, path in _PATHS.items()
}
"""Kind of device to the function that returns the mounts of N devices."""


def get_device_mounts(devices: Mapping[str, int]) -> list[DeviceMount]:
    """Return one mount for each device file; a device of unknown kind is skipped with a warning."""
    mounts: list[DeviceMount] = []
    for name, count in devices.items():
        if name not in _PATHS:
            warnings.warn(f"device {name!r} has no known device files and is not mounted", UserWarning, stacklevel=2)
            continue
        mounts += DEVICES[name](count)
    return mounts
