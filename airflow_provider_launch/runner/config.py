"""Config files with defaults: options of schedulers, parameters of components, trackers. Connections ignore them.

```ini
[docker]
network = app

[component:dist.ddp]
j = 2x4

[launch:tracker]
fsspec =

[tracker:fsspec]
config = s3://bucket/runs
```
"""

from __future__ import annotations

import configparser
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from airflow_provider_launch.schedulers import SCHEDULER_ALIASES, get_scheduler_factories
from airflow_provider_launch.settings import ENV_LAUNCHCONFIG, ENV_TORCHXCONFIG
from airflow_provider_launch.specs.errors import InvalidRunConfigException, MissingDependencyError
from airflow_provider_launch.specs.runopts import CfgVal, runopt, runopts
from airflow_provider_launch.util.documents import owner_problem, read_text
from airflow_provider_launch.util.strings import closest
from airflow_provider_launch.util.types import get_type_name

log = logging.getLogger(__name__)

CONFIG_FILE = ".launchconfig"
_OLDER_CONFIG_FILE = ".torchxconfig"
CONFIG_PREFIX_DELIM = ":"
DEFAULT_CONFIG_DIRS: list[str] = [str(Path.home()), "."]
"""Directories that are searched for config files; the first one wins."""
PLACEHOLDER = "#FIXME:"
"""Prefix of the value that `dump` writes for a required option, until a user sets it."""
_NONE = "None"
_HELP_CHARS = 60


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """Return the paths of the config files, in order of precedence.

    `LAUNCHCONFIG`, or the older `TORCHXCONFIG`, gives the only file; if it is empty, no file is read.
    Otherwise a file that another user may have written, or that cannot be read, is ignored with a warning.

    Args:
        dirs: directories; None means `DEFAULT_CONFIG_DIRS`.

    Raises:
        FileNotFoundError: the file of the variable does not exist.
    """
    for variable in (ENV_LAUNCHCONFIG, ENV_TORCHXCONFIG):
        path = os.environ.get(variable)
        if path is None:
            continue
        if path and not Path(path).is_file():
            raise FileNotFoundError(f"{variable}={path!r} is not an existing file; correct the variable, or unset it")
        return [path] if path else []
    found = []
    for directory in DEFAULT_CONFIG_DIRS if dirs is None else dirs:
        candidates = (Path(directory) / name for name in (CONFIG_FILE, _OLDER_CONFIG_FILE))
        file = next((path for path in candidates if path.is_file()), None)
        if file is None:
            continue
        problem = owner_problem(file) if os.access(file, os.R_OK) else f"{file} cannot be read"
        if problem is None:
            found.append(str(file))
        else:
            # The current directory may be a shared one such as /tmp, and the file can name programs to run.
            log.warning("%s; the file is ignored; %s=<path> names a file to read", problem, ENV_LAUNCHCONFIG)
    return found


# ---- options of schedulers -----------------------------------------------------------------------------------------


def apply(scheduler: str, cfg: MutableMapping[str, CfgVal], dirs: Iterable[str] | None = None) -> None:
    """Add the options of a scheduler from the files to `cfg`; options that `cfg` has are kept."""
    for path in find_configs(dirs):
        _load(scheduler, _read(path), path, cfg)
        log.info("options of %s were read from %s", scheduler, path)


def load(scheduler: str, f: IO[str], cfg: MutableMapping[str, CfgVal]) -> None:
    """Add the options of the section `[scheduler]` to `cfg`; options that it has, under any spelling, are kept.

    Unknown options are skipped with a warning.

    Raises:
        InvalidRunConfigException: a text is not a valid value of its option.
        ValueError: the file is not valid INI.
    """
    source = str(getattr(f, "name", "the file"))
    _load(scheduler, _parsed(f.read(), source), source, cfg)


def _load(
    scheduler: str, sections: Mapping[str, Mapping[str, str]], source: str, cfg: MutableMapping[str, CfgVal]
) -> None:
    section = _section(sections, scheduler)
    if not section:
        return
    schema = _schema(scheduler)
    known = set(schema.registered(cfg))
    found = _options(section, scheduler, schema, source)
    cfg.update({name: value for name, value in found.items() if name not in known})


def read_options(path: str, scheduler: str, schema: runopts) -> dict[str, CfgVal]:
    """Return the options of a scheduler from one file; refuse a template that is not completely filled in.

    Also raises OSError, and ValueError if it is not valid INI.
    """
    section = _section(_read(path), scheduler)
    for key, text in section.items():
        if text.startswith(PLACEHOLDER):
            raise InvalidRunConfigException(
                f"{path}: option {key!r} of {scheduler!r} still has the placeholder of the template; set it", key, {}
            )
    return _options(section, scheduler, schema, path)


def _options(section: Mapping[str, str], scheduler: str, schema: runopts, source: str) -> dict[str, CfgVal]:
    found: dict[str, CfgVal] = {}
    for key, text in section.items():
        name = schema.registered_name(key) or _renamed(key, schema)
        option = schema.get(name) if name else None
        if name is None or option is None:
            near = closest(key, [name for name, _ in schema])
            hint = f", did you mean {near!r}" if near else ""
            log.warning("%s: scheduler %s has no option %r%s; it is ignored", source, scheduler, key, hint)
        elif (value := _value(name, option, text)) is not _SKIPPED:
            found[name] = value
    return found


def _renamed(key: str, schema: runopts) -> str | None:
    """Return the option that a name of another launcher means; None if no launcher has the name.

    Refuses one whose value has another form here, or without a counterpart among the options.
    """
    # Imported here, because only unknown options need it.
    from airflow_provider_launch.specs.peers import counterpart

    found = counterpart(key, [name for name, _ in schema])
    if found is None:
        return None
    if found.place != "cfg" or found.note:
        raise schema.unknown(key, {key: ""})
    return found.name


_SKIPPED: Any = object()


def _value(name: str, option: runopt, text: str) -> CfgVal:
    if text == _NONE:
        return None
    if text.startswith(PLACEHOLDER) and option.opt_type is not str:
        log.warning("option %r still has the placeholder %r; it is ignored", name, text)
        return _SKIPPED  # type: ignore[no-any-return]  # a sentinel
    try:
        return option.cast_to_type(text)
    except ValueError as error:
        raise InvalidRunConfigException(f"option {name!r}: {error}", name, {name: text}) from error


def _section(sections: Mapping[str, Mapping[str, str]], scheduler: str) -> Mapping[str, str]:
    """Return the section of a scheduler, by its name or an older name."""
    current = SCHEDULER_ALIASES.get(scheduler, scheduler)
    older = [alias for alias, meant in SCHEDULER_ALIASES.items() if meant == current]
    return next((sections[name] for name in (scheduler, current, *older) if name in sections), {})


def _schema(scheduler: str) -> runopts:
    factories = get_scheduler_factories()
    name = scheduler if scheduler in factories else SCHEDULER_ALIASES.get(scheduler, scheduler)
    if name not in factories:
        raise ValueError(f"unknown scheduler {scheduler!r}; there are {', '.join(factories)}")
    with closing(factories[name]("config")) as made:
        return made.run_opts()


# ---- other sections ------------------------------------------------------------------------------------------------


def load_sections(prefix: str, dirs: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """Return `{name: {key: text}}` of the sections `[prefix:name]` in all files; earlier files win per key."""
    return read_sections(find_configs(dirs), prefix)


def read_sections(paths: Iterable[str], prefix: str) -> dict[str, dict[str, str]]:
    """Return `{name: {key: text}}` of the sections `[prefix:name]`; ValueError if a file is not valid INI."""
    found: dict[str, dict[str, str]] = {}
    for path in paths:
        for name, section in _sections(path, prefix).items():
            found[name] = {**section, **found.get(name, {})}
    return found


def _sections(path: str, prefix: str) -> dict[str, dict[str, str]]:
    sections = _read(path)
    named = ((*section.partition(CONFIG_PREFIX_DELIM), values) for section, values in sections.items())
    return {name: dict(values) for found, delim, name, values in named if found == prefix and delim and name}


def get_configs(prefix: str, name: str, dirs: Iterable[str] | None = None) -> dict[str, str]:
    """Return the section `[prefix:name]`, or an empty dict."""
    return load_sections(prefix, dirs).get(name, {})


def get_config(prefix: str, name: str, key: str, dirs: Iterable[str] | None = None) -> str | None:
    """Return one value of the section `[prefix:name]`, or None."""
    return get_configs(prefix, name, dirs).get(key)


def _read(path: str) -> dict[str, dict[str, str]]:
    return _parsed(read_text(path), path)


def _parsed(text: str, source: str) -> dict[str, dict[str, str]]:
    # No interpolation: `%` and `$` are plain text. Names of trackers may contain colons.
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), allow_no_value=True, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # option names are case-sensitive
    try:
        parser.read_string(text, source)
    except configparser.Error as error:
        raise ValueError(f"a configuration file is not valid INI: {error}") from error
    return {name: {key: text or "" for key, text in parser.items(name)} for name in parser.sections()}


# ---- template ------------------------------------------------------------------------------------------------------


def dump(f: IO[str], schedulers: Iterable[str] | None = None, required_only: bool = False) -> None:
    """Write a template with all options of schedulers: defaults, and a placeholder for each required option.

    Args:
        f: the file to write.
        schedulers: their names. None means all; schedulers whose client library is missing are skipped.
        required_only: leave out optional ones.

    Raises:
        ValueError: a name is not a scheduler.
    """
    factories = get_scheduler_factories()
    names = list(factories if schedulers is None else schedulers)
    known = {*factories, *SCHEDULER_ALIASES}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown scheduler {unknown[0]!r}; there are {', '.join(factories)}")
    for name in names:
        try:
            schema = _schema(name)
        except (ImportError, MissingDependencyError) as error:
            log.warning("scheduler %s is not in the template: %s", name, error)
            continue
        f.write(f"[{name}]\n")
        f.writelines(_lines(schema, required_only=required_only))
        f.write("\n")


def _lines(schema: runopts, *, required_only: bool) -> Iterator[str]:
    for key, option in schema:
        if option.is_required:
            text = " ".join(option.help.split())[:_HELP_CHARS]
            yield f"{key} = {PLACEHOLDER}({get_type_name(option.opt_type)}) {text}\n"
        elif not required_only:
            yield f"{key} = {_text(option.default)}\n"


def _text(value: Any) -> str:
    if value is None or value in ([], {}):
        return _NONE
    if isinstance(value, list):
        return ";".join(map(str, value))
    if isinstance(value, dict):
        return ";".join(f"{key}:{item}" for key, item in value.items())
    return str(value)
