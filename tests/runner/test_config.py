"""Config files: found, read, merged, and written as a template."""

from __future__ import annotations

import io
import logging

import pytest

from airflow_provider_launch.runner import config
from airflow_provider_launch.specs import InvalidRunConfigException
from airflow_provider_launch.specs.runopts import runopts
from tests.support.fake_scheduler import FakeScheduler


class Typed(FakeScheduler):
    def _run_opts(self):
        opts = runopts()
        opts.add("queue", str, "where to run, in as many words as fit into a template of sixty", required=True)
        opts.add("count", int, "how many", required=True)
        opts.add("tags", list[str], "labels", default=["a", "b"])
        opts.add("env", dict[str, str], "variables", default={"k": "v"})
        opts.add("none", str, "unset")
        opts.add("ratio", float, "share", default=0.5)
        opts.add("run_as", bool, "user", default=True)
        opts.add("b.x", int, "nested", default=1)
        return opts


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A home and a current directory without config files, and one scheduler."""
    for name in ("LAUNCHCONFIG", "TORCHXCONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(config, "DEFAULT_CONFIG_DIRS", [str(tmp_path / "home"), "."])
    monkeypatch.setattr(config, "get_scheduler_factories", lambda: {"typed": lambda name, **_: Typed(name)})
    return tmp_path


def loaded(text, **cfg):
    config.load("typed", io.StringIO(text), cfg)
    return cfg


# ---- files -----------------------------------------------------------------------------------------------------------


def test_home_comes_first_and_the_new_name_wins(place):
    assert config.find_configs() == []
    (place / "here" / ".torchxconfig").touch()
    (place / "home" / ".torchxconfig").touch()
    assert config.find_configs() == [str(place / "home" / ".torchxconfig"), ".torchxconfig"]
    (place / "here" / ".launchconfig").touch()
    assert config.find_configs() == [str(place / "home" / ".torchxconfig"), ".launchconfig"]
    assert config.find_configs([str(place / "here")]) == [str(place / "here" / ".launchconfig")]


@pytest.mark.parametrize("variable", ["LAUNCHCONFIG", "TORCHXCONFIG"])
def test_the_variable_names_the_only_file(place, monkeypatch, variable):
    (place / "home" / ".launchconfig").touch()
    (place / "own").touch()
    monkeypatch.setenv(variable, str(place / "own"))
    assert config.find_configs() == [str(place / "own")]
    monkeypatch.setenv(variable, "")
    assert config.find_configs() == []
    monkeypatch.setenv(variable, "/no/such")
    with pytest.raises(FileNotFoundError, match=f"{variable}='/no/such'"):
        config.find_configs()


# ---- options ---------------------------------------------------------------------------------------------------------


def test_values_get_the_types_of_their_options():
    text = "[typed]\nqueue = a:b\ncount=3\ntags = x;y\nenv = a:1;b:2\nratio = 1\nrun_as = no\nb.x = 2\nnone = None\n"

    assert loaded(text) == {
        "queue": "a:b", "count": 3, "tags": ["x", "y"], "env": {"a": "1", "b": "2"}, "ratio": 1.0, "run_as": False,
        "b.x": 2, "none": None,
    }  # fmt: skip


def test_given_options_stay_under_any_spelling():
    assert loaded("[typed]\nrun_as = no\nqueue = q\n", runAs=True) == {"runAs": True, "queue": "q"}


def test_other_sections_and_signs_are_left_alone():
    assert loaded("[other]\nqueue = q\n") == {}
    assert loaded("[typed]\nqueue = 50%% $HOME # no comment\n") == {"queue": "50%% $HOME # no comment"}


def test_an_unknown_option_is_skipped_with_a_hint(caplog):
    with caplog.at_level(logging.WARNING):
        assert loaded("[typed]\nquue = q\n") == {}

    assert "quue" in caplog.text
    assert "'queue'" in caplog.text


def test_a_wrong_value_names_its_option():
    with pytest.raises(InvalidRunConfigException, match="count"):
        loaded("[typed]\ncount = many\n")


def test_an_invalid_file_is_reported():
    with pytest.raises(ValueError, match="not valid INI"):
        loaded("queue = q\n")


def test_apply_merges_files_and_the_first_wins(place):
    (place / "home" / ".launchconfig").write_text("[typed]\nqueue = home\n")
    (place / "here" / ".launchconfig").write_text("[typed]\nqueue = here\ncount = 1\ntags = x\n")
    cfg = {"tags": ["given"]}
    config.apply("typed", cfg)

    assert cfg == {"tags": ["given"], "queue": "home", "count": 1}


def test_older_names_of_schedulers_find_their_section(place, monkeypatch):
    monkeypatch.undo()
    cfg = {}
    config.load("local", io.StringIO("[local_cwd]\nprepend_cwd = yes\n"), cfg)
    config.load("local_cwd", io.StringIO("[local]\ngrace_s = 3\n"), cfg)

    assert cfg == {"prepend_cwd": True, "grace_s": 3.0}


# ---- other sections --------------------------------------------------------------------------------------------------


def test_sections_with_a_prefix(place):
    (place / "home" / ".launchconfig").write_text(
        "[component:dist.ddp]\nj = 2x4\nscript_args = a b --c=d\n[component:]\nx=1\n"
    )
    (place / "here" / ".launchconfig").write_text(
        "[component:dist.ddp]\nj = 1x1\nimage = i\n[:x]\ny=1\n[cli:run]\nworkspace =\n    ~/a:\n    ~/b: lib\n"
    )

    assert config.load_sections("component") == {
        "dist.ddp": {"j": "2x4", "script_args": "a b --c=d", "image": "i"},
    }
    assert config.get_configs("component", "no.such") == {}
    assert config.get_config("component", "dist.ddp", "image") == "i"
    assert config.get_config("cli", "run", "workspace") == "\n~/a:\n~/b: lib"


# ---- template --------------------------------------------------------------------------------------------------------


def test_a_template_has_every_option_and_loads_back():
    text = io.StringIO()
    config.dump(text)

    assert text.getvalue().splitlines()[:4] == [
        "[typed]",
        "queue = #FIXME:(str) where to run, in as many words as fit into a template of six",
        "count = #FIXME:(int) how many",
        "tags = a;b",
    ]
    defaults = {name: opt.default for name, opt in Typed().run_opts() if not opt.is_required}
    found = loaded(text.getvalue())
    assert found.pop("queue").startswith("#FIXME:")
    assert found == defaults


def test_a_template_may_have_only_required_options():
    text = io.StringIO()
    config.dump(text, ["typed"], required_only=True)

    assert len(text.getvalue().split()) > 3
    assert "tags" not in text.getvalue()


def test_an_unknown_scheduler_has_no_template():
    with pytest.raises(ValueError, match="nope"):
        config.dump(io.StringIO(), ["nope"])


def test_a_scheduler_that_cannot_be_imported_is_left_out(monkeypatch, caplog):
    def broken(*_, **__):
        raise ImportError("no library")

    monkeypatch.setattr(
        config, "get_scheduler_factories", lambda: {"broken": broken, "typed": lambda name, **_: Typed(name)}
    )
    text = io.StringIO()
    config.dump(text)

    assert "[broken]" not in text.getvalue()
    assert "no library" in caplog.text


def test_the_builtin_schedulers_have_templates_that_load_back(monkeypatch):
    monkeypatch.undo()
    text = io.StringIO()
    config.dump(text)
    from airflow_provider_launch.schedulers import get_builtin_scheduler_factories

    for name, factory in get_builtin_scheduler_factories().items():
        cfg = {}
        config.load(name, io.StringIO(text.getvalue()), cfg)
        made = factory("x")
        assert cfg == {name: opt.default for name, opt in made.run_opts()}
        made.close()
