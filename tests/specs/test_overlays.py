"""Overlays: the table of the launcher model, row by row."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys

import pytest

from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.overlays import (
    DEL,
    JOIN,
    PUT,
    OverlaySpec,
    apply_overlay,
    get_overlay,
    guarded,
    set_overlay,
    validate_overlay,
)


def test_the_spelling_of_operators_is_stored_data():
    assert (PUT("a"), DEL("a"), JOIN("a", on="n")) == ("__put__:a", "__del__:a", "__join__:a:n")


APPLIED = [
    ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 1, 2]}),
    ({"a": [1]}, {"a": (2,)}, {"a": [2]}),
    ({}, {"a": (2,)}, {"a": [2]}),
    ({"a": 1}, {"a": "x"}, {"a": "x"}),
    ({"a": {"x": 1}}, {"a": None}, {"a": None}),
    ({"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ({"a": {"x": 1}}, {PUT("a"): {"y": 2}}, {"a": {"y": 2}}),
    ({"a": [1]}, {PUT("a"): 5}, {"a": 5}),
    ({"a": 1, "b": 2}, {DEL("a"): None, DEL("c"): None}, {"b": 2}),
    # The base is an overlay itself.
    ({PUT("a"): [1], "b": 1}, {"a": [2]}, {"a": [2], "b": 1}),
    ({DEL("a"): None}, {PUT("a"): [2]}, {"a": [2]}),
    ({"a": {"x": 1, "y": 2}}, {"a": {DEL("x"): None}}, {"a": {"y": 2}}),
    ({}, {"a": {PUT("x"): 1, DEL("y"): 0}}, {"a": {"x": 1}}),
    (
        {"c": [{"n": "m", "i": 1, "e": [1]}, {"n": "o"}]},
        {JOIN("c", on="n"): [{"n": "m", "e": [2]}, {"n": "new", "x": 1}]},
        {"c": [{"n": "m", "i": 1, "e": [2]}, {"n": "o"}, {"n": "new", "x": 1}]},
    ),
    ({}, {JOIN("c", on="n"): [{"n": "a"}]}, {"c": [{"n": "a"}]}),
]


@pytest.mark.parametrize(("base", "overlay", "result"), APPLIED)
def test_an_overlay_is_applied_in_place(base, overlay, result):
    before = copy.deepcopy(overlay)
    apply_overlay(base, overlay)

    assert base == result
    assert overlay == before


def test_new_values_are_copies():
    overlay = {"a": {"x": [1]}}
    base: dict = {}
    apply_overlay(base, overlay)
    base["a"]["x"].append(2)

    assert overlay == {"a": {"x": [1]}}


@pytest.mark.parametrize(
    ("base", "overlay", "error"),
    [
        ({"a": {"x": 1}}, {"a": [1]}, TypeError),
        ({"a": [1]}, {"a": {"x": 1}}, TypeError),
        ({"a": 1}, {"a": {"x": 1}}, TypeError),
        ({"a": [1]}, {"a": 1}, TypeError),
        ({"c": 1}, {JOIN("c", on="n"): [{"n": 1}]}, TypeError),
        ({"c": [1]}, {JOIN("c", on="n"): [{"n": 1}]}, TypeError),
        ({"c": []}, {JOIN("c", on="n"): {"n": 1}}, TypeError),
        ({"c": []}, {"__join__:c": [{"n": 1}]}, ValueError),
        ({"c": []}, {JOIN("c", on="n"): [{"x": 1}]}, ValueError),
    ],
)
def test_values_of_another_kind_are_refused(base, overlay, error):
    with pytest.raises(error):
        apply_overlay(base, overlay)


# ---- stored ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["role", "app"])
def target(request):
    return Role("r", "") if request.param == "role" else AppDef("a")


def test_overlays_add_up(target):
    set_overlay(target, "k", "Pod", {"spec": {"a": 1, "l": [1]}})
    set_overlay(target, "k", "Pod", {"spec": {"b": 2, "l": [2]}})
    set_overlay(target, "k", "Job", {"x": 1})

    assert get_overlay(target, "k", "Pod") == {"spec": {"a": 1, "b": 2, "l": [1, 2]}}
    assert target.metadata["k"]["__torchx_overlays__"] is True
    json.dumps(target.metadata)


def test_the_last_operation_on_a_field_counts(target):
    set_overlay(target, "k", "Pod", {"a": {"x": 1}, "b": [1], JOIN("c", on="n"): [{"n": 1}]})
    set_overlay(target, "k", "Pod", {PUT("a"): {"y": 2}, DEL("b"): None, JOIN("c", on="n"): [{"n": 2}]})
    assert get_overlay(target, "k", "Pod") == {
        PUT("a"): {"y": 2},
        DEL("b"): None,
        JOIN("c", on="n"): [{"n": 1}, {"n": 2}],
    }
    set_overlay(target, "k", "Pod", {"a": {"z": 3}})
    assert get_overlay(target, "k", "Pod")["a"] == {"z": 3}
    assert PUT("a") not in get_overlay(target, "k", "Pod")


def test_other_notes_in_its_place_are_replaced_with_a_warning(target):
    target.metadata["k"] = ["note"]
    with pytest.warns(UserWarning, match="'k'"):
        set_overlay(target, "k", "Pod", {"a": 1})

    assert get_overlay(target, "k", "Pod") == {"a": 1}


def test_the_marker_is_not_a_valid_kind(target):
    with pytest.raises(ValueError, match="reserved"):
        set_overlay(target, "k", "__torchx_overlays__", {})


def test_absent_overlays_are_empty(target, caplog):
    assert get_overlay(target, "k", "Pod") == {}
    target.metadata["k"] = 5
    assert get_overlay(target, "k", "Pod") == {}
    target.metadata["k"] = {}
    set_overlay(target, "k", "Job", {"spec": {}})
    with caplog.at_level(logging.DEBUG):
        assert get_overlay(target, "k", "Pod") == {}
    assert "Job" in caplog.text


def test_a_flat_overlay_counts_with_a_warning(target):
    target.metadata["k"] = {"spec": {"a": 1}}
    with pytest.warns(UserWarning, match="flat"):
        assert get_overlay(target, "k", "Pod") == {"spec": {"a": 1}}
    assert get_overlay(target, "k", "Pod", flat_fallback=False) == {}
    target.metadata["k"] = {"Job": {"a": 1}, "Service": {"b": 1}}
    assert get_overlay(target, "k", "Pod") == {}


def test_overlays_in_files(target, tmp_path):
    (tmp_path / "pod.yaml").write_text("spec:\n  tolerations: !!python/tuple [a]\n")
    (tmp_path / "all.json").write_text('{"Pod": {"x": 1}, "Job": {}}')
    target.metadata["k"] = {"__torchx_overlays__": True, "Pod": str(tmp_path / "pod.yaml")}
    assert get_overlay(target, "k", "Pod") == {"spec": {"tolerations": ("a",)}}
    target.metadata["k"] = f"file://{tmp_path}/all.json"
    assert get_overlay(target, "k", "Pod") == {"x": 1}
    for name, text in (("list.json", "[1]"), ("broken.yaml", "a: [")):
        (tmp_path / name).write_text(text)
        target.metadata["k"] = str(tmp_path / name)
        with pytest.raises(ValueError, match=name):
            get_overlay(target, "k", "Pod")
    target.metadata["k"] = str(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"none\.yaml"):
        get_overlay(target, "k", "Pod")


# ---- checked ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", PUT("a"), DEL("a"), JOIN("a", on="n")])
def test_fields_are_seen_through_operators(key):
    with pytest.raises(ValueError, match=r"V1Pod\.a"):
        validate_overlay({key: []}, blocklist=["a"], overlay_name="V1Pod")
    with pytest.raises(ValueError, match=r"'a'.*use role\.env"):
        validate_overlay({key: []}, forbidden_keys=["a"], suggestion="use role.env")
    validate_overlay({key: []}, blocklist=["b"])


def test_a_spec_checks_set_and_get(target):
    spec = OverlaySpec("k", "Pod", ("status",))
    spec.set(target, {"spec": 1})
    assert spec.get(target) == {"spec": 1}
    with pytest.raises(ValueError, match=r"Pod\.status"):
        spec.set(target, {"status": 1})
    target.metadata["k"]["Pod"]["status"] = 1
    with pytest.raises(ValueError, match=r"Pod\.status"):
        spec.get(target)
    target.metadata["k"] = {"spec": {}}
    assert spec.get(target) == {}


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 8)}]\n" for n in range(12)
)
MERGED = "a0: &a0 {k0: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}], k{n + 1}: 1}}\n" for n in range(40))
CHAINED = "a0: &a0 [1]\n" + "".join(f"a{n + 1}: &a{n + 1} [{'[' * 50}*a{n}{']' * 50}]\n" for n in range(40))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "more than 100000 values"),
        (MERGED, "more than 100000 values"),
        (CHAINED, "more than 100 levels"),
        ("a: &a [*a]", "more than 100 levels"),
        ("a: " + "[" * 500 + "]" * 500, "more than 100 levels"),
        ("a: " + "[" * 200_000, "more than 100 levels|exceeded maximum nesting depth"),  # of PyYAML 6.0.4
        ("a: " + "{b: " * 500, "more than 100 levels"),
        ("a: " + "9" * 5000, "more than 100 characters"),
        ("a: " + "1:" * 5000 + "1", "more than 100 characters"),
        ("a: " + "x" * 2**20, "more than 1 MB"),
        ("a: 2026-99-99", "cannot be read"),
        ("a: \0", "cannot be read"),
    ],
    ids=lambda value: value[:12],
)
def test_a_file_of_any_form_is_read_in_bounded_time(tmp_path, text, reason):
    """Nine levels of aliases took minutes and unlimited memory."""
    path = tmp_path / "overlay.yaml"
    path.write_text(text)

    with pytest.raises(ValueError, match=reason):
        get_overlay(Role("r", "i", metadata={"docker": str(path)}), "docker", "Container")


def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "overlay.yaml")

    with pytest.raises(ValueError, match="is not a regular file"):
        get_overlay(Role("r", "i", metadata={"docker": str(tmp_path / "overlay.yaml")}), "docker", "Container")


def test_an_honest_file_may_be_large_and_have_aliases(tmp_path):
    path = tmp_path / "overlay.yaml"
    path.write_text("Container: {a: &a {x: [1, 2]}, b: *a, c: {<<: *a, y: 2}, d: [" + "word, " * 20_000 + "last]}\n")

    found = get_overlay(Role("r", "i", metadata={"docker": str(path)}), "docker", "Container")

    assert (found["b"], found["c"], len(found["d"])) == ({"x": [1, 2]}, {"x": [1, 2], "y": 2}, 20_001)


def test_a_check_of_locations_ends_with_its_block(target, tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text("a: 1")
    target.metadata["k"] = {"__torchx_overlays__": True, "Pod": str(path)}

    def refuse(location: str) -> None:
        raise PermissionError(location)

    with pytest.raises(PermissionError, match=str(path)), guarded(refuse):
        get_overlay(target, "k", "Pod")

    assert get_overlay(target, "k", "Pod") == {"a": 1}


def test_a_file_of_a_store_without_its_library_is_named(target, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    target.metadata["k"] = {"__torchx_overlays__": True, "Pod": "memory://pod.yaml"}

    with pytest.raises(ValueError, match=r"overlay file 'memory://pod\.yaml' cannot be read: .*fsspec"):
        get_overlay(target, "k", "Pod")
