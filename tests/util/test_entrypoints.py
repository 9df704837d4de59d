"""Entry points of a real distribution on the path."""

from __future__ import annotations

import pytest

from airflow_provider_launch.util import entrypoints

GROUP = "launch_test.things"


@pytest.fixture(autouse=True)
def _distribution(tmp_path, monkeypatch):
    (tmp_path / "ep_things.py").write_text("def double(x, by=2):\n    return x * by\n")
    info = tmp_path / "ep_things-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ep-things\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\ndouble = ep_things:double\nmodule = ep_things\nbroken = surely_not_installed:x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_one_is_loaded_by_name():
    assert entrypoints.load(GROUP, "double")(3) == 6


def test_an_absent_one_is_the_default_or_an_error():
    assert entrypoints.load(GROUP, "absent", default=None) is None
    with pytest.raises(KeyError, match=r"entrypoint launch_test\.things\.absent not found"):
        entrypoints.load(GROUP, "absent")


def test_a_group_is_imported_only_when_called():
    loaders = entrypoints.load_group(GROUP)

    assert loaders["double"](3, by=3) == 9
    assert loaders["module"]("ignored").__name__ == "ep_things"
    with pytest.raises(ModuleNotFoundError):
        loaders["broken"]()


def test_a_group_without_entry_points_is_empty():
    assert entrypoints.load_group("launch_test.nothing") == {}


def test_of_two_distributions_of_one_name_the_first_on_the_path_counts(tmp_path, monkeypatch):
    info = tmp_path / "newer" / "ep_things-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ep_things\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[launch_test.others]\nother = ep_things\n")
    monkeypatch.syspath_prepend(tmp_path / "newer")

    assert entrypoints.find(GROUP) == {}
    assert [*entrypoints.find("launch_test.others")] == ["other"]


@pytest.mark.parametrize("metadata", [None, "Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n"])
@pytest.mark.parametrize("backport", [False, True])
def test_the_rest_of_a_broken_installation_hides_nothing(tmp_path, monkeypatch, metadata, backport):
    if backport:
        # Airflow loads it, and from then on the standard library finds distributions with it.
        pytest.importorskip("importlib_metadata")
    info = tmp_path / "left" / "~one-1.0.dist-info"
    info.mkdir(parents=True)
    if metadata:
        (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nleft = ep_things\n")
    monkeypatch.syspath_prepend(tmp_path / "left")

    assert {"double", "module", "broken"} <= {*entrypoints.find(GROUP)}
