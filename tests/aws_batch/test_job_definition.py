"""An existing job definition gives the defaults of a launch."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.aws_batch.job_definition import options_with_defaults, refuse_other_kinds
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.states import AppState
from tests.aws_batch.conftest import described


def dryrun(scheduler, queue, definition, role: Role, **cfg):
    given = {"queue": queue, "job_definition": definition, **cfg}
    return scheduler.submit_dryrun(AppDef("jobs", [role]), given, app_id=make_unique("jobs"))


@pytest.mark.engine("aws_batch")
@pytest.mark.timeout(120)
def test_a_job_runs_with_the_defaults_of_a_definition(scheduler, batch_queue, definition):
    """The image is not repeated in the DAG, and a variable of the role wins."""
    script = 'echo "[\\"$(id -u)\\", \\"$GREETING\\", \\"$PLACE\\"]" > $LAUNCH_RESULT_PATH'
    role = Role("main", "", entrypoint="sh", args=["-c", script], env={"PLACE": "mars"})
    app_id = scheduler.schedule(dryrun(scheduler, batch_queue, definition, role))

    assert described(scheduler, app_id).state is AppState.SUCCEEDED
    assert scheduler.result(app_id) == ["1000", "cost $5", "mars"]


@pytest.mark.engine("aws_batch")
def test_the_dry_run_names_the_definition_and_the_claim(scheduler, batch_queue, definition):
    info = dryrun(scheduler, batch_queue, definition, Role("main", "", entrypoint="true"))

    assert f"defaults: job definition {definition}:1; the app registers its own, whose revision 1 is its claim" in str(
        info
    )
    assert '"value": "96"' in str(info)


@pytest.mark.engine("aws_batch")
def test_fields_of_role_and_options_win(scheduler, batch_queue, definition):
    role = Role("main", "other:1", entrypoint="true", resource=Resource(2, 0, 512))
    body = dryrun(scheduler, batch_queue, definition, role, user="7").request.definition(0, 0)["containerProperties"]

    assert (body["image"], body["user"]) == ("other:1", "7")
    assert {one["type"]: one["value"] for one in body["resourceRequirements"]} == {"VCPU": "2", "MEMORY": "512"}


@pytest.mark.engine("aws_batch")
def test_the_app_is_the_same_after_a_new_revision(scheduler, batch_queue, definition, batch_server):
    """A retry must find its app, although another user has registered a new revision of the definition meanwhile."""
    role = Role("main", "", entrypoint="true")
    first = dryrun(scheduler, batch_queue, definition, role)
    made = scheduler.aws.existing(definition)
    container = {**made["containerProperties"], "user": "2000"}
    scheduler.aws.register({"jobDefinitionName": definition, "type": "container", "containerProperties": container})
    second = dryrun(scheduler, batch_queue, definition, role)

    assert second.request.opts.job_definition == f"{definition}:2"
    assert first.request.spec_hash == second.request.spec_hash


@pytest.mark.engine("aws_batch")
@pytest.mark.parametrize("name", ["missing", "missing:3"])
def test_a_definition_that_does_not_exist_is_refused(scheduler, batch_queue, name):
    with pytest.raises(InvalidAppError, match=f"no active job definition '{name}'"):
        dryrun(scheduler, batch_queue, name, Role("main", "", entrypoint="true"))


def test_a_definition_of_nodes_is_refused():
    """Its nodes are roles here."""
    definition = {"jobDefinitionName": "mpi", "revision": 4, "type": "multinode", "nodeProperties": {"numNodes": 2}}

    with pytest.raises(UnsupportedError, match=r"'mpi:4' \(type 'multinode'\) has no containerProperties"):
        refuse_other_kinds(definition)


def test_options_take_the_rest_of_a_definition():
    """A volume of the definition, its roles and its secrets are part of the job."""
    definition = {
        "jobDefinitionName": "users",
        "revision": 2,
        "platformCapabilities": ["FARGATE"],
        "containerProperties": {
            "image": "i",
            "jobRoleArn": "arn:theirs",
            "executionRoleArn": "arn:execution",
            "secrets": [{"name": "KEY", "valueFrom": "arn:key"}],
            "volumes": [{"name": "v", "host": {"sourcePath": "/data"}}],
            "mountPoints": [{"sourceVolume": "v", "containerPath": "/data"}],
            "ulimits": [],
        },
    }
    found = options_with_defaults(AwsBatchOpts(queue="q", job_role_arn="arn:ours"), definition)

    assert (found.platform, found.job_role_arn, found.execution_role_arn) == ("FARGATE", "arn:ours", "arn:execution")
    assert found.secrets == {"KEY": "arn:key"}
    assert found.overlay == {
        "executionRoleArn": "arn:execution",
        "volumes": [{"name": "v", "host": {"sourcePath": "/data"}}],
        "mountPoints": [{"sourceVolume": "v", "containerPath": "/data"}],
    }
