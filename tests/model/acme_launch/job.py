"""A job that records its results."""

from __future__ import annotations

from torchx.tracker import app_run_from_env

run = app_run_from_env()
run.add_metadata(loss=0.25)
run.add_artifact("model", "/models/1")
