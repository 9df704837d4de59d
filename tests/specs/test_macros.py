import copy
from dataclasses import dataclass, field

import pytest

from airflow_provider_launch.specs import (
    AppDef,
    BindMount,
    Resource,
    RetryPolicy,
    Role,
    Workspace,
    macros,
)

VALUES = macros.Values(img_root="/img", app_id="app-1", replica_id="3", rank0_env="R0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${img_root}/${app_id}/${replica_id}/${rank0_env}", "/img/app-1/3/R0"),
        (f"{macros.img_root}|{macros.app_id}|{macros.replica_id}|{macros.rank0_env}", "/img|app-1|3|R0"),
        ("$app_id-$replica_id", "app-1-3"),
        ("$app_idx", "$app_idx"),
        ("${HOME} $HOME ${unknown:-x} $(date) $1 $", "${HOME} $HOME ${unknown:-x} $(date) $1 $"),
        ("$$app_id $$$$", "$app_id $$"),
        ("$${${rank0_env}:=localhost}:29500", "${R0:=localhost}:29500"),
        ("{{ ds }} 100%", "{{ ds }} 100%"),
        ("", ""),
    ],
)
def test_substitution_replaces_the_four_macros_and_leaves_the_rest(text, expected):
    assert VALUES.substitute(text) == expected


def test_replaced_text_is_not_replaced_again():
    values = macros.Values(img_root="${app_id}", app_id="$replica_id", replica_id="$$", rank0_env="")

    assert values.substitute("${img_root} ${app_id} ${replica_id}") == "${app_id} $replica_id $$"


@pytest.mark.parametrize("text", ["${app_id}", "$$", "$", "a $app_id $${x}", "plain"])
def test_escaped_text_survives_substitution(text):
    assert VALUES.substitute(macros.escape(text)) == text


def test_the_older_list_form():
    assert macros.substitute(["${img_root}/x", "${app_id}", "${replica_id}", "${rank0_env}"], "/i", "a", "0") == [
        "/i/x",
        "a",
        "0",
        "",
    ]


def test_to_dict_gives_the_values():
    assert VALUES.to_dict() == {"img_root": "/img", "app_id": "app-1", "replica_id": "3", "rank0_env": "R0"}


def test_apply_substitutes_args_values_of_env_and_texts_in_metadata_only():
    role = Role(
        name="${app_id}",
        image="${img_root}",
        entrypoint="${app_id}",
        args=["${replica_id}", "x"],
        env={"${app_id}": "${app_id}"},
        metadata={"${app_id}": ["${app_id}", {"deep": ["$replica_id", 7, None]}], "t": ("${app_id}",)},
        mounts=[BindMount("${img_root}", "${img_root}")],
        port_map={"${app_id}": 1},
    )
    before = copy.deepcopy(role)

    replica = VALUES.apply(role)

    assert role == before
    assert replica.args == ["3", "x"]
    assert replica.env == {"${app_id}": "app-1"}
    assert replica.metadata == {"${app_id}": ["app-1", {"deep": ["3", 7, None]}], "t": ("${app_id}",)}
    assert (replica.name, replica.image, replica.entrypoint) == ("${app_id}", "${img_root}", "${app_id}")
    assert replica.mounts == [BindMount("${img_root}", "${img_root}")]
    assert replica.port_map == {"${app_id}": 1}


@dataclass
class _Numbered(Role):
    numbers: list[int] = field(default_factory=list)


def test_apply_gives_a_deep_copy_of_the_same_class():
    role = _Numbered(
        name="r",
        image="",
        resource=Resource(1, 0, 1, capabilities={"a": [1]}),
        mounts=[BindMount("a", "b")],
        workspace=Workspace({"a": ""}),
        retry_policy=RetryPolicy.ROLE,
        port_map={"p": 1},
        metadata={"a": [{"b": 1}]},
        numbers=[1],
    )
    role.extra = [1]

    replica = VALUES.apply(role)

    assert type(replica) is _Numbered
    assert replica == role
    replica.numbers.append(2)
    replica.extra.append(2)
    replica.resource.capabilities["a"].append(2)
    replica.mounts[0].src_path = "changed"
    replica.workspace.projects["c"] = ""
    replica.port_map["q"] = 2
    replica.metadata["a"][0]["b"] = 2
    assert AppDef("x", [role]) == AppDef(
        "x",
        [
            _Numbered(
                name="r",
                image="",
                resource=Resource(1, 0, 1, capabilities={"a": [1]}),
                mounts=[BindMount("a", "b")],
                workspace=Workspace({"a": ""}),
                retry_policy=RetryPolicy.ROLE,
                port_map={"p": 1},
                metadata={"a": [{"b": 1}]},
                numbers=[1],
            )
        ],
    )
    assert role.extra == [1]
