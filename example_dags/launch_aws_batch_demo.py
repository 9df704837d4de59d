"""A distributed word count on AWS Batch: `launch_local_demo` with another image and another connection.

One app, two roles: three `mapper` replicas each count the words of their share of a text and send the counts over TCP
to the `reducer`, which adds them up. The app is one multi-node parallel job, each replica is a node of it, and mappers
reach the reducer by the address of the main node. The app definition is the same as in the local demo.

The image needs python3, `sh`, and in `/` the program and the text from the folder of this file. In a checkout `make
demo DAG=launch_aws_batch_demo` builds it from the files of the machine, and runs it on the AWS emulation of the tests.
Otherwise:

    FROM python:3-slim
    COPY launch_wordcount.py launch_wordcount.md /

The connection needs Region, credentials and the extra `queue`: a job queue with EC2 hosts.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role, macros

HERE = Path(__file__).parent
IMAGE = "launch-python:local"
CONNECTION = "launch_aws_batch_default"

TEXT = "launch_wordcount.md"  # the documentation of this project
MAPPERS = 3
PROGRAM = f"{macros.img_root}/launch_wordcount.py"

with DAG("launch_aws_batch_demo", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    count_words = LaunchAppOperator(
        task_id="count_words",
        launch_conn_id=CONNECTION,
        app=AppDef(
            name="wordcount",
            roles=[
                Role(
                    name="reducer",
                    image=IMAGE,
                    entrypoint="python3",
                    args=[PROGRAM, "reduce", str(MAPPERS), macros.rank0_env],
                    port_map={"counts": 0},
                    resource=Resource(cpu=1, gpu=0, memMB=256),
                ),
                Role(
                    name="mapper",
                    image=IMAGE,
                    entrypoint="python3",
                    args=[
                        PROGRAM,
                        "map",
                        macros.replica_id,
                        str(MAPPERS),
                        macros.rank0_env,
                        f"{macros.img_root}/{TEXT}",
                    ],
                    num_replicas=MAPPERS,
                    resource=Resource(cpu=1, gpu=0, memMB=256),
                ),
            ],
        ),
        time_limit_s=300,
    )

    @task
    def compare(outcome: dict[str, Any]) -> int:
        """Compare with a count in one process, without the launcher."""
        result = outcome["result"]
        for word, count in result["top"].items():
            print(f"{count:6} {word}")
        expected = Counter(re.findall(r"\w+", (HERE / TEXT).read_text(encoding="utf-8").lower()))
        print(f"with the launcher:    {result['words']} words, {result['distinct']} distinct")
        print(f"without the launcher: {expected.total()} words, {len(expected)} distinct")
        if (result["words"], result["distinct"]) != (expected.total(), len(expected)):
            raise ValueError("the two counts differ")
        if any(expected[word] != count for word, count in result["top"].items()):
            raise ValueError("the two counts differ in a single word")
        print("the two counts agree")
        return int(result["words"])

    compare(count_words.output)
