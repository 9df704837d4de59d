"""A DAG file with `@task.launch_python`, run by `dag.test()` on each real engine: only the connection changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.guarantees import Place, image_of, on_places
from tests.airflow.versions import HAS_STORE
from tests.support.airflow_home import migrated, run_dags

pytestmark = pytest.mark.skipif(not HAS_STORE, reason="the runner of DAGs is written for the newest Airflow")
FILE = """
from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, asdict
from typing import TYPE_CHECKING

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task

from airflow_provider_launch.specs import Resource

if TYPE_CHECKING:
    from airflow_provider_launch.functions import Replica

ROLE = {"image": "IMAGE", "resource": Resource(cpu=1, gpu=0, memMB=64), "poll_interval_s": 0.2}


@dataclass
class Found:
    rank: int
    words: int
    most: str


def counted(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


for kind, is_deferrable in (("sync", False), ("deferrable", True)):
    with DAG(f"MARK_{kind}", schedule=None):

        @task
        def texts() -> list[list[str]]:
            return [["a b a", "c"], ["b b b b", "b a"]]

        @task.launch_python(num_replicas=2, gather=True, deferrable=is_deferrable, **ROLE)
        def count(lines: list[str], replica: Replica) -> list[dict]:
            found = counted(replica.part(lines))
            ((most, _),) = found.most_common(1)
            return asdict(Found(replica.id, sum(found.values()), most))

        @task.launch_python(deferrable=is_deferrable, **ROLE)
        def decide(found: list[list[dict]], goal: int) -> dict:
            words = sum(each["words"] for one in found for each in one)
            return {"way": "enough" if words >= goal else "too_few", "words": words, "loss": [math.nan]}

        @task.branch
        def choose(decision: dict) -> str:
            return decision["way"]

        counts = count.expand(lines=texts())
        choose(decide(counts, goal=10)) >> [EmptyOperator(task_id="enough"), EmptyOperator(task_id="too_few")]
"""


@pytest.mark.timeout(600)
@on_places
def test_a_mapped_gathered_value_chooses_the_branch_in_both_modes(place: Place, tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "words.py").write_text(FILE.replace("IMAGE", image_of(place)).replace("MARK", place.mark))
    home = tmp_path / "airflow"
    home.mkdir()
    env = migrated(home, {"LAUNCH_LOCAL_DEFAULT": place.connection})
    report = run_dags(dags, env, log := tmp_path / "log", 500)["words.py"]

    lines = log.read_text(encoding="utf-8")
    for kind in ("sync", "deferrable"):
        found = report[f"{place.mark}_{kind}"]
        assert found["tasks"] == {
            **dict.fromkeys(("texts[-1]", "count[0]", "count[1]", "decide[-1]", "choose[-1]"), "success"),
            "enough[-1]": "success",
            "too_few[-1]": "skipped",
        }, lines[-6000:]
        returned = found["returned"]
        assert returned["count[0]"] == [{"rank": 0, "words": 3, "most": "a"}, {"rank": 1, "words": 1, "most": "c"}]
        assert returned["decide[-1]"] == {"way": "enough", "words": 10, "loss": [None]}
    assert lines.count("the result has NaN or Infinity at 'value.loss[0]'") == 2
