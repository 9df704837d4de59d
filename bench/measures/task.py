"""Duration of one task `true` in a real DAG run; peer: a BashOperator `true`."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role
from rows import row

ROUNDS = 7
OUT = Path(os.environ["BENCH_HOME"])

initdb()
with DAG("bench", schedule=None) as dag:
    role = Role("r", "", entrypoint="true", resource=Resource(1, 0, 64))
    LaunchAppOperator(task_id="ours", app=AppDef("true", [role])) >> BashOperator(task_id="bash", bash_command="true")
with create_session() as session:
    session.merge(DagBundleModel(name="bench"))
bag = DagBag(dag_folder=os.devnull)
bag.bag_dag(dag)
sync_bag_to_db(bag, bundle_name="bench", bundle_version="1")

times: dict[str, list[float]] = {"ours": [], "bash": []}
for _ in range(ROUNDS + 1):
    run = dag.test()
    for instance in run.get_task_instances():
        times[instance.task_id].append(instance.duration or 0.0)
ours, bash = (statistics.median(times[name][1:]) for name in ("ours", "bash"))
row("task `true`", ours, limit=bash + 0.5, peer=bash, note="peer: BashOperator; limit: half a second more")
