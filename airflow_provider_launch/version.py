"""The version of this package, and the default image of its components."""

from __future__ import annotations

from airflow_provider_launch import __version__
from airflow_provider_launch.settings import IMAGE

__all__ = ["IMAGE", "TORCHX_IMAGE", "__version__"]

TORCHX_IMAGE = IMAGE
