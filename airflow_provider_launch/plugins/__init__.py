"""Decorators for plug-in authors: register schedulers, components, trackers and named resources."""

from __future__ import annotations

from airflow_provider_launch.plugins import fractions as resource_tags
from airflow_provider_launch.plugins._register import register
from airflow_provider_launch.plugins.fractions import (
    EIGHTH,
    HALF,
    QUARTER,
    SIXTEENTH,
    WHOLE,
    halve_mem_down_to,
    powers_of_two_gpus,
)
from airflow_provider_launch.util.plugin_registry import PluginRegistry, PluginType, RegistrationError, registry

__all__ = [
    "EIGHTH",
    "HALF",
    "QUARTER",
    "SIXTEENTH",
    "WHOLE",
    "PluginRegistry",
    "PluginType",
    "RegistrationError",
    "halve_mem_down_to",
    "powers_of_two_gpus",
    "register",
    "registry",
    "resource_tags",
]
