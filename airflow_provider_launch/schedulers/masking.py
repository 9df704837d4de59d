"""Masks likely secrets before a request is shown; public for authors of schedulers."""

from __future__ import annotations

from airflow_provider_launch.specs.secret_names import is_secret_name
from airflow_provider_launch.specs.secrets import (
    MASK,
    masked_args,
    masked_document,
    masked_env,
    masked_text,
)

__all__ = ["MASK", "is_secret_name", "masked_args", "masked_document", "masked_env", "masked_text"]
