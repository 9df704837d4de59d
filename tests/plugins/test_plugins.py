"""Decorators for plug-in authors."""

from __future__ import annotations

import pytest

from airflow_provider_launch import plugins
from airflow_provider_launch.plugins import PluginType, halve_mem_down_to, powers_of_two_gpus
from airflow_provider_launch.plugins._register import Register
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers import get_scheduler_factories
from airflow_provider_launch.specs.named_resources import NamedResources
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.util.plugin_registry import PluginRegistry
from tests.support.fake_scheduler import FakeScheduler


@pytest.fixture
def registry():
    return PluginRegistry()


@pytest.fixture
def register(registry):
    return Register(registry)


@pytest.fixture
def own_registry():
    """The registry of the process, empty again after the test."""
    yield plugins.registry
    plugins.registry.clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with entry points for the schedulers `local`, `theirs` and `mine`."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = [f"{name} = tests.plugins.test_plugins:theirs" for name in ("local", "theirs", "mine")]
    (info / "entry_points.txt").write_text("\n".join(["[airflow_provider_launch.schedulers]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)


def host(fractional: float = 1.0) -> Resource:
    return Resource(cpu=int(64 * fractional), gpu=int(8 * fractional), memMB=int(256 * 1024 * fractional))


def made(registry):
    return {name: factory() for name, factory in registry.get(PluginType.NAMED_RESOURCE).items()}


def test_factories_are_registered_under_their_own_name_or_another(register, registry):
    @register.scheduler()
    def mine(session_name, **kwargs):
        return session_name, kwargs

    @register.tracker(name="yours")
    def other():
        return None

    assert dict(registry.get(PluginType.SCHEDULER)) == {"mine": mine}
    assert dict(registry.get(PluginType.TRACKER)) == {"yours": other}


def theirs(session_name, **kwargs):
    return FakeScheduler(session_name, backend="theirs")


@pytest.mark.usefixtures("own_registry")
def test_runners_find_a_registered_scheduler():
    @plugins.register.scheduler()
    def mine(session_name, **kwargs):
        return FakeScheduler(session_name, backend="mine")

    with Runner("s") as runner:
        assert runner.scheduler("mine").backend == "mine"
        assert runner.scheduler_backends()[0] == "local"


@pytest.mark.usefixtures("own_registry", "installed")
def test_registered_schedulers_take_precedence_over_entry_points_and_builtin_ones():
    """Code in this process has precedence; an installed package may replace our own schedulers."""

    @plugins.register.scheduler()
    def mine(session_name, **kwargs):
        return FakeScheduler(session_name, backend="mine")

    found = get_scheduler_factories()

    assert {name: found[name]("s").backend for name in ("local", "theirs", "mine")} == {
        "local": "theirs",
        "theirs": "theirs",
        "mine": "mine",
    }
    assert get_scheduler_factories(group="no.such.group", skip_defaults=True) == {}


def test_named_resources_are_tagged_with_their_name(register, registry):
    whole = register.named_resource(aliases=["alias"])(host)

    assert {name: res.get_resource_name() for name, res in made(registry).items()} == {"host": "host", "alias": "host"}
    assert not whole().is_fractional()
    assert host().tags == {}


@pytest.mark.parametrize("fractionals", [{1.0: "8", 0.5: "4"}, lambda res: {1.0: str(res.gpu), 0.5: str(res.gpu // 2)}])
def test_fractions_are_variants(register, registry, fractionals):
    register.named_resource(name="big", fractionals=fractionals)(host)
    found = made(registry)

    assert {name: (res.gpu, res.is_fractional()) for name, res in found.items()} == {
        "big": (8, False),
        "big_8": (8, False),
        "big_4": (4, True),
    }
    assert found["big_4"].get_resource_name() == "big_4"


@pytest.mark.parametrize("wrong", [{"aliases": ["host"]}, {"fractionals": {0.5: "x", 0.25: "x"}}])
def test_a_name_given_twice_is_refused(register, registry, wrong):
    with pytest.raises(ValueError, match="given twice"):
        register.named_resource(**wrong)(host)

    assert not made(registry)


def test_a_taken_name_is_refused_but_the_same_function_may_come_again(register, registry):
    register.named_resource()(host)
    register.named_resource()(host)

    with pytest.raises(ValueError, match=r"'host' is already registered by .*host"):
        register.named_resource(name="host")(lambda: Resource(1, 0, 1))
    assert made(registry)["host"].gpu == 8


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        (powers_of_two_gpus(host()), {1.0: "8", 0.5: "4", 0.25: "2", 0.125: "1"}),
        (powers_of_two_gpus(Resource(1, 1, 1)), {1.0: "1"}),
        (halve_mem_down_to(minGiB=64)(host()), {1.0: "256", 0.5: "128", 0.25: "64"}),
    ],
)
def test_fractions_halve_a_host(fractions, expected):
    assert fractions == expected


@pytest.mark.parametrize("gpus", [0, 3, 6])
def test_gpus_that_cannot_be_halved_are_refused(gpus):
    with pytest.raises(ValueError, match="power of two"):
        powers_of_two_gpus(Resource(1, gpus, 1))


@pytest.mark.parametrize(("mib", "least"), [(96 * 1024, 1), (1500, 1), (500, 1)])
def test_memory_that_cannot_be_halved_is_refused(mib, least):
    """Otherwise a variant would be named 1 and have 1.5 GiB."""
    with pytest.raises(ValueError, match=f"{mib} MB"):
        halve_mem_down_to(minGiB=least)(Resource(1, 0, mib))


def test_memory_is_halved_as_far_as_it_is_whole():
    assert halve_mem_down_to(minGiB=3)(Resource(1, 0, 12 * 1024)) == {1.0: "12", 0.5: "6", 0.25: "3"}
    assert halve_mem_down_to(minGiB=2)(Resource(1, 0, 6 * 1024)) == {1.0: "6", 0.5: "3"}


def test_registered_functions_are_marked_and_variants_are_names_of_the_module(register):
    whole = register.named_resource(name="marked", fractionals=powers_of_two_gpus)(host)

    assert (whole._plugin_type, whole._plugin_name) == (PluginType.NAMED_RESOURCE, "marked")
    variant = globals()["marked_4"]
    assert variant._plugin_name == "marked_4"
    assert (variant().gpu, variant().tags[plugins.resource_tags.IS_FRACTIONAL]) == (4, True)
    assert whole().tags[plugins.resource_tags.IS_FRACTIONAL] is False

    @register.component()
    def mine():
        return None

    assert (mine._plugin_type, mine._plugin_name) == (PluginType.COMPONENT, "mine")


@pytest.mark.usefixtures("own_registry", "installed")
def test_the_registry_reports_where_plugins_come_from(tmp_path):
    entries = tmp_path / "theirs-1.0.dist-info" / "entry_points.txt"
    entries.write_text(f"{entries.read_text()}\n[airflow_provider_launch.tracker]\nbroken = no_such_module_here:x\n")

    @plugins.register.scheduler("mine")
    def mine(session_name):
        return None

    report = plugins.registry().to_dict()

    assert plugins.registry() is plugins.registry
    assert isinstance(plugins.registry, plugins.PluginRegistry)
    schedulers = report["plugins"]["scheduler"]
    assert schedulers["theirs"] == "entry point tests.plugins.test_plugins:theirs of theirs 1.0"
    assert "registered by" in schedulers["mine"]
    name = "airflow_provider_launch.tracker.broken"
    assert list(report["errors"]) == [name]
    assert list(plugins.registry.load_errors(plugins.PluginType.TRACKER)) == [name]
    assert plugins.registry.load_errors(plugins.PluginType.COMPONENT) == {}
    assert plugins.registry.info(plugins.PluginType.SCHEDULER) == {plugins.PluginType.SCHEDULER: schedulers}
    assert "no_such_module_here" in plugins.registry.errors[name]
    assert "theirs: entry point" in str(plugins.registry)
    assert f"cannot be loaded: {name}" in str(plugins.registry)


def test_fractions_have_names():
    assert (plugins.WHOLE, plugins.HALF, plugins.QUARTER, plugins.EIGHTH, plugins.SIXTEENTH) == (
        1.0,
        0.5,
        0.25,
        0.125,
        0.0625,
    )


def test_registered_factories_can_be_looked_up():
    plugins.register.named_resource(name="plugin_test.host")(host)

    assert NamedResources()["plugin_test.host"].get_resource_name() == "plugin_test.host"
