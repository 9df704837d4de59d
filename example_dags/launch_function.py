"""A Python function of the DAG file as a distributed app.

`@task.launch_python` runs the function in each replica, on any scheduler: change the connection, and give an `image`
where the scheduler needs one. Here three replicas estimate pi for each number of samples, and the next task chooses.
"""

from __future__ import annotations

import random

from airflow.sdk import dag, task

from airflow_provider_launch.functions import Replica
from airflow_provider_launch.specs import Resource

SEED = 7


def hits(samples: int, seed: int) -> int:
    """Return how many random points of the unit square lie in the circle."""
    numbers = random.Random(seed)  # noqa: S311 - no secret depends on it
    return sum(numbers.random() ** 2 + numbers.random() ** 2 < 1 for _ in range(samples))


@dag("launch_function", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"])
def example() -> None:
    """Estimate with several numbers of samples, and report the best."""

    @task.launch_python(num_replicas=3, gather=True, resource=Resource(cpu=1, gpu=0, memMB=256), time_limit_s=300)
    def estimate(samples: int, replica: Replica) -> list:
        print(f"replica {replica.id} of {replica.count}, attempt {replica.attempt}")
        return {"samples": samples, "pi": 4 * hits(samples, SEED + replica.id) / samples}

    @task
    def report(estimates: list) -> float:
        means = {each[0]["samples"]: sum(one["pi"] for one in each) / len(each) for each in estimates}
        print(means)
        return means[max(means)]

    report(estimate.expand(samples=[1_000, 100_000]))


example()
