"""Code that was written for TorchX works after its import was changed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from airflow_provider_launch.components import dist, utils
from airflow_provider_launch.components.component_test_base import ComponentTestCase
from airflow_provider_launch.components.structured_arg import StructuredNameArgument
from airflow_provider_launch.schedulers import get_scheduler_factories
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.tracker import AppRun, TrackerSource
from airflow_provider_launch.tracker.backend.fsspec import create

OTHER_NAMES = {"local": "local_cwd", "docker": "local_docker"}


@pytest.mark.parametrize("name", ["local", "docker", "kubernetes", "slurm", "aws_batch"])
def test_a_scheduler_is_in_the_module_of_torchx(name):
    """Launchers that build on a scheduler import its class and its options from there."""
    module = importlib.import_module(f"airflow_provider_launch.schedulers.{name}_scheduler")

    made = module.create_scheduler("test")
    assert made.backend == OTHER_NAMES.get(name, name)
    assert made.backend in get_scheduler_factories()
    assert any(each.endswith("Opts") for each in module.__all__)
    made.close()


class Components(ComponentTestCase):
    def test_builtin(self):
        self.validate(utils, "echo")

    def test_choice(self):
        """It needs one of two optional arguments, so it cannot be called without any."""
        self.validate(dist, "ddp")

    def test_run(self):
        status = self.run_component(utils.echo, {"msg": "done"}, {"root": self.test_dir}, timeout=60)
        assert status.state == AppState.SUCCEEDED


@pytest.mark.parametrize("name", ["test_builtin", "test_choice", "test_run"])
def test_a_valid_component_passes_its_test(name):
    Components(name).debug()


def test_the_parts_of_a_name_are_equal_as_in_torchx():
    assert StructuredNameArgument.parse_from("/foo", m="bar.baz") == StructuredNameArgument("default-experiment", "foo")


@pytest.mark.parametrize(
    "text",
    ["def train(lr: object.x): ...", "def train() -> AppDef:\n    return AppDef('a', [])"],
    ids=["signature", "app"],
)
def test_an_invalid_component_fails_its_test(text, tmp_path, monkeypatch):
    file = tmp_path / "bad_components.py"
    file.write_text(f"from airflow_provider_launch.specs import AppDef\n\n{text}\n")
    module = ModuleType("bad_components")
    module.__file__ = str(file)
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__) if "object.x" not in text else None
    monkeypatch.setitem(sys.modules, "bad_components", module)

    with pytest.raises((AssertionError, InvalidAppError)):
        Components().validate(module, "train")


def test_a_workspace_may_be_a_file_url(tmp_path):
    """TorchX's configuration file has this form."""
    (tmp_path / "train.py").write_text("print()")
    made = Workspace.from_str(f"file://{tmp_path}")
    made.merge_into(tmp_path / "copy")

    assert made == Workspace({str(tmp_path): ""})
    assert (tmp_path / "copy" / "train.py").exists()


@pytest.mark.parametrize("url", ["memory://notebook", "s3://bucket/code"])
def test_a_workspace_that_is_not_on_this_host_is_refused(url):
    with pytest.raises(InvalidAppError, match="is not a directory of this host; write its files into a directory"):
        Workspace.from_str(url)


def test_a_tracker_reads_the_configuration_file_of_torchx(tmp_path):
    """With a directory in its place the first record of the training would fail."""
    config = tmp_path / "fsspec.conf"
    config.write_text(f"# of the team\nprotocol=file\nroot_path={tmp_path}/runs\n")
    tracker = create(str(config))
    tracker.add_metadata("run", loss=0.5)

    assert create(f"{tmp_path}/runs").metadata("run") == {"loss": 0.5}


@pytest.mark.parametrize(("text", "cure"), [("protocol=file", "add the line root_path"), ("runs", "write name=value")])
def test_a_configuration_file_that_is_not_complete_is_refused(tmp_path, text, cure):
    config = tmp_path / "fsspec.conf"
    config.write_text(text)

    with pytest.raises(ValueError, match=cure):
        create(str(config))


def test_a_source_leads_to_the_run_that_was_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHX_TRACKERS", "fsspec")
    monkeypatch.setenv("TORCHX_TRACKER_FSSPEC_CONFIG", f"{tmp_path}/runs")
    tracker = create(f"{tmp_path}/runs")
    tracker.add_metadata("first", loss=0.5)
    run = AppRun("second", [tracker])
    run.add_source("first")

    (source,) = run.sources()
    assert source == TrackerSource("first")
    assert source.parent.id == "first"
    assert source.parent.backends[0].metadata("first") == {"loss": 0.5}
