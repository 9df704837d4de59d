"""Named resources: lazy, scanned once, and helpful about names that do not exist."""

from __future__ import annotations

import threading
import time

import pytest

from airflow_provider_launch.specs import named_resources_aws as aws
from airflow_provider_launch.specs.named_resources import NamedResources, get_named_resources, named_resources, resource
from airflow_provider_launch.specs.resources import NULL_RESOURCE, Resource
from airflow_provider_launch.util.plugin_registry import PluginType, registry

CUSTOM = "LAUNCH_CUSTOM_NAMED_RESOURCES"
OWN = "from airflow_provider_launch.specs.resources import Resource\n"


@pytest.fixture
def write_module(tmp_path, monkeypatch, request):
    """Create modules that can be imported; each test uses its own names, because imports are cached."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str, entry_points: str = "") -> str:
        name = f"nr_{abs(hash(request.node.name))}"
        (tmp_path / f"{name}.py").write_text(OWN + source)
        if entry_points:
            info = tmp_path / f"{name}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(
                f"[airflow_provider_launch.named_resources]\n{entry_points.format(name)}\n"
            )
        return name

    return write


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("gpu.small", (8, 1, 32768)),
        ("gpu.medium", (16, 2, 65536)),
        ("gpu.large", (32, 4, 131072)),
        ("gpu.xlarge", (64, 8, 262144)),
        ("cpu.nano", (1, 0, 512)),
        ("cpu.micro", (1, 0, 1024)),
        ("cpu.small", (1, 0, 2048)),
        ("cpu.medium", (2, 0, 4096)),
        ("cpu.large", (2, 0, 8192)),
        ("cpu.xlarge", (8, 0, 32768)),
    ],
)
def test_generic_sizes(name, numbers):
    assert named_resources[name] == Resource(*numbers)


@pytest.mark.parametrize(
    ("name", "numbers", "devices"),
    [
        ("aws_t3.medium", (2, 0, 3932), {}),
        ("aws_p4d.24xlarge", (96, 8, 1132416), {aws.EFA_DEVICE: 4}),
        ("aws_p6-b200.48xlarge", (192, 8, 2013184), {aws.EFA_DEVICE: 8}),
        ("aws_trn1.32xlarge", (128, 0, 503296), {aws.EFA_DEVICE: 8, aws.NEURON_DEVICE: 16}),
        ("aws_inf2.48xlarge", (192, 0, 754944), {aws.NEURON_DEVICE: 12}),
        ("aws_c5.18xlarge", (72, 0, 139586), {}),
    ],
)
def test_aws_instances(name, numbers, devices):
    itype = {aws.K8S_ITYPE: name.removeprefix("aws_")}

    assert named_resources[name] == Resource(*numbers, capabilities=itype, devices=devices)


def test_each_aws_instance_is_also_a_function():
    assert aws.aws_p6_b200_48xlarge() == named_resources["aws_p6-b200.48xlarge"]
    assert len(aws.NAMED_RESOURCES) == 61


def test_the_instance_type_is_read_back_or_missed_with_a_warning():
    assert aws.instance_type_from_resource(named_resources["aws_m5.large"]) == "m5.large"
    with pytest.warns(UserWarning, match="K8S_ITYPE"):
        assert aws.instance_type_from_resource(NULL_RESOURCE) is None


def test_each_lookup_gives_an_own_object():
    named_resources["aws_m5.large"].capabilities.clear()

    assert named_resources["aws_m5.large"].capabilities


@pytest.mark.parametrize("name", ["NULL", "MISSING"])
def test_two_names_stand_for_no_resource(name):
    assert named_resources[name] == NULL_RESOURCE


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({}, (2, 0, 1024)),
        ({"cpu": 0, "gpu": None, "memMB": 0}, (2, 0, 1024)),
        ({"cpu": 4, "gpu": 1, "memMB": 9}, (4, 1, 9)),
        ({"cpu": 4, "h": "gpu.small"}, (8, 1, 32768)),
    ],
)
def test_a_name_wins_over_numbers(given, numbers):
    assert resource(**given) == Resource(*numbers)


def test_the_old_lookup_warns():
    with pytest.warns(FutureWarning, match="named_resources"):
        assert get_named_resources("gpu.small") == named_resources["gpu.small"]


def test_it_is_a_mapping():
    assert "gpu.small" in named_resources
    assert "gpu.tiny" not in named_resources
    assert set(named_resources) == set(named_resources.keys())
    assert dict(named_resources.items())["gpu.small"].gpu == 1
    assert len(named_resources) == len(list(named_resources))


def test_the_error_for_a_misspelt_name_proposes_the_closest():
    with pytest.raises(KeyError, match=r"No named resource found for `gpu.smal`. Did you mean `gpu.small`\?"):
        named_resources["gpu.smal"]


def test_the_error_for_an_unknown_name_lists_all():
    with pytest.raises(KeyError, match=r"No named resource found for `zzz`. Registered named resources: .*gpu.small"):
        named_resources["zzz"]


def test_a_custom_module_wins_over_the_builtin_sets(write_module, monkeypatch):
    monkeypatch.setenv(CUSTOM, write_module("NAMED_RESOURCES = {'gpu.small': lambda: Resource(1, 1, 1)}"))

    assert NamedResources()["gpu.small"] == Resource(1, 1, 1)


@pytest.mark.parametrize("variable", [CUSTOM, "TORCHX_CUSTOM_NAMED_RESOURCES"])
@pytest.mark.parametrize("path", ["surely_not_installed", "json:surely_not_defined"])
def test_a_custom_module_that_was_named_must_exist(monkeypatch, variable, path):
    monkeypatch.setenv(variable, path)
    found = NamedResources()

    for _ in range(2):
        with pytest.raises(ImportError, match=rf"'{path}' \(from {variable}\) cannot be loaded: .*{path[-6:]}"):
            found["gpu.small"]


def test_a_plug_in_wins_over_all(write_module):
    write_module("def big():\n    return Resource(99, 0, 1)\n", "gpu.large = {0}:big")

    assert NamedResources()["gpu.large"] == Resource(99, 0, 1)


def test_a_broken_plug_in_does_not_take_the_others_away(write_module, caplog):
    write_module("def big():\n    return Resource(99, 0, 1)\n", "bad = surely_not_installed:x\nown.big = {0}:big")
    found = NamedResources()

    assert found["own.big"].cpu == 99
    assert set(found.load_errors) == {"bad"}
    assert "surely_not_installed" in caplog.text


@pytest.mark.parametrize("how", ["plug-in", "custom module"])
def test_a_lookup_during_a_scan_for_names_is_refused_and_the_scan_ends(write_module, monkeypatch, how):
    """The answer would depend on the order of the sources."""
    source = (
        "from airflow_provider_launch.specs.named_resources import named_resources\n"
        "BASE = named_resources['gpu.small']\n"
    )
    module = write_module(source, *["own = {0}"] if how == "plug-in" else [])
    if how == "custom module":
        monkeypatch.setenv(CUSTOM, module)
    named_resources.reset()
    try:
        assert named_resources["gpu.small"].gpu == 1
        (error,) = named_resources.load_errors.values()
        assert "re-entrant named-resource lookup" in str(error)
    finally:
        named_resources.reset()


def test_a_resource_registered_later_is_found():
    """A module may register its resources after another one was looked up."""
    found = NamedResources()
    assert "late.one" not in found
    registry.add(PluginType.NAMED_RESOURCE, {"late.one": lambda: Resource(7, 0, 1)})

    assert found["late.one"].cpu == 7


def test_many_threads_scan_once(write_module, monkeypatch):
    monkeypatch.setenv(CUSTOM, write_module("NAMED_RESOURCES = {'own.one': lambda: Resource(1, 0, 1)}"))
    found, scans, seen = NamedResources(), [], []
    scan = found._scan
    found._scan = lambda: (scans.append(1), time.sleep(0.05), scan())[-1]
    threads = [threading.Thread(target=lambda: seen.append(found["own.one"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(seen) == 8
    assert len(scans) == 1
