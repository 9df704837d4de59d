"""The pipelines of the live suite, as Airflow DAGs: on a worker, and deferred."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_launch.pipelines import dag_from_file

for _mode in ("sync", "deferrable"):
    for _name in ("ways", "kept"):
        _dag = dag_from_file(
            f"{_name}.yaml",
            f"{_name}_{_mode}",
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
