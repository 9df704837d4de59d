"""Tests that `.ci/run` may skip because they passed on the same content."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from textwrap import dedent

import pytest

from tests.support import passed_before
from tests.support.passed_before import CHECKOUT, KEPT_S, PassedBefore, reachable

PLUGINS = ("-p", "xdist", "-p", "pytest_rerunfailures", "-p", "no:cacheprovider")
CONFTEST = """
    import os

    import pytest

    from tests.support import passed_before

    def key(item):
        marks = [mark.args[0] for mark in item.iter_markers("engine")]
        return os.environ["CONTENT"] if marks else None

    passed_before._key = key

    def pytest_configure(config):
        config.addinivalue_line("markers", "engine(name): needs it")
        if plugin := passed_before.create_plugin():
            config.pluginmanager.register(plugin)
"""
TESTS = """
    import os

    import pytest

    @pytest.mark.engine("docker")
    def test_passes():
        pass

    @pytest.mark.engine("docker")
    def test_fails():
        assert not os.environ.get("FAIL")

    @pytest.mark.engine("docker")
    def test_passes_at_its_second_try(tmp_path_factory):
        from pathlib import Path
        tried = Path(os.environ["TRIED"])
        if not tried.exists():
            tried.touch()
            assert False

    def test_without_an_engine():
        pass
"""


@pytest.fixture
def run(tmp_path):
    """Return a function: content, options of pytest, variables -> names of the tests that ran, output."""
    (tmp_path / "conftest.py").write_text(dedent(CONFTEST))
    (tmp_path / "test_it.py").write_text(dedent(TESTS))
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, [CHECKOUT, *sys.path])),
        "LAUNCH_TESTS_CACHE": str(tmp_path / "cache"),
        "LAUNCH_SOAK": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TRIED": str(tmp_path / "tried"),
    }

    def run(content: str, *args: str, **more: str) -> tuple[set[str], str]:
        command = [sys.executable, "-m", "pytest", *PLUGINS, "-v", "--reruns=1", *args]
        env = {**os.environ, **variables, **more, "CONTENT": content}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        names = {word.partition("::")[2] for word in done.stdout.split() if word.startswith("test_it.py::")}
        return names, done.stdout

    return run


WITH_ENGINE = {"test_passes", "test_fails", "test_passes_at_its_second_try"}
ALL = {*WITH_ENGINE, "test_without_an_engine"}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_only_what_passed_at_once_on_the_same_content_is_left_out(run, workers):
    first, _ = run("a", *workers, FAIL="1")
    again, output = run("a", *workers, LAUNCH_SOAK="")
    third, _ = run("a", *workers)
    changed, _ = run("b", *workers)

    assert first == ALL
    assert again == ALL - {"test_passes"}
    assert "1 test_it.py" in output
    assert third == {"test_without_an_engine"}
    assert changed == ALL


def test_a_soak_leaves_nothing_out(run):
    run("a")

    assert run("a", LAUNCH_SOAK="1")[0] == ALL


def test_a_result_is_forgotten_after_a_week(tmp_path):
    (tmp_path / "1.json").write_text('["x"]')

    assert PassedBefore(tmp_path)._read() == {"x"}
    assert PassedBefore(tmp_path, now=time.time() + KEPT_S + 60)._read() == set()


@pytest.mark.parametrize(
    ("test", "engine", "inside", "outside"),
    [
        (
            "tests/docker/test_rivals.py",
            "docker",
            ["schedulers/docker/wire.py", "schedulers/_kit/base.py", "follow/poller.py", "hooks/docker.py"],
            ["schedulers/slurm/commands.py", "schedulers/local/records.py", "pipelines/apps.py", "operators/launch.py"],
        ),
        ("tests/slurm/test_ssh.py", "slurm", ["schedulers/slurm/ssh.py"], ["schedulers/kubernetes/client.py"]),
        (
            "tests/airflow/test_operator_docker.py",
            "docker",
            ["operators/launch.py", "_task/secrets.py"],
            ["pipelines/apps.py"],
        ),
        ("tests/pipelines/test_places.py", "kubernetes", ["pipelines/apps.py"], []),
    ],
)
def test_a_test_depends_on_what_it_can_reach(test, engine, inside, outside):
    files = {*reachable(test, frozenset({engine}))}

    assert {f"airflow_provider_launch/{name}" for name in inside} <= files
    assert files.isdisjoint(f"airflow_provider_launch/{name}" for name in outside)
    assert {test, "tests/conftest.py", "tests/support/apps.py", "constraints.txt"} <= files
    assert files.isdisjoint({"README.md", "bench/run.py", "tests/live/airflow.py"})


def test_helpers_of_other_folders_count_if_they_are_named():
    docker = {*reachable("tests/docker/test_rivals.py", frozenset({"docker"}))}
    batch = {*reachable("tests/aws_batch/test_state.py", frozenset({"aws_batch"}))}
    model = {*reachable("tests/model/test_plugin_package.py", frozenset({"docker"}))}

    assert "tests/engines/docker/images.py" in docker & batch
    assert docker.isdisjoint({"tests/engines/slurm/cluster.py", "tests/airflow/support.py"})
    assert "tests/airflow/support.py" in model


def test_of_the_page_of_kubernetes_only_the_role_counts(monkeypatch):
    test, kubernetes = "tests/contract/test_kubernetes.py", frozenset({"kubernetes"})
    content_key = passed_before.content_key.__wrapped__
    before = content_key(test, kubernetes)

    assert not [name for name in reachable(test, kubernetes) if name.startswith("docs/")]
    monkeypatch.setattr(passed_before, "rules_of_the_page", rules := lambda _: [{"verbs": ["get"]}])
    rules.__name__ = "rules_of_the_page"
    assert content_key(test, kubernetes) != before


def test_only_what_a_program_can_notice_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(passed_before, "CHECKOUT", tmp_path)

    def content(name: str, text: str) -> bytes:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return passed_before._content(file)

    code = '"""A."""\n\ndef f():\n    """B."""\n    return 1  # C\n'
    for name, same, other in [
        ("airflow_provider_launch/a.py", [("A", "D"), ("B", "D"), ("C", "D")], [("1", "2")]),
        ("airflow_provider_launch/components/a.py", [("A", "D"), ("C", "D")], [("B", "D")]),
        ("tests/a.py", [("C", "D")], [("A", "D"), ("B", "D")]),
        ("example_dags/a.py", [], [("C", "D")]),
    ]:
        before = content(name, code)
        for changes, equal in ((same, True), (other, False)):
            for old, new in changes:
                assert (content(name, code.replace(old, new)) == before) is equal, (name, old)
