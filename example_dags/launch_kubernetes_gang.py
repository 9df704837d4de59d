"""A gang in a queue: a coordinator and two workers that need each other, so Kueue admits all or none.

Each worker asks the coordinator for work; the coordinator ends when all workers have connected. Started one by one with
a quota for two, they would wait for each other for ever, and block other apps.

It needs Kueue with its integration `pod`, and a LocalQueue `team` in the namespace of the connection: see
docs/kubernetes.md for the setup. After a preemption the whole app starts again, as an attempt that is not counted.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role, macros

IMAGE = "launch-python:local"
SIZE = Resource(cpu=0, gpu=0, memMB=64)
WORKERS = 2

COORDINATE = f"""
import json, os, socket
server = socket.create_server(("", int(os.environ["LAUNCH_PORT_COORDINATOR_WORK"])))
came = []
while len(came) < {WORKERS}:
    connection, _ = server.accept()
    with connection:
        came.append(connection.recv(100).decode())
        print(came[-1], "has come", flush=True)
json.dump(dict(workers=sorted(came)), open(os.environ["LAUNCH_RESULT_PATH"], "w"))
"""

WORK = """
import os, socket, sys, time
for attempt in range(60):
    try:
        address = os.environ[sys.argv[1]], int(os.environ["LAUNCH_PORT_COORDINATOR_WORK"])
        connection = socket.create_connection(address, 5)
        break
    except OSError:  # its name is known a second after its start
        time.sleep(0.5)
connection.sendall(("worker " + os.environ["LAUNCH_REPLICA_ID"]).encode())
"""

with DAG("launch_kubernetes_gang", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    train = LaunchAppOperator(
        task_id="train",
        launch_conn_id="launch_kubernetes_default",
        app=AppDef(
            name="gang",
            roles=[
                Role(
                    name="coordinator",
                    image=IMAGE,
                    entrypoint="python3",
                    args=["-c", macros.escape(COORDINATE)],
                    port_map={"work": 0},
                    resource=SIZE,
                ),
                Role(
                    name="worker",
                    image=IMAGE,
                    entrypoint="python3",
                    args=["-c", macros.escape(WORK), macros.rank0_env],
                    num_replicas=WORKERS,
                    resource=SIZE,
                ),
            ],
        ),
        time_limit_s=300,
        cfg={"queue": "team", "run_as_user": 65532, "grace_s": 1},
    )
