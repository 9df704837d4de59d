"""The DAGs of the live suite: the conf of a run says what it does, so that no scenario needs another parse.

Airflow reads a copy of this file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import httpx
from airflow.sdk import DAG, get_current_context, task

from airflow_provider_launch._airflow import conf
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.app_dict import app_to_dict

GRACE_S = 3
EXECUTION_TIMEOUT_S = 20
RUN_TIMEOUT_S = 30
MAPPED_POOL, MAPPED_SLOTS = "narrow", 6
ROOMY_SLOTS = 64
RETRY_DELAY_S = 20


MODES = ("sync", "deferrable")
POOLS = {MAPPED_POOL: MAPPED_SLOTS, **{f"roomy_{mode}": ROOMY_SLOTS for mode in MODES}}


def _app(script: str, replicas: int) -> AppDef:
    # Apps are found again by the name of their run.
    role = Role("main", "{{ dag_run.conf['image'] }}", entrypoint="sh", args=["-c", script], num_replicas=replicas)
    return AppDef("{{ run_id }}", [role])


@task(retries=3, retry_delay=timedelta(0))
def apps() -> list[dict[str, Any]]:
    """Return the apps of a mapped task: each runs the script with its number."""
    run = get_current_context()["dag_run"]
    conf = run.conf or {}
    return [
        app_to_dict(
            AppDef(
                run.run_id, [Role("main", conf["image"], entrypoint="sh", args=["-c", conf["script"], "sh", str(k)])]
            )
        )
        for k in range(conf["count"])
    ]


def _dag(kind: str, mode: str, **kwargs: Any) -> DAG:
    return DAG(f"{kind}_{mode}", schedule=None, catchup=False, max_active_runs=100, max_active_tasks=200, **kwargs)


def _how(mode: str) -> dict[str, Any]:
    return {
        "task_id": "app",
        "launch_conn_id": "{{ dag_run.conf['engine'] }}",
        "cfg": {"grace_s": GRACE_S},
        "retry_delay": timedelta(0),
        "deferrable": mode == "deferrable",
        # These scenarios test the trigger.
        "defer_after_s": 0,
    }


class MarkedWhenItDefers(LaunchAppOperator):
    """A task that a user marks as failed after it has decided to defer, and before Airflow hears of it."""

    def defer(self, **kwargs: Any) -> NoReturn:
        """Mark the task, and defer it."""
        ti, url = get_current_context()["ti"], conf.get("api", "base_url")
        token = httpx.get(f"{url}/auth/token", timeout=60).raise_for_status().json()["access_token"]
        task_path = f"dags/{ti.dag_id}/dagRuns/{ti.run_id}/taskInstances/{ti.task_id}"
        headers, body = {"authorization": f"Bearer {token}"}, {"new_state": "failed"}
        httpx.patch(f"{url}/api/v2/{task_path}", json=body, headers=headers, timeout=60).raise_for_status()
        super().defer(**kwargs)


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
        LaunchAppOperator.partial(retries=1, pool=MAPPED_POOL, **_how(_mode)).expand(app=apps())

# For apps that lose their tasks: see test_owners.py.
for _mode in MODES:
    with _dag("launching", _mode):
        LaunchAppOperator.partial(**{**_how(_mode), "defer_after_s": 2}).expand(app=apps())
    with _dag("roomy", _mode):
        LaunchAppOperator.partial(pool=f"roomy_{_mode}", **_how(_mode)).expand(app=apps())
    with _dag("left", _mode):
        LaunchAppOperator(app=_two, on_kill="leave", **_how(_mode))
    with _dag("patient", _mode):
        _waits = {"retries": 1, "retry_delay": timedelta(seconds=RETRY_DELAY_S), "pool": f"roomy_{_mode}"}
        LaunchAppOperator(app=_two, **{**_how(_mode), **_waits})
with _dag("marked", "deferrable"):
    MarkedWhenItDefers(app=_two, **_how("deferrable"))

_briefly = {"task_id": "app", "launch_conn_id": "local", "cfg": {"grace_s": GRACE_S}, "deferrable": True}
with _dag("many", "deferrable"):
    # With a thousand tasks at once on two cores Airflow's scheduler loses some for a while, and fails them.
    LaunchAppOperator.partial(retries=3, retry_delay=timedelta(0), defer_after_s=0, **_briefly).expand(app=apps())
with _dag("disturbed", "deferrable"):
    LaunchAppOperator.partial(retries=3, defer_after_s=0, **_briefly).expand(app=apps())
with _dag("short", "deferrable"):
    LaunchAppOperator.partial(max_active_tis_per_dag=16, **_briefly).expand(app=apps())
