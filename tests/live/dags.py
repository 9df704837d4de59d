"""The DAGs of the live suite: the conf of a run says what it does, so that no scenario needs another parse.

Airflow reads a copy of this file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role

GRACE_S = 3
EXECUTION_TIMEOUT_S = 20
RUN_TIMEOUT_S = 30
MAPPED = 100
MAPPED_FAILING = 37
MAPPED_POOL, MAPPED_SLOTS = "narrow", 8


def _can_defer() -> bool:
    try:
        LaunchAppOperator(task_id="t", app=AppDef("a", [Role("r", "", entrypoint="true")]), deferrable=True)
    except Exception:  # noqa: BLE001 - refused, as long as it is not there
        return False
    return True


MODES = ("sync", "deferrable") if _can_defer() else ("sync",)


def _app(script: str, replicas: int) -> AppDef:
    # Apps are found again by the name of their run.
    role = Role("main", "{{ dag_run.conf['image'] }}", entrypoint="sh", args=["-c", script], num_replicas=replicas)
    return AppDef("{{ run_id }}", [role])


def _dag(kind: str, mode: str, **kwargs: Any) -> DAG:
    return DAG(f"{kind}_{mode}", schedule=None, catchup=False, max_active_runs=100, max_active_tasks=200, **kwargs)


def _how(mode: str) -> dict[str, Any]:
    return {
        "task_id": "app",
        "launch_conn_id": "{{ dag_run.conf['engine'] }}",
        "cfg": {"grace_s": GRACE_S},
        "retry_delay": timedelta(0),
        **({"deferrable": True} if mode == "deferrable" else {}),
    }


for _mode in MODES:
    _two = _app("{{ dag_run.conf['script'] }}", 2)
    with _dag("plain", _mode):
        LaunchAppOperator(app=_two, **_how(_mode))
    with _dag("retried", _mode):
        LaunchAppOperator(app=_two, retries=1, **_how(_mode))
    with _dag("limited", _mode):
        LaunchAppOperator(app=_two, execution_timeout=timedelta(seconds=EXECUTION_TIMEOUT_S), **_how(_mode))
    with _dag("brief", _mode, dagrun_timeout=timedelta(seconds=RUN_TIMEOUT_S)):
        LaunchAppOperator(app=_two, **_how(_mode))
    with _dag("mapped", _mode):
        LaunchAppOperator.partial(retries=1, pool=MAPPED_POOL, **_how(_mode)).expand(
            app=[_app(f"test {number} != {MAPPED_FAILING} || exit 3", 1) for number in range(MAPPED)]
        )
