"""The pipelines of the live suite, as Airflow DAGs: on a worker, and deferred; on each engine that has an image."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow_provider_launch.pipelines import dag_from_file

EXECUTORS = {"local": "local", "docker": "local-container", "kubernetes": "kubernetes"}
# The folder through which tests and tasks communicate; a container has it at the same path.
_HOME = os.environ["AIRFLOW_HOME"]


def _config(engine: str, image: str) -> dict:
    config = {"conn_id": engine}
    if engine != "local":
        config |= {"image": image, "mounts": [f"{_HOME}:{_HOME}"], "data_dir": f"{_HOME}/data"}
    return {"executor": {"type": EXECUTORS[engine], "config": config}}


for _engine in EXECUTORS:
    _image = os.environ.get(f"LIVE_IMAGE_{_engine.upper()}", "")
    if _engine != "local" and not _image:
        continue
    for _mode in ("sync", "deferrable"):
        for _name in ("ways", "kept", "twice", *(["limited"] if _engine == "local" else [])):
            _dag = dag_from_file(
                f"{_name}.yaml",
                f"{_name}_{_engine}_{_mode}",
                config=None if _name == "limited" else _config(_engine, _image),
                max_active_runs=20,
                default_args={
                    # A busy machine costs tries of its own.
                    "retries": 5,
                    "retry_delay": timedelta(0),
                    "deferrable": _mode == "deferrable",
                    "defer_after_s": 0,
                },
            )
            globals()[_dag.dag_id] = _dag
