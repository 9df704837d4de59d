"""Hide what looks like a secret before a request is shown; here for the authors of schedulers."""

from __future__ import annotations

from airflow_provider_launch.specs.secrets import (
    MASK,
    is_secret_name,
    masked_args,
    masked_document,
    masked_env,
    masked_text,
)

__all__ = ["MASK", "is_secret_name", "masked_args", "masked_document", "masked_env", "masked_text"]
