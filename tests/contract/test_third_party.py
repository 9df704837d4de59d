"""The contract of a third-party scheduler, as a plug-in author writes it."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.parts import replica_env
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.testing import SchedulerContract
from airflow_provider_launch.testing.example_scheduler import create_scheduler
from tests.support.repeats import often
from tests.support.threads_engine import ThreadsEngine


class TestThreads(SchedulerContract):
    factory = "airflow_provider_launch.testing.example_scheduler:create_scheduler"
    many = often(50, 200)
    endless = 1_000_000  # the minimum for a plug-in, which stores lines unchanged
    capabilities = frozenset({Capability.ADOPT, Capability.STREAMS})
    timeout_s = 30
    option_names = {"time_limit_s": None}  # noqa: RUF012 - as authors write it
    xfail = {  # noqa: RUF012 - as authors write it
        "test_an_app_outlives_the_process_that_launched_it": "the threads that run the app are in that process",
    }

    @pytest.fixture
    def program_with_a_space(self, tmp_path):
        program = tmp_path / "prints its args"
        program.write_text("#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n")
        program.chmod(0o755)
        return str(program)

    @pytest.fixture
    def never_starts(self):
        return {}, {"hold": "never released"}

    @pytest.fixture
    def engine(self, tmp_path):
        return ThreadsEngine(tmp_path)

    @pytest.fixture
    def params(self, engine):
        return {"root": str(engine.root)}

    @pytest.fixture
    def unreachable_params(self, tmp_path):
        return {"root": str(tmp_path / "nowhere")}

    def test_the_kit_polls_with_pauses(self, apps):
        """The engine of an author may be shared with many users."""
        app_id = apps.start(apps.sh("sleep 1"))
        scheduler, asked = apps.another(), []
        describe = scheduler.describe
        scheduler.describe = lambda app_id: asked.append(app_id) or describe(app_id)
        apps.end(app_id, scheduler)

        assert len(asked) < 40


def test_the_example_gives_each_replica_the_promised_variables(tmp_path):
    """Authors copy it."""
    role = Role("main", str(tmp_path), entrypoint="true", num_replicas=2)
    info = create_scheduler("test", root=str(tmp_path)).submit_dryrun(AppDef("app", [role]), {}, app_id="app-1")

    for k, replica in enumerate(info.request["replicas"]):
        assert replica["env"].items() >= replica_env("app-1", role, k, "localhost").items()
        assert replica["env"]["LAUNCH_ATTEMPT"] == "0"
