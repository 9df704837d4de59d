"""A maintenance DAG that cancels apps whose tasks have ended, for deployments without a triggerer.

A triggerer does this itself, once a minute. Use this DAG if your deployment has no triggerer, or if none of your tasks
is deferrable. Apps on `local` are visible only on their own host.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

CONNECTIONS = ["launch_local_default"]
"""The connections of your tasks."""

with DAG(
    "launch_orphans",
    schedule=timedelta(minutes=10),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    doc_md=__doc__,
    tags=["launch", "example"],
):

    @task
    def cancel_orphans(conn_id: str) -> list[str]:
        """Cancel the orphans of one connection, and return their handles.

        A cancel that fails leaves none of the others; then the task fails, and the next run tries it again.
        """
        from airflow.sdk.observability.stats import Stats

        from airflow_provider_launch.hooks.launch import LaunchHook
        from airflow_provider_launch.specs.errors import LaunchError

        hook, cancelled, failed = LaunchHook.for_connection(conn_id), [], []
        try:
            for handle in hook.orphans():
                try:
                    hook.runner.cancel(handle)
                except LaunchError as error:
                    failed.append(f"{handle} could not be cancelled: {error}")
                else:
                    print(f"cancelled {handle}, because its task has ended")
                    Stats.incr("launch.orphans", tags={"backend": handle.partition(":")[0], "reason": "dag"})
                    cancelled.append(handle)
        finally:
            hook.close()
        if failed:
            raise RuntimeError("; ".join(failed))
        return cancelled

    cancel_orphans.expand(conn_id=CONNECTIONS)
