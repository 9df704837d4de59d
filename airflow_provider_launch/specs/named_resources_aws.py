"""Resources by AWS instance type, `aws_<type>`: the capacity that one instance offers to replicas."""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EFA_DEVICE = "vpc.amazonaws.com/efa"
NEURON_DEVICE = "aws.amazon.com/neurondevice"
K8S_ITYPE = "node.kubernetes.io/instance-type"

GiB = 1024
# The host itself uses part of the memory.
MEM_TAX = 0.96

# https://aws.amazon.com/ec2/instance-types/; instance type, cpu, gpu, memory in GiB, devices: E = EFA, N = Neuron
_TABLE = """
t3.medium               2   0     4   -
m5.large                2   0     8   -
m5.xlarge               4   0    16   -
m5.2xlarge              8   0    32   -
m5.4xlarge             16   0    64   -
m5.8xlarge             32   0   128   -
m5.12xlarge            48   0   192   -
m5.16xlarge            64   0   256   -
m5.24xlarge            96   0   384   -
m5.metal               96   0   384   -
m5d.large               2   0     8   -
m5d.xlarge              4   0    16   -
m5d.2xlarge             8   0    32   -
m5d.4xlarge            16   0    64   -
m5d.8xlarge            32   0   128   -
m5d.12xlarge           48   0   192   -
m5d.16xlarge           64   0   256   -
m5d.24xlarge           96   0   384   -
m5d.metal              96   0   384   -
c5.18xlarge            72   0   142   -
p3.2xlarge              8   1    61   -
p3.8xlarge             32   4   244   -
p3.16xlarge            64   8   488   -
p3dn.24xlarge          96   8   768   E1
p4d.24xlarge           96   8  1152   E4
p4de.24xlarge          96   8  1152   E4
p5.48xlarge           192   8  2048   E32
p5e.48xlarge          192   8  2048   E32
p5en.48xlarge         192   8  2048   E16
p6-b200.48xlarge      192   8  2048   E8
p6-b300.48xlarge      192   8  4096   E16
p6e-gb200.36xlarge    144   4   960   E16
g4dn.xlarge             4   1    16   -
g4dn.2xlarge            8   1    32   -
g4dn.4xlarge           16   1    64   -
g4dn.8xlarge           32   1   128   E1
g4dn.16xlarge          64   1   256   E1
g4dn.12xlarge          48   4   192   E1
g4dn.metal             96   8   384   E1
g5.xlarge               4   1    16   -
g5.2xlarge              8   1    32   -
g5.4xlarge             16   1    64   -
g5.8xlarge             32   1   128   E1
g5.16xlarge            64   1   256   E1
g5.12xlarge            48   4   192   E1
g5.24xlarge            96   4   384   E1
g5.48xlarge           192   8   768   E1
g6e.xlarge              4   1    32   -
g6e.2xlarge             8   1    64   -
g6e.4xlarge            16   1   128   -
g6e.8xlarge            32   1   256   -
g6e.16xlarge           64   1   512   -
g6e.12xlarge           48   4   384   -
g6e.24xlarge           96   4   768   E2
g6e.48xlarge          192   8  1536   E4
trn1.2xlarge            8   0    32   N1
trn1.32xlarge         128   0   512   E8 N16
inf2.xlarge             4   0    16   N1
inf2.8xlarge           32   0   128   N1
inf2.24xlarge          96   0   384   N6
inf2.48xlarge         192   0   768   N12
"""

_DEVICES = {"E": EFA_DEVICE, "N": NEURON_DEVICE}


def _resource(instance_type: str, cpu: int, gpu: int, mem_gib: int, devices: Mapping[str, int]) -> Resource:
    return Resource(
        cpu=cpu,
        gpu=gpu,
        memMB=mem_gib * int(GiB * MEM_TAX),
        capabilities={K8S_ITYPE: instance_type},
        devices=dict(devices),
    )


def _rows() -> dict[str, Callable[[], Resource]]:
    factories: dict[str, Callable[[], Resource]] = {}
    for line in _TABLE.strip().splitlines():
        instance_type, cpu, gpu, mem_gib, *codes = line.split()
        devices = {_DEVICES[code[0]]: int(code[1:]) for code in codes if code != "-"}
        factories[f"aws_{instance_type}"] = partial(_resource, instance_type, int(cpu), int(gpu), int(mem_gib), devices)
    return factories


NAMED_RESOURCES: Mapping[str, Callable[[], Resource]] = _rows()

# Each resource is also a function, as in `aws_p4d_24xlarge()`.
globals().update({re.sub(r"[.-]", "_", name): factory for name, factory in NAMED_RESOURCES.items()})


def instance_type_from_resource(resource: Resource) -> str | None:
    """Return the AWS instance type of the resource; None, with a warning, if it has none."""
    instance_type = resource.capabilities.get(K8S_ITYPE)
    if instance_type is None:
        warnings.warn(
            f"resource has no capability `K8S_ITYPE` ({K8S_ITYPE}); no instance type is known",
            UserWarning,
            stacklevel=2,
        )
        return None
    return str(instance_type)
