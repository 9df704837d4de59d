"""Launch in one task, wait in another.

With `wait=False` the operator ends as soon as the app is scheduled. The sensor takes the handle from its XCom, shows
the lines of the app in its own log, and succeeds when the app succeeds. Other tasks can run in between.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, Resource, Role

COUNT_DOWN = """
import time
for left in (3, 2, 1):
    print(f"{left} to go", flush=True)
    time.sleep(0.5)
"""

with DAG("launch_local_sensor", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    launch = LaunchAppOperator(
        task_id="launch",
        app=AppDef(
            name="countdown",
            roles=[
                Role(
                    name="clock",
                    image="",
                    entrypoint="python3",
                    args=["-c", COUNT_DOWN],
                    resource=Resource(cpu=1, gpu=0, memMB=256),
                )
            ],
        ),
        wait=False,
        time_limit_s=300,
    )
    AppStatusSensor(task_id="wait", handle=launch.output, poke_interval=1)
