"""Each DAG of the guides, of the cookbook and of the pages of the schedulers runs as it is printed.

DAGs on local processes run in a real Airflow; for the others the request is made, by the dry run.
`test_cookbook_engines.py` runs those of the cookbook on their engines.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.airflow.versions import HAS_STORE
from tests.support.airflow_home import migrated, run_dags

pytestmark = pytest.mark.skipif(not HAS_STORE, reason="the pages are written for the newest Airflow")
ROOT = Path(__file__).resolve().parents[2]
ENGINES = [f"docs/{name}.md" for name in ("aws_batch", "docker", "kubernetes", "local", "slurm")]
PAGES = {
    "guides": sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/guides/*.md")),
    "cookbook": sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/cookbook/*.md")),
    "schedulers": ENGINES,
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONNECTIONS = {
    "LAUNCH_AWS_BATCH_DEFAULT": {"region_name": "eu-west-1", "queue": "research"},
    "LAUNCH_DOCKER_DEFAULT": {},
    "LAUNCH_KUBERNETES_DEFAULT": {"namespace": "training"},
    "LAUNCH_SLURM_DEFAULT": {"root": "/shared/launch"},
}
FAILS = {"cookbook_failure": "train[-1]"}
"""DAGs whose subject is a task that fails."""
RETURNED = {
    ("cookbook_map_reduce", "add[-1]"): 16,
    ("cookbook_search", "best[-1]"): {"rate": 0.1, "loss": 0.0},
    ("cookbook_failure", "report[-1]"): "FAILED: trainer/0: ValueError: loss is NaN",
    ("input_by_share", "total[-1]"): 4950,
}
RESULTS = {("cookbook_resume", "train[-1]"): {"resumed_at": 2}}
"""The part `result` of the return value of tasks."""
STATES = {
    ("cookbook_nothing_to_do", "load[-1]"): "skipped",
    ("cookbook_nothing_to_do", "publish[-1]"): "skipped",
    ("results", "publish[-1]"): "success",
    ("results", "report[-1]"): "skipped",
}


def write_blocks(page: str, folder: Path) -> None:
    """Write the Python blocks of a page as DAG files, and other blocks whose first line is `# NAME` as that file."""
    folder.mkdir(parents=True)
    for number, (language, text) in enumerate(BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))):
        if language == "python":
            (folder / f"dag_{number}.py").write_text(text, encoding="utf-8")
        elif named := re.match(r"# (\S+\.py)\n", text):
            (folder / named[1]).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    connections = {
        name: {"conn_type": name.removesuffix("_DEFAULT").lower(), "extra": extra}
        for name, extra in CONNECTIONS.items()
    }
    return migrated(tmp_path_factory.mktemp("airflow"), connections)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", sorted(PAGES))
def test_dags_of_the_pages_run(environment, kind, tmp_path) -> None:
    for page in PAGES[kind]:
        write_blocks(page, tmp_path / "dags" / Path(page).stem)

    # The file `log` has the lines of the tasks.
    report = run_dags(tmp_path / "dags", environment, tmp_path / "log", 850)

    assert {file.partition("/")[0] for file in report} == {Path(page).stem for page in PAGES[kind]}
    dags = {dag_id: found for file in report.values() for dag_id, found in file.items()}
    failed = {
        (dag_id, task)
        for dag_id, found in dags.items()
        for task, state in found["tasks"].items()
        if state not in {"success", "skipped", "dry run"}
    }
    assert failed == {(dag_id, task) for dag_id, task in FAILS.items() if dag_id in dags}
    returned = {(dag_id, task): dags[dag_id]["returned"].get(task) for dag_id, task in RETURNED if dag_id in dags}
    assert returned == {key: value for key, value in RETURNED.items() if key[0] in dags}
    results = {(dag_id, task): dags[dag_id]["returned"][task]["result"] for dag_id, task in RESULTS if dag_id in dags}
    assert results == {key: value for key, value in RESULTS.items() if key[0] in dags}
    states = {(dag_id, task): dags[dag_id]["tasks"][task] for dag_id, task in STATES if dag_id in dags}
    assert states == {key: value for key, value in STATES.items() if key[0] in dags}


def test_the_cookbook_has_twelve_dags() -> None:
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES["cookbook"]]

    assert len({name for text in texts for name in re.findall(r'DAG\("(\w+)"', text)}) == 12
