"""Converts names of steps into Airflow ids."""

from __future__ import annotations

import re

OK, FAILED, JOIN, CASE = "__ok", "__failed", "__join", "__case"
MAX_LENGTH = 250


def task_id_of(name: str) -> str:
    """Return the id of a step inside its group. Airflow allows letters of any language."""
    return re.sub(r"[^\w-]", "_", name)


def folder_of(fan_out: str) -> str:
    """Return the catalog folder of a map, by the task that starts it."""
    return fan_out.rpartition(".")[0].replace(".", "/")


def dag_id_of(name: str) -> str:
    """Return the id of a DAG."""
    return re.sub(r"[^\w.-]", "_", name)
