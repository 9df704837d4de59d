"""Workspaces of jobs: built on a real Docker engine, pushed to a real registry, pulled by the host of the job."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest

from airflow_provider_launch.components.utils import sh
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts, AwsBatchRunOpts
from airflow_provider_launch.schedulers.aws_batch.registry import EcrBuilds
from airflow_provider_launch.schedulers.aws_batch.request import build_request, request_in
from airflow_provider_launch.schedulers.aws_batch.scheduler import create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.specs import AppDef, AppState, InvalidAppError, Resource, Role, SchedulerRejectedError
from airflow_provider_launch.specs.workspaces import Workspace
from tests.aws_batch.conftest import described

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
engines = [pytest.mark.engine("aws_batch"), pytest.mark.engine("registry"), pytest.mark.timeout(300)]


@pytest.fixture
def launched(scheduler, batch_queue, batch_params, docker_engine, docker_proxy, docker_project):
    """Returns a function that prepares a launch as a worker does; each call is another worker."""
    app_id = make_unique("workspaces")

    def launch(image: str = docker_engine.image, **cfg: Any) -> Any:
        role = Role("main", image, entrypoint="cat", args=["mark"], resource=Resource(1, 0, 64))
        given = {"queue": batch_queue, "build_host": docker_proxy.url, **cfg}
        with Runner("tests", scheduler_params={"aws_batch": batch_params}) as runner:
            return runner.dryrun(AppDef("workspaces", [role]), "aws_batch", given, str(docker_project), app_id=app_id)

    yield launch
    scheduler.delete(app_id)


@pytest.fixture(params=[False, True], ids=["plain", "definition"])
def defaults(request, definition) -> dict[str, Any]:
    """Options of a launch without and with a job definition of the user."""
    return {"job_definition": definition} if request.param else {}


class TestOfJobs:
    pytestmark = engines

    def test_a_retry_adopts_the_job_and_runs_the_same_image(
        self, launched, defaults, scheduler, batch_params, batch_server, docker_proxy, registry, docker_project
    ) -> None:
        """A second worker with the same files must not start a second job, or send the image again."""
        first, second = (launched(image_repo=f"{registry}/jobs", **defaults) for _ in range(2))
        app_id = scheduler.schedule(first)
        assert described(scheduler, app_id, timeout_s=150).state is AppState.SUCCEEDED
        (text,) = [line.text for line in scheduler.read_logs(app_id, "main", 0).lines]
        with contextlib.closing(create_scheduler("other", **batch_params)) as other:
            assert other.schedule(second) == app_id

        assert text.strip() == (docker_project / "mark").read_text()
        images = {one.request.definition(0, 0)["containerProperties"]["image"] for one in (first, second)}
        (image,) = images
        assert image.startswith(f"{registry}/jobs:")
        assert len(image.rpartition(":")[2]) == 64
        assert first.request.spec_hash == second.request.spec_hash
        assert batch_server.control(app=app_id)["starts"] == 1
        assert len(docker_proxy.matching("POST", r"/build$")) == 1
        assert len(docker_proxy.matching("POST", r"/push$")) == 1

    def test_another_content_is_another_app(self, launched, scheduler, registry, docker_project) -> None:
        first = launched(image_repo=f"{registry}/jobs")
        (docker_project / "mark").write_text("changed")

        assert launched(image_repo=f"{registry}/jobs").request.spec_hash != first.request.spec_hash
        assert launched(image_repo=f"{registry}/others").request.spec_hash != first.request.spec_hash

    def test_a_registry_that_is_away_is_reported_and_nothing_submitted(self, launched, scheduler, batch_server) -> None:
        info = launched(image_repo="127.0.0.1:1/away")
        with pytest.raises(SchedulerRejectedError, match=r"127\.0\.0\.1:1/away.*cannot be pushed"):
            scheduler.schedule(info)

        assert batch_server.control(app=info.request.app_id)["left"] == 0

    def test_a_missing_repository_is_refused_before_the_build(self, launched, docker_proxy) -> None:
        with pytest.raises(InvalidAppError, match="set the option image_repo"):
            launched()

        assert docker_proxy.matching("POST", r"/build$") == []

    def test_the_image_of_a_definition_is_no_base(self, launched, definition, docker_proxy, registry) -> None:
        with pytest.raises(InvalidAppError, match="name the image on which the workspace is built"):
            launched("", image_repo=f"{registry}/jobs", job_definition=definition)

        assert docker_proxy.matching("POST", r"/build$") == []

    @pytest.mark.parametrize("of_role", [False, True], ids=["first-role", "own"])
    def test_a_component_brings_its_workspace(
        self, batch_queue, batch_params, docker_engine, docker_proxy, registry, docker_project, of_role
    ) -> None:
        """The workspace of a launch, or that of a role."""
        options = {"queue": batch_queue, "build_host": docker_proxy.url, "image_repo": f"{registry}/components"}
        app = sh("cat", "mark", image=docker_engine.image, memMB=64)
        if of_role:
            app.roles[0].workspace = Workspace({str(docker_project): ""})
        with Runner("tests", scheduler_params={"aws_batch": batch_params}) as runner:
            handle = (
                runner.run(app, "aws_batch", options)
                if of_role
                else runner.run_component(
                    "utils.sh",
                    ["--image", docker_engine.image, "--memMB", "64", "cat", "mark"],
                    "aws_batch",
                    options,
                    str(docker_project),
                )
            )
            try:
                status = runner.wait(handle, 0.2, timeout=150)
                lines = [*runner.log_lines(handle, "sh")]
            finally:
                runner.delete(handle)

        assert status is not None
        assert status.state is AppState.SUCCEEDED
        assert [line.strip() for line in lines] == [(docker_project / "mark").read_text()]

    def test_the_login_of_ecr_reaches_the_engine_and_no_request(
        self, launched, scheduler, batch_proxy, docker_proxy, batch_server
    ) -> None:
        """The push itself fails, because the tests have no ECR."""
        info = launched(image_repo=f"{ECR}/team/launch")
        before = batch_proxy.count("POST")
        with pytest.raises(SchedulerRejectedError, match="cannot be pushed"):
            scheduler.schedule(info)
        (push,) = docker_proxy.matching("POST", r"/push$")
        header = next(text for name, text in push.headers if name.lower() == "x-registry-auth")
        login = json.loads(base64.urlsafe_b64decode(header))

        assert (login["username"], login["serveraddress"]) == ("AWS", ECR)
        assert login["password"]
        assert batch_proxy.count("POST") == before + 1  # only the login; nothing was registered
        assert login["password"] not in f"{info}{info.request}"


def test_options_of_workspaces_do_not_change_the_app() -> None:
    """A retry after an upgrade must find the app of the older version, which had no such options."""
    app = AppDef("x", [Role("main", "repository:tag", entrypoint="true")])
    older = spec_hash(app, AwsBatchRunOpts(queue="q"))

    assert build_request(app, AwsBatchOpts(queue="q"), "app-1", {}).spec_hash == older
    request = build_request(app, AwsBatchOpts(queue="q", image_repo="r/x", quiet=True), "app-1", {})
    assert request.spec_hash == older
    found = request_in(request.definition(0, 0))
    assert found is not None
    assert found.spec_hash == older


class Logins:
    """Counts logins, which are valid for some time."""

    def __init__(self, valid_s: float) -> None:
        self.asked: list[str] = []
        self._valid_s = valid_s

    def now(self) -> float:
        return 1_000_000.0

    def registry_login(self, region: str) -> Any:
        from datetime import datetime, timezone

        self.asked.append(region)
        until = datetime.fromtimestamp(self.now() + self._valid_s, timezone.utc)
        return base64.b64encode(b"AWS:word").decode(), until


@pytest.mark.parametrize(
    ("repository", "region"),
    [
        (f"{ECR}/team/launch", "eu-west-1"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/x", "cn-north-1"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/x", "us-gov-west-1"),
        ("123456789012.dkr-ecr.us-east-1.on.aws/x", "us-east-1"),
        ("public.ecr.aws/x/y", None),
        ("registry.example/123456789012.dkr.ecr.eu-west-1.amazonaws.com/x", None),
        (f"{ECR}.example/x", None),
        ("team/launch", None),
        (None, None),
    ],
    ids=["ecr", "china", "fips", "dual-stack", "public", "path", "longer", "hub", "none"],
)
def test_only_a_host_of_ecr_gets_its_login(repository: str | None, region: str | None) -> None:
    """The login of AWS must not be sent to another registry."""
    aws: Any = Logins(43_200)
    found = EcrBuilds(aws).connect({"image_repo": repository, "build_host": "unix:///nowhere"})

    assert (found is not None) == (region is not None)
    assert aws.asked == ([region] if region else [])


@pytest.mark.parametrize(("valid_s", "logins"), [(43_200, 1), (60, 2)])
def test_a_login_is_used_again_until_shortly_before_its_end(valid_s: float, logins: int) -> None:
    aws: Any = Logins(valid_s)
    builds = EcrBuilds(aws)
    for _ in range(2):
        builds.connect({"image_repo": f"{ECR}/x", "build_host": "unix:///nowhere"})

    assert len(aws.asked) == logins
