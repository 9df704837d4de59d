"""Typed options: option, check, help and form from one field."""

import dataclasses
import importlib
import zipfile
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

import pytest
from annotated_types import Ge, Le, MinLen

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, json_schema_fields, resolve_options
from airflow_provider_launch.specs.errors import InvalidRunConfigException


@dataclass(frozen=True)
class Retry(StructuredOpts):
    max_tries: int = 1
    """How often."""
    delay_s: Optional[float] = None  # noqa: UP045 - old annotations work too
    """How long
    to wait."""


@dataclass(frozen=True)
class Login(StructuredOpts):
    user: str
    """Who."""


@dataclass(frozen=True)
class Opts(StructuredOpts):
    cluster_name: str
    """Which cluster."""
    time_limit_s: Annotated[int, Ge(60)] | None = None
    """Seconds until the end."""
    mail_user: str | None = field(default=None, metadata={"cfg_key": "mail-user", "help": "Whom to tell."})
    tags: list[str] = field(default_factory=list)
    priority: int = field(default=5, metadata={"aliases": ["prio"], "deprecated_aliases": ["rank"]})
    verbose: bool = False
    ports: dict[str, int] | None = None
    mode: Literal["fast", "slow"] = "fast"


@dataclass(frozen=True)
class Nested(StructuredOpts):
    login: Login
    retry_policy: Retry = field(default_factory=lambda: Retry(max_tries=3))
    backup: Login | None = None


@dataclass(frozen=True)
class Special(Opts):
    queue: str = "default"
    """Where to wait."""
    cluster_name: str = "main"


def test_each_field_is_an_option_in_order():
    opts = Opts.as_runopts()

    assert [(name, opt.opt_type, opt.default, opt.is_required) for name, opt in opts] == [
        ("cluster_name", str, None, True),
        ("time_limit_s", int, None, False),
        ("mail-user", str, None, False),
        ("tags", list[str], None, False),
        ("priority", int, 5, False),
        ("verbose", bool, False, False),
        ("ports", dict[str, int], None, False),
        ("mode", Literal["fast", "slow"], "fast", False),
    ]
    assert opts.get("priority").aliases == ("prio",)
    assert opts.get("priority").deprecated_aliases == ("rank",)


def test_help_is_the_text_below_a_field_else_its_metadata_else_its_name():
    docs = Opts.get_docstrings()

    assert docs["cluster_name"] == "Which cluster."
    assert docs["mail_user"] == "Whom to tell."
    assert docs["tags"] == "tags"
    assert Retry.get_docstrings()["delay_s"] == "How long\nto wait."
    assert Opts.as_runopts().get("cluster_name").help == "Which cluster."


def test_help_is_inherited_and_a_field_declared_again_speaks_for_itself():
    docs = Special.get_docstrings()

    assert docs["time_limit_s"] == "Seconds until the end."
    assert docs["queue"] == "Where to wait."
    assert docs["cluster_name"] == "cluster_name"


def test_help_of_groups_is_dotted():
    assert Nested.get_docstrings() == {
        "login.user": "Who.",
        "retry_policy.max_tries": "How often.",
        "retry_policy.delay_s": "How long\nto wait.",
        "backup.user": "Who.",
    }


def test_a_class_made_at_run_time_has_help():
    made = dataclasses.make_dataclass(
        "Made", [("x", int, field(default=1, metadata={"help": "A number."})), ("y", int, 2)], bases=(StructuredOpts,)
    )

    assert made.get_docstrings() == {"x": "A number.", "y": "y"}


def test_a_class_in_a_function_has_help_or_none():
    """Its source cannot be parsed alone if a text has less indentation than the class."""

    @dataclass(frozen=True)
    class Inner(StructuredOpts):
        x: int = 1
        """A number,
written at the margin."""

    assert Inner.get_docstrings() == {"x": "x"}


def test_a_class_from_an_archive_has_help(tmp_path, monkeypatch):
    archive = tmp_path / "plugin.zip"
    source = (
        "from dataclasses import dataclass\n"
        "from airflow_provider_launch.schedulers.structured_opts import StructuredOpts\n"
        "@dataclass(frozen=True)\n"
        "class ZippedOpts(StructuredOpts):\n"
        "    x: int = 1\n"
        "    '''From the archive.'''\n"
    )
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_opts.py", source)
    monkeypatch.syspath_prepend(archive)

    assert importlib.import_module("zipped_opts").ZippedOpts.get_docstrings() == {"x": "From the archive."}


@pytest.mark.parametrize(
    ("cfg", "changes"),
    [
        ({"cluster_name": "a"}, {}),
        ({"clusterName": "a", "unknown": 1}, {}),
        ({"cluster_name": "a", "clusterName": "b"}, {}),
        ({"cluster_name": "a", "mail-user": "m"}, {"mail_user": "m"}),
        ({"cluster_name": "a", "mail_user": "m"}, {"mail_user": "m"}),
        ({"cluster_name": "a", "mailUser": "m"}, {"mail_user": "m"}),
        ({"cluster_name": "a", "prio": 1}, {"priority": 1}),
        ({"cluster_name": "a", "rank": 1}, {"priority": 1}),
        ({"cluster_name": "a", "tags": None}, {}),
    ],
)
def test_options_are_read_by_every_spelling(cfg, changes):
    assert Opts.from_cfg(cfg) == dataclasses.replace(Opts(cluster_name="a"), **changes)


def test_what_resolve_gives_can_be_read():
    resolved = Opts.as_runopts().resolve({"cluster_name": "a"})

    assert Opts.from_cfg(resolved) == Opts(cluster_name="a")


def test_a_required_option_must_be_given():
    with pytest.raises(InvalidRunConfigException, match="cluster_name"):
        Opts.from_cfg({})


@pytest.mark.parametrize(
    ("cfg", "made"),
    [
        ({"login.user": "a"}, Nested(Login("a"))),
        ({"login": Login("a")}, Nested(Login("a"))),
        ({"login": {"user": "a"}}, Nested(Login("a"))),
        ({"login.user": "a", "retryPolicy.maxTries": 9}, Nested(Login("a"), Retry(9))),
        ({"login.user": "a", "retry_policy.delay_s": 2.0}, Nested(Login("a"), Retry(3, 2.0))),
        ({"login.user": "a", "backup.user": "b"}, Nested(Login("a"), backup=Login("b"))),
        ({"login.user": "a", "backup.user": None}, Nested(Login("a"))),
    ],
)
def test_groups_are_collected_from_dotted_names(cfg, made):
    assert Nested.from_cfg(cfg) == made


def test_groups_are_dotted_options():
    assert [(name, opt.is_required) for name, opt in Nested.as_runopts()] == [
        ("login.user", True),
        ("retry_policy.max_tries", False),
        ("retry_policy.delay_s", False),
        ("backup.user", False),
    ]
    resolved = Nested.as_runopts().resolve({"login.user": "a"})
    assert Nested.from_cfg(resolved) == Nested(Login("a"))


def test_a_required_group_is_always_built():
    with pytest.raises(InvalidRunConfigException, match="user"):
        Nested.from_cfg({})


@pytest.mark.parametrize(
    ("key", "value"),
    [("cluster_name", "a"), ("clusterName", "a"), ("mail-user", "m"), ("mail_user", "m"), ("mailUser", "m")],
)
def test_an_option_is_read_by_name(key, value):
    opts = Opts(cluster_name="a", mail_user="m")

    assert key in opts
    assert opts[key] == opts.get(key) == value


@pytest.mark.parametrize("key", ["as_runopts", "get", "unknown", "login", 5])
def test_a_method_is_not_an_option(key):
    opts = Opts(cluster_name="a")

    assert key not in opts
    assert opts.get(key, "default") == "default"
    with pytest.raises(KeyError):
        opts[key]


def test_a_stored_none_is_not_a_default():
    assert Opts(cluster_name="a").get("mail-user", "default") is None


def test_attributes_are_field_names_only():
    assert Opts(cluster_name="a").cluster_name == "a"
    with pytest.raises(AttributeError):
        Opts(cluster_name="a").clusterName  # noqa: B018 - reading it is the test


def test_groups_are_read_by_dotted_names():
    opts = Nested(Login("a"))

    assert list(opts) == ["login.user", "retry_policy.max_tries", "retry_policy.delay_s"]
    assert len(opts) == 3
    assert opts["retryPolicy.maxTries"] == 3
    assert opts["login"] == Login("a")
    assert "backup.user" not in opts


def test_two_mappings_are_merged_into_a_plain_dict():
    merged = Login("a") | {"user": None, "x": 1}

    assert merged == {"user": None, "x": 1}
    assert type(merged) is dict
    assert {"user": "b"} | Login("a") == {"user": "a"}
    assert Login("a") | Login("b") == {"user": "b"}


def test_names_become_camel_case():
    assert StructuredOpts.snake_to_camel("cluster_name") == "clusterName"


@pytest.mark.parametrize(
    ("cfg", "changes"),
    [
        ({"time_limit_s": "90"}, {"time_limit_s": 90}),
        ({"time_limit_s": None, "priority": None}, {}),
        ({"tags": "a,b", "verbose": "yes"}, {"tags": ["a", "b"], "verbose": True}),
        ({"ports": "x:1"}, {"ports": {"x": 1}}),
        ({"mailUser": "m", "prio": "7"}, {"mail_user": "m", "priority": 7}),
        ({"mode": "slow"}, {"mode": "slow"}),
    ],
)
def test_untrusted_values_are_cast_and_null_is_unset(cfg, changes):
    given = {"cluster_name": "a", **cfg}

    assert resolve_options(Opts, given) == dataclasses.replace(Opts("a"), **changes)
    assert given == {"cluster_name": "a", **cfg}


@pytest.mark.parametrize(
    ("cfg", "key", "words"),
    [
        ({}, "cluster_name", ["required", "cluster_name"]),
        ({"cluster_name": None}, "cluster_name", ["required", "cluster_name"]),
        ({"cluster_name": "a", "priorty": 1}, "priorty", ["unknown option 'priorty'; did you mean 'priority'?"]),
        ({"cluster_name": "a", "zzz": 1}, "zzz", ["Known options: cluster_name, time_limit_s"]),
        ({"cluster_name": 5}, "cluster_name", ["cluster_name", "str", "5", "int"]),
        ({"cluster_name": "a", "priority": "x"}, "priority", ["priority", "int", "'x'"]),
        ({"cluster_name": "a", "priority": 1.5}, "priority", ["priority", "int", "1.5"]),
        ({"cluster_name": "a", "priority": True}, "priority", ["priority", "int", "bool"]),
        ({"cluster_name": "a", "time_limit_s": 5}, "time_limit_s", ["time_limit_s", "int", "5", "60"]),
        ({"cluster_name": "a", "time_limit_s": "5"}, "time_limit_s", ["time_limit_s", "int", "5", "60"]),
        ({"cluster_name": "a", "mode": "mid"}, "mode", ["mode", "'mid'", "'fast', 'slow'"]),
        ({"cluster_name": "a", "prio": 1, "priority": 2}, "priority", ["prio", "priority", "different"]),
    ],
)
def test_what_is_wrong_is_reported(cfg, key, words):
    with pytest.raises(InvalidRunConfigException) as caught:
        resolve_options(Opts, cfg)

    assert caught.value.cfg_key == key
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unknown_names_may_be_allowed_and_text_may_be_kept():
    assert resolve_options(Opts, {"cluster_name": "a", "zzz": 1}, strict=False) == Opts("a")
    with pytest.raises(InvalidRunConfigException, match="priority"):
        resolve_options(Opts, {"cluster_name": "a", "priority": "5"}, cast_text=False)


@pytest.mark.parametrize(
    "cfg",
    [{"login.user": "a", "retry_policy.max_tries": "9"}, {"login": {"user": "a"}, "retryPolicy": {"maxTries": 9}}],
)
def test_groups_may_be_dotted_or_nested(cfg):
    assert resolve_options(Nested, cfg) == Nested(Login("a"), Retry(9))


@pytest.mark.parametrize("cfg", [{"login": "a"}, {"login": {"user": "a", "usr": "b"}}])
def test_a_wrong_group_is_refused(cfg):
    with pytest.raises(InvalidRunConfigException, match="login"):
        resolve_options(Nested, cfg)


def test_constraints_work_inside_collections():
    @dataclass(frozen=True)
    class Limits(StructuredOpts):
        shares: Annotated[list[Annotated[int, Le(10)]], MinLen(1)] = field(default_factory=lambda: [1])

    assert resolve_options(Limits, {"shares": "1,2"}).shares == [1, 2]
    for wrong in ([], [11]):
        with pytest.raises(InvalidRunConfigException, match=r"shares.*list\[int\]"):
            resolve_options(Limits, {"shares": wrong})


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_what_the_class_itself_refuses_is_an_error_of_the_options(kind):
    @dataclass(frozen=True)
    class Range(StructuredOpts):
        low: int = 0
        high: int = 1

        def __post_init__(self):
            if self.low > self.high:
                raise kind(f"low {self.low} is above high {self.high}")

    with pytest.raises(InvalidRunConfigException, match="low 5 is above high 1"):
        resolve_options(Range, {"low": 5})


def test_a_secret_is_not_shown():
    @dataclass(frozen=True)
    class Secret(StructuredOpts):
        api_token: Annotated[int, Ge(5)] | None = None

    for value in ("hunter2", 3):
        with pytest.raises(InvalidRunConfigException) as caught:
            resolve_options(Secret, {"api_token": value})
        assert repr(value) not in str(caught.value).replace("5", "")


def test_forms_are_made_from_the_fields():
    schemas = json_schema_fields(Opts)

    assert list(schemas) == [name for name, _ in Opts.as_runopts()]
    assert schemas["cluster_name"] == {"type": "string", "description": "Which cluster."}
    assert schemas["priority"] == {"type": "integer", "description": "priority", "default": 5}
    assert schemas["time_limit_s"] == {
        "anyOf": [{"type": "integer", "minimum": 60}, {"type": "null"}],
        "description": "Seconds until the end.",
        "default": None,
    }
    assert schemas["tags"]["default"] == []
    assert schemas["mode"]["enum"] == ["fast", "slow"]


def test_forms_show_groups_dotted_and_with_the_groups_own_defaults():
    schemas = json_schema_fields(Nested)

    assert schemas["retry_policy.max_tries"]["default"] == 3
    assert "default" not in schemas["login.user"]
    assert schemas["backup.user"]["default"] is None


def test_a_field_adds_to_its_form():
    @dataclass(frozen=True)
    class Form(StructuredOpts):
        key: Any = field(default=None, metadata={"json_schema": {"format": "password"}})

    assert json_schema_fields(Form)["key"]["format"] == "password"


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), "inf", "nan"])
def test_a_number_is_finite(value):
    """Python's JSON accepts `Infinity`; its effect in a scheduler is undefined."""

    @dataclasses.dataclass(frozen=True)
    class Pause(StructuredOpts):
        pause_s: float = 1.0

    with pytest.raises(InvalidRunConfigException, match="it is not finite; leave the option out for no limit"):
        resolve_options(Pause, {"pause_s": value})


def test_values_are_found_without_hints_that_can_be_resolved():
    """A class defined in a function, in a module with postponed annotations: its type hints use local names."""

    @dataclasses.dataclass(frozen=True)
    class Child(StructuredOpts):
        val: int = 1

    @dataclasses.dataclass(frozen=True)
    class Parent(StructuredOpts):
        child_group: Child = dataclasses.field(default_factory=Child)
        name: str = "n"

    opts = Parent()

    assert opts["childGroup.val"] == opts["child_group.val"] == 1
    assert opts.get("name") == "n"
    assert opts.get("nothing", 3) == 3
    assert "name" in opts
    assert 5 not in opts
    assert None not in opts
