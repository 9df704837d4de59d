"""Apps from Hydra configs."""

from __future__ import annotations

import sys
import traceback

import pytest
from hydra.errors import ConfigCompositionException, InstantiationException
from omegaconf.errors import InterpolationResolutionError

from airflow_provider_launch.specs import AppDef, RetryPolicy, Role
from airflow_provider_launch.specs.builders import build_app
from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError
from airflow_provider_launch.specs.finder import get_component

CONFIG = """
n: 2
app:
  _target_: airflow_provider_launch.specs.AppDef
  name: from-config
  roles:
    - _target_: airflow_provider_launch.specs.Role
      name: r
      image: ""
      entrypoint: echo
      args: ["${torchx.app_id:}", "${launch.replica_id:}"]
      num_replicas: ${n}
      port_map: {a: 1}
"""


@pytest.fixture
def hydra(tmp_path):
    (tmp_path / "one.yaml").write_text(CONFIG)
    (tmp_path / "none.yaml").write_text("a: 1\n")
    joined = CONFIG.replace("name: from-config", "name: ${a}${b}")
    (tmp_path / "joined.yaml").write_text(f"a: x\nb: y\n{joined}")
    (tmp_path / "other.yaml").write_text("app: {_target_: builtins.dict}\n")
    fn = get_component("utils.hydra").fn
    return lambda *arguments: build_app(fn, ["-cd", str(tmp_path), *arguments])


def test_a_config_gives_an_app_and_overrides_change_it(hydra):
    role = Role("r", "", entrypoint="echo", args=["${app_id}", "${replica_id}"], num_replicas=3, port_map={"a": 1})

    app = hydra("-cn", "one", "n=3")

    assert app == AppDef("from-config", [role])
    assert type(app.roles[0].args) is list
    assert type(app.roles[0].retry_policy) is RetryPolicy
    assert hydra("--config_name", "one").roles[0].num_replicas == 2


@pytest.mark.parametrize(("name", "text"), [("none", "no key 'app'"), ("other", "must give an AppDef, not dict")])
def test_a_config_without_an_app_is_refused(hydra, name, text):
    with pytest.raises(InvalidAppError, match=text):
        hydra("-cn", name)


def test_a_config_that_is_not_yaml_is_refused(hydra, tmp_path):
    (tmp_path / "broken.yaml").write_text("app: {")

    with pytest.raises(InvalidAppError, match=r"config 'broken' in .* cannot be used: while parsing"):
        hydra("-cn", "broken")


@pytest.mark.parametrize(
    ("app", "error", "text"),
    [
        ("{_target_: no.such.module}", InstantiationException, "Error locating target 'no.such.module'"),
        ("{_target_: builtins.dict, _partial_: 7}", TypeError, "_partial_ flag must be a bool"),
        ("{x: '${open'}", ConfigCompositionException, "no viable alternative|missing BRACE_CLOSE"),
        ("${app}", InterpolationResolutionError, "Recursive interpolation"),
    ],
    ids=["target", "type", "grammar", "cycle"],
)
def test_a_config_that_cannot_be_used_has_the_reason(hydra, tmp_path, app, error, text):
    (tmp_path / "wrong.yaml").write_text(f"app: {app}\n")

    with pytest.raises(InvalidAppError, match=f"config 'wrong' in .* cannot be used: .*({text})") as raised:
        hydra("-cn", "wrong")

    assert isinstance(raised.value.__cause__, error)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(InvalidAppError, match="is not a directory"):
        build_app(get_component("utils.hydra").fn, ["-cn", "x", "-cd", str(tmp_path / "no")])


def test_without_hydra_the_extra_is_named(hydra, monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra", None)

    with pytest.raises(MissingDependencyError, match="the extra 'hydra' of airflow-provider-launch"):
        hydra("-cn", "one")


OPEN = "{_target_: builtins.open, _args_: [FILE, w]}"
NOT_DATA = r"a key that begins with '_'"
NOT_A_KEY = r"is not 'key=value' or '\+key=value'"


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A variable, and a file that no test opens; FILE and ELSEWHERE in overrides are paths."""
    file, elsewhere = tmp_path / "opened", tmp_path.parent / "elsewhere"
    (elsewhere / "group").mkdir(parents=True, exist_ok=True)
    evil = f"app: {{name: {OPEN.replace('FILE', str(file))}}}\n"
    (elsewhere / "group" / "evil.yaml").write_text(f"# @package _global_\n{evil}")
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "a.yaml").write_text("max_retries: 1\n")
    (tmp_path / "group" / "link.yaml").symlink_to(elsewhere / "group" / "evil.yaml")
    (tmp_path / "unlisted").mkdir()
    (tmp_path / "unlisted" / "evil.yaml").write_text(f"# @package _global_\n{evil}")
    (tmp_path / "linked").symlink_to(elsewhere / "group")
    (tmp_path / "choice.yaml").write_text(f"defaults: [{{group: a}}, _self_]\n{CONFIG}")
    monkeypatch.setenv("WORKER_SECRET", "hush")
    yield lambda text: text.replace("FILE", str(file)).replace("ELSEWHERE", str(elsewhere))
    assert not file.exists()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (f"app.name={OPEN}", NOT_DATA),
        (f"+app.metadata={{a: [{{b: {OPEN}}}]}}", NOT_DATA),
        ("+app.metadata={a: {_args_: [x]}}", NOT_DATA),
        ("+app.metadata._target_=builtins.open", NOT_A_KEY),
        ("app.roles.0._args_=[x]", NOT_A_KEY),
        ("app.roles.0._partial_=true", NOT_A_KEY),
        ("+group@app=../../outside", NOT_A_KEY),
        ("+group@app=a", NOT_A_KEY),
        ("~app.name", NOT_A_KEY),
        ("++app.name=x", NOT_A_KEY),
        ("app.roles[0].name=x", NOT_A_KEY),
        ("../group=evil", NOT_A_KEY),
        ("app", NOT_A_KEY),
        ("$x=1", NOT_A_KEY),
        ("hydra.searchpath=[file://ELSEWHERE]", NOT_A_KEY),
        ("++hydra.searchpath=[file://ELSEWHERE]", NOT_A_KEY),
        ("+hydra.run.dir=ELSEWHERE", NOT_A_KEY),
        ("hydra/launcher=../../elsewhere/group/evil", NOT_A_KEY),
        ("hydra=x", NOT_A_KEY),
        pytest.param(f"app.{'x' * 5000}=1", NOT_A_KEY, id="long key"),
        pytest.param(".".join(["x" * 90] * 20) + "=1", "does not fit", id="long path"),
        pytest.param("/".join(["x" * 90] * 20) + "=1", "is not 'xxx", id="long file"),
        ("+group=a", "adds a key or group to the config; write 'group: null' there"),
        ("+unlisted=evil", "adds a key or group to the config"),
        ("unlisted=evil", "a group that is overridden must be in the defaults list"),
        ("group=../../elsewhere/group/evil", "is not 'group=name' with a file group/name.yaml inside of config_dir"),
        *((f"group={name}", "is not 'group=name'") for name in ("link", "none", "null", "'a'", "[a]", "a,a", "", "..")),
        ("group={max_retries: 1}", "is not 'group=name'"),
        ("group=glob(*)", "is not 'group=name'"),
        ("group=${n}", "is not 'group=name'"),
        ("linked=evil", "is not 'linked=name'"),
        ("group/a=b", "is not 'group/a=name'"),
    ],
)
def test_an_override_names_neither_code_nor_another_file(hydra, worker, override, reason):
    """A run may choose the value of an override, and the worker would open and call everything in it."""
    with pytest.raises(InvalidAppError, match=reason):
        hydra("-cn", "choice", worker(override))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["app.name=${oc.env:WORKER_SECRET}"], "an interpolation that is not a macro"),
        (["app.name='\\${oc.env:WORKER_SECRET}'"], "an interpolation that is not a macro"),
        (["app.roles.0.args=['a ${oc.env:WORKER_SECRET}']"], "an interpolation that is not a macro"),
        (["app.name=$\\{oc.env:WORKER_SECRET\\}"], "an interpolation that is not a macro"),
        (["+app.metadata.x={a: [$\\{oc.env:WORKER_SECRET\\}]}"], "an interpolation that is not a macro"),
        (["+app.metadata.x={${oc.env:WORKER_SECRET}: 1}"], "cannot be parsed"),
        (["app.name=${launch.other:}"], "an interpolation that is not a macro"),
        (
            [
                "+app.a='{_tar'",
                "+app.b='get_: builtins.open, _args_: [FILE, w]}'",
                "+app.c=$\\{a\\}$\\{b\\}",
                "app.name=$\\{oc.create:$\\{oc.decode:$\\{c\\}\\}\\}",
            ],
            "an interpolation that is not a macro",
        ),
        (
            ["n=_tar", "app.name='${oc.create:${oc.decode:\"{${n}get_: builtins.open, _args_: [FILE, w]}\"}}'"],
            "an interpolation that is not a macro",
        ),
        *(
            ([f"app.name={value}"], "a sweep or a function of Hydra; give one value")
            for value in ("a,b", "choice(a,b)", "range(1,3)", "interval(0,1)", "glob(*)", "sort(b,a)", "shuffle(a,b)")
        ),
    ],
)
def test_an_override_is_data(hydra, worker, overrides, reason):
    """Interpolations read variables of the worker, and make configs of functions."""
    with pytest.raises(InvalidAppError, match=reason):
        hydra("-cn", "one", *map(worker, overrides))


@pytest.mark.parametrize("target", ["${cls}", "builtins.${part}", "${oc.env:NOT_SET,${cls}}", "${all._target_}"])
def test_the_name_of_a_function_is_written_in_a_file(hydra, worker, tmp_path, target):
    called = f"{{_target_: '{target}', _args_: [{worker('FILE')}, w]}}"
    text = CONFIG.replace("name: from-config", "metadata: ${node}\n  name: x")
    (tmp_path / "open.yaml").write_text(
        f"cls: builtins.dict\npart: dict\nall: {{_target_: builtins.open}}\nnode: {called}\n{text}"
    )

    for override in ("cls=builtins.open", "part=open", "n=3"):
        with pytest.raises(InvalidAppError, match=r"may choose the function '.*'.*write its name at _target_"):
            hydra("-cn", "open", override)
    assert hydra("-cn", "open", "node=null").metadata is None


def test_the_name_of_a_part_of_an_app_may_be_an_interpolation(hydra, tmp_path):
    text = CONFIG.replace("airflow_provider_launch.specs", "${specs}")
    (tmp_path / "short.yaml").write_text(f"specs: airflow_provider_launch.specs\n{text}")

    assert hydra("-cn", "short", "n=3") == hydra("-cn", "one", "n=3")


@pytest.mark.parametrize(
    "override",
    [
        "app.metadata.f.file=FILE",
        "+app.metadata.f.mode=w",
        "app.metadata={f: {file: FILE}}",
        "app={metadata: {f: {file: FILE}}}",
        "app.metadata.f.closefd=1",
        "app.metadata.f.part.cpu=3",
        "app.metadata.f={file: FILE}",
    ],
)
def test_an_override_changes_no_argument_of_a_function_of_a_file(hydra, worker, tmp_path, override):
    """A program of the worker would run with the arguments of a run."""
    part = "{_target_: airflow_provider_launch.specs.Resource, cpu: 1, gpu: 0, memMB: 1}"
    metadata = f"metadata: {{f: {{_target_: builtins.open, file: /dev/null, closefd: true, part: {part}}}}}"
    (tmp_path / "calls.yaml").write_text(CONFIG.replace("name: from-config", f"{metadata}\n  name: x"))

    with pytest.raises(InvalidAppError, match=r"may choose the function 'builtins\.open' or an argument of it"):
        hydra("-cn", "calls", worker(override))
    assert hydra("-cn", "calls", "app.metadata.f=null", "n=3").metadata == {"f": None}


def test_an_override_changes_a_value_to_which_an_argument_refers(hydra, tmp_path):
    metadata = "metadata: {f: {_target_: os.path.join, _args_: [/data, '${day}']}}"
    text = CONFIG.replace("name: from-config", f"{metadata}\n  name: x")
    (tmp_path / "refers.yaml").write_text(f"day: monday\n{text}")

    assert hydra("-cn", "refers", "day=tuesday").metadata == {"f": "/data/tuesday"}


@pytest.mark.parametrize("parser", ["${oc.decode:${x}}", "${oc.create:${x}}", "${oc.create:${oc.decode:${x}}}"])
@pytest.mark.parametrize("function", ["builtins.open", "io.open", '"\\x24{spare._target_}"'])
def test_a_resolver_that_parses_data_makes_no_call(hydra, worker, tmp_path, parser, function):
    """Also not of a function that the config has at another place, with other arguments."""
    text = CONFIG.replace("name: from-config", f"metadata: {{k: '{parser}'}}\n  name: x")
    (tmp_path / "parses.yaml").write_text(f"x: '{{}}'\nspare: {{_target_: io.open, file: /dev/null}}\n{text}")
    call = worker(f"{{_target_: {function}, file: FILE, mode: w}}")

    with pytest.raises(InvalidAppError, match=r"may choose the function '\S+'|GrammarParseError"):
        hydra("-cn", "parses", f"x='{call}'")
    assert hydra("-cn", "parses", "x='{a: [1]}'").metadata == {"k": {"a": [1]}}


def test_a_resolver_that_parses_data_finds_no_interpolation(hydra, worker, tmp_path):
    """A `$` of an override is text, also in front of a bracket of another override."""
    text = CONFIG.replace("name: from-config", "name: '${oc.decode:${a}${b}}'")
    (tmp_path / "parses.yaml").write_text(f"a: x\nb: y\n{text}")

    with pytest.raises(InvalidAppError, match="GrammarParseError") as raised:
        hydra("-cn", "parses", "a=$", "b='{oc.env:WORKER_SECRET}'")
    assert "hush" not in str(raised.value)
    assert hydra("-cn", "parses", "a=c", "b=d").name == "cd"


def test_a_resolver_of_the_config_gets_data(hydra, worker, tmp_path):
    """The author of the config chooses the resolvers, and what they do with values that a run may choose."""
    text = CONFIG.replace("name: from-config", "name: '${oc.env:${x}}'")
    (tmp_path / "reads.yaml").write_text(f"x: HOME\n{text}")

    assert hydra("-cn", "reads", "x=WORKER_SECRET").name == "hush"


def test_an_interpolation_from_parts_stays_text(hydra, monkeypatch):
    """Hydra resolves a config more than once, so the value of one interpolation could become another."""
    monkeypatch.setenv("WORKER_SECRET", "hush")

    app = hydra("-cn", "joined", "a=$", "b='{oc.env:WORKER_SECRET}'")

    assert app.name == "${oc.env:WORKER_SECRET}"


def test_an_override_may_have_macros_and_variables_of_a_shell(hydra):
    app = hydra("-cn", "one", "app.roles.0.args=['${torchx.replica_id:} of $HOME $(id) <launch dollar>{app_id}']")

    assert app.roles[0].args == ["${replica_id} of $HOME $(id) <launch dollar>{app_id}"]


@pytest.mark.parametrize("value", ["[hush", "hush}", "foo(hush)", "int(hush)", "'hush${n}'", "{_hush: 1}", "hush,b"])
def test_an_error_of_an_override_shows_no_value(hydra, value):
    """It may be a secret."""
    with pytest.raises(InvalidAppError, match=r"the override of 'app.name'") as raised:
        hydra("-cn", "one", f"app.name={value}")

    assert "hush" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[" * 31 + "]" * 31, "more than 30 levels deep"),
        ("{a: " * 31 + "1" + "}" * 31, "more than 30 levels deep"),
        ("[{a: " * 1000 + "}]" * 1000, "more than 100 brackets"),
        ("[']'," * 1000 + "1" + "]" * 1000, "more than 100 brackets"),
        ("[" + "1," * 10_000 + "1]", "more than 10000 characters"),
        ("9" * 5000, "cannot be parsed"),
    ],
    ids=["lists", "mappings", "brackets", "hidden brackets", "characters", "digits"],
)
def test_a_large_override_is_refused(hydra, value, reason):
    """The parser needs minutes for some."""
    app = hydra("-cn", "one", f"+app.metadata.{'x.' * 17}x={'[' * 30}{']' * 30}")
    with pytest.raises(InvalidAppError, match=reason):
        hydra("-cn", "one", f"+app.metadata.x={value}")

    assert str(app.metadata["x"]).count("[") == 30


def test_many_overrides_have_a_limit_together(hydra):
    with pytest.raises(InvalidAppError, match="more than 10000 characters"):
        hydra("-cn", "one", *["n=3"] * 4000)


@pytest.mark.parametrize(
    "override", ["app.roles.9.name=x", "app.roles.x=1", "app.roles.x.y=1", "none=1", "n={null: 1}"]
)
def test_an_override_that_does_not_fit_is_named(hydra, override):
    key = override.partition("=")[0]

    with pytest.raises(InvalidAppError, match=rf"the override of '{key}' does not fit; a new key needs '\+'"):
        hydra("-cn", "one", override)


LONG_NAME = pytest.param("x" * 300, id="long")


@pytest.mark.parametrize("name", ["../outside", "/etc/one", "link", "./one", "one.yml", "", "no", "a\0b", LONG_NAME])
def test_a_config_outside_of_the_directory_is_refused(hydra, tmp_path, name):
    (tmp_path.parent / "outside.yaml").write_text(CONFIG)
    (tmp_path / "link.yaml").symlink_to(tmp_path.parent / "outside.yaml")

    with pytest.raises(InvalidAppError, match=r"is not the name of a \.yaml file inside of"):
        hydra("-cn", name)


def test_a_config_may_be_in_a_folder_or_a_link_inside_of_the_directory(hydra, tmp_path):
    """Kubernetes mounts the files of a ConfigMap as links."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "one.yaml").rename(tmp_path / "..data" / "one.yaml")
    (tmp_path / "one.yaml").symlink_to(tmp_path / "..data" / "one.yaml")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "two.yaml").write_text(f"# @package _global_\n{CONFIG}")

    assert hydra("-cn", "one.yaml").name == hydra("-cn", "folder/two").name == "from-config"


@pytest.mark.parametrize("override", ["+group=a", "group=a", "group=../../outside"])
def test_an_override_chooses_no_file_of_a_search_path(hydra, tmp_path, override):
    """The author of the config may have groups in other directories."""
    (tmp_path / "more" / "group").mkdir(parents=True)
    (tmp_path / "more" / "group" / "a.yaml").write_text("name: from-group\n")
    (tmp_path / "outside.yaml").write_text("name: from-outside\n")
    searched = f"hydra: {{searchpath: ['file://{tmp_path}/more']}}\n"
    (tmp_path / "searched.yaml").write_text(f"defaults: [{{group@app: a}}, _self_]\n{searched}n: 2\n")
    (tmp_path / "named.yaml").write_text(f"defaults: [{{group: a}}, _self_]\n{searched}{CONFIG}")

    for name in ("searched", "named"):
        with pytest.raises(
            InvalidAppError, match=r"adds a key or group|a new key needs|must be a directory in config_dir"
        ):
            hydra("-cn", name, override)
    assert hydra("-cn", "named", "group.name=b").name == "from-config"


def test_overrides_choose_files_of_groups_and_then_set_data_in_them(hydra, tmp_path):
    (tmp_path / "role").mkdir()
    (tmp_path / "role" / "cpu.yaml").write_text("{_target_: airflow_provider_launch.specs.Role, name: c, image: i}\n")
    (tmp_path / "role" / "gpu.yaml").write_text(
        "{_target_: airflow_provider_launch.specs.Role, name: g, image: i, num_replicas: 1}\n"
    )
    app = "app: {_target_: airflow_provider_launch.specs.AppDef, name: x, roles: ['${role}']}\n"
    (tmp_path / "roles.yaml").write_text(f"defaults: [{{role: cpu}}, _self_]\n{app}")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "gpu.yaml").write_text("name: from-more\n")
    follows = "defaults: [{role: cpu}, {more: '${role}'}, _self_]\n"
    (tmp_path / "follows.yaml").write_text(follows + app.replace("name: x", "name: '${more.name}'"))

    assert hydra("-cn", "roles").roles == [Role("c", "i")]
    chosen = hydra("-cn", "roles", "role.num_replicas=3", "role=gpu", "+role.args=[a,$x]")
    assert chosen.roles == [Role("g", "i", num_replicas=3, args=["a", "$x"])]
    assert hydra("-cn", "follows", "role=gpu").name == "from-more"


def test_a_defaults_list_does_not_see_data(hydra, tmp_path):
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "a.yaml").write_text("name: from-a\n")
    (tmp_path / "sees.yaml").write_text(f"defaults: [{{group: '${{kind}}'}}, _self_]\nkind: a\n{CONFIG}")

    with pytest.raises(InvalidAppError, match=r"Error resolving interpolation '\$\{kind\}'"):
        hydra("-cn", "sees", "kind=a")


def test_data_may_have_any_form(hydra):
    app = hydra(
        "-cn",
        "one",
        "+app.metadata.path=../data",
        "+app.metadata.commas='a,b'",
        "+app.metadata.nothing=null",
        "+app.metadata.list=[1,2.5,true,{a: [b]}]",
        "+app.metadata.my-label=int(3)",
        "app.roles.0.image=",
    )

    assert app.roles[0].image == ""
    assert app.metadata == {
        "path": "../data",
        "commas": "a,b",
        "nothing": None,
        "list": [1, 2.5, True, {"a": ["b"]}],
        "my-label": 3,
    }
