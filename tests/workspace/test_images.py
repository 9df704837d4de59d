"""Workspaces on a real Docker engine and a real registry: build, push, and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, AppState, InvalidAppError, Role, SchedulerRejectedError
from tests.engines.registry import serve_registry
from tests.faults import FaultProxy

pytestmark = [pytest.mark.engine("docker"), pytest.mark.engine("registry")]


@pytest.fixture
def runner(docker_proxy: FaultProxy):
    with Runner("tests", scheduler_params={"docker": {"host": docker_proxy.url}}) as runner:
        yield runner


def name_of(project: Path) -> str:
    return f"ws-{(project / 'mark').read_text()}"


def launched(runner: Runner, image: str, project: Path, script: str = "cat mark", **cfg: Any) -> tuple[str, Any]:
    # The engine is shared: no other app has this name.
    app = AppDef(name_of(project), [Role("main", image, entrypoint="sh", args=["-c", script])])
    handle = runner.run(app, "docker", {"pull": "never", **cfg}, str(project))
    status = runner.wait(handle, 0.2, timeout=60)
    lines = list(runner.log_lines(handle, "main"))
    runner.delete(handle)
    return "".join(lines), status


def test_an_unchanged_workspace_is_built_and_pushed_once(
    runner, docker_engine, docker_proxy, registry, docker_project, caplog
):
    caplog.set_level("INFO")
    for _ in range(3):
        told, status = launched(runner, docker_engine.image, docker_project, image_repo=f"{registry}/once")
        assert (told, status.state) == ((docker_project / "mark").read_text(), AppState.SUCCEEDED)

    assert len(docker_proxy.matching("POST", r"/build$")) == 1
    assert len(docker_proxy.matching("POST", r"/push$")) == 1
    # Progress of the upload, which may take minutes.
    texts = [record.getMessage() for record in caplog.records]
    assert any(re.fullmatch(rf"pushed layer [0-9a-f]+ of {registry}/once:.*", text) for text in texts), texts
    assert sum(text.startswith("pushing ") for text in texts) == 1


def test_the_dockerfile_of_the_workspace_builds_it(runner, docker_engine, docker_project, caplog):
    (docker_project / "Dockerfile.torchx").write_text(
        "ARG IMAGE\nFROM $IMAGE\nARG WORKSPACE\nRUN echo by recipe of $WORKSPACE > /recipe\nCOPY mark /mark\n"
    )
    with caplog.at_level("INFO"):
        told, _ = launched(runner, docker_engine.image, docker_project, "cat /recipe; test ! -e run.sh")
    texts = [record.getMessage() for record in caplog.records]
    first = next(number for number, text in enumerate(texts) if text.startswith("::group::build of "))
    output = texts[first + 1 : texts.index("::endgroup::")]

    assert told == f"by recipe of {docker_project}\n"
    # The log view shows a group closed.
    assert len(output) > 2
    assert [text for text in output if not text.startswith("build: ")] == []


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        ("FROM $IMAGE\nRUM true\n", InvalidAppError, ["Dockerfile.torchx", "RUM"]),
        ("ARG IMAGE\nFROM $IMAGE\nRUN echo the cause >&2; exit 7\n", SchedulerRejectedError, ["the cause", "7"]),
        ("FROM 127.0.0.1:1/no/such:image\n", SchedulerRejectedError, ["127.0.0.1:1"]),
    ],
)
def test_a_recipe_that_fails_is_reported_and_nothing_launched(
    runner, docker_engine, docker_project, recipe, error, words
):
    (docker_project / "Dockerfile.torchx").write_text(recipe)
    with pytest.raises(error) as caught:
        launched(runner, docker_engine.image, docker_project)

    assert [word for word in words if word not in str(caught.value)] == []
    assert name_of(docker_project) not in {row.name for row in runner.list("docker")}


def test_a_registry_that_refuses_is_reported_and_nothing_launched(runner, docker_engine, docker_project, tmp_path):
    # `user:password` by bcrypt; no test logs in.
    (tmp_path / "passwords").write_text("user:$2y$05$6vWkKpxpHqHfQ4nB1eZdfeCRoIfMvNpmPrZmXH0nUvOXJX0ZyPSoW\n")
    (tmp_path / "registry").mkdir()
    auth = f"auth:\n  htpasswd:\n    realm: tests\n    path: {tmp_path / 'passwords'}\n"
    served = serve_registry(tmp_path / "registry", auth)
    address = next(served)
    try:
        with pytest.raises(SchedulerRejectedError, match=r"cannot be pushed.*docker login"):
            launched(runner, docker_engine.image, docker_project, image_repo=f"{address}/closed")
    finally:
        served.close()

    assert name_of(docker_project) not in {row.name for row in runner.list("docker")}


def test_a_registry_that_is_away_is_reported(runner, docker_engine, docker_project):
    with pytest.raises(SchedulerRejectedError, match=r"127\.0\.0\.1:1/away.*cannot be pushed"):
        launched(runner, docker_engine.image, docker_project, image_repo="127.0.0.1:1/away")


def test_a_base_image_that_is_missing_is_reported(runner, docker_project):
    with pytest.raises(SchedulerRejectedError, match="no-such-base"):
        launched(runner, "127.0.0.1:1/no-such-base:1", docker_project)


def test_another_builder_needs_a_repository(runner, docker_engine, docker_project):
    with pytest.raises(InvalidAppError, match="image_repo"):
        launched(runner, docker_engine.image, docker_project, build_host=docker_engine.host)


def test_kubernetes_wants_a_repository_before_it_builds(docker_project):
    """Otherwise no node could pull the image."""
    app = AppDef("ws", [Role("main", "base", entrypoint="true")])
    with Runner("tests") as runner, pytest.raises(KeyError, match="image_repo"):
        runner.dryrun(app, "kubernetes", {}, str(docker_project))
