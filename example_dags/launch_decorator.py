"""An app defined by a function.

`@task.launch` launches the app that the function returns, and the task follows it. The function runs on the worker, so
the app can depend on results of earlier tasks; here it gets one worker for each shard. The next task gets the JSON
value that replica 0 writes to `LAUNCH_RESULT_PATH`.
"""

from __future__ import annotations

from airflow.sdk import dag, task

from airflow_provider_launch.specs import AppDef, Resource, Role, macros

SUM = """
import json, os, sys
numbers = json.loads(sys.argv[2])[int(sys.argv[1]) :: int(os.environ["LAUNCH_NUM_REPLICAS"])]
print(f"the sum of {numbers} is {sum(numbers)}")
if "LAUNCH_RESULT_PATH" in os.environ:
    with open(os.environ["LAUNCH_RESULT_PATH"], "w") as file:
        json.dump({"count": len(numbers)}, file)
"""


@dag("launch_decorator", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"])
def example() -> None:
    """Count, launch, report."""

    @task
    def count() -> list[int]:
        return list(range(10))

    @task.launch(time_limit_s=300)
    def add(numbers: list[int]) -> AppDef:
        adder = Role(
            name="adder",
            image="",
            entrypoint="python3",
            args=["-c", macros.escape(SUM), macros.replica_id, str(numbers)],
            num_replicas=len(numbers) // 5,
            resource=Resource(cpu=1, gpu=0, memMB=256),
        )
        return AppDef(name="sum", roles=[adder])

    @task
    def report(outcome: dict) -> None:
        print(f"{outcome['state']}: the first adder had {outcome['result']['count']} numbers")

    report(add(count()))


example()
