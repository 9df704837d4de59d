"""Parse mounts from text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_launch.specs.roles import BindMount, DeviceMount, MountType, VolumeMount
from airflow_provider_launch.util.types import str_to_bool

_SPELLINGS = {
    "type": "type",
    "src": "src",
    "source": "src",
    "dst": "dst",
    "destination": "dst",
    "target": "dst",
    "readonly": "readonly",
    "read_only": "readonly",
    "perm": "perm",
}


def parse_mounts(opts: list[str]) -> list[BindMount | VolumeMount | DeviceMount]:
    """Return the mounts that the elements `key` or `key=value` describe; each `type` element starts a new mount.

    `["type=bind", "src=~/data", "dst=/data", "readonly", "type=device", "src=/dev/fuse"]` gives two mounts.

    Raises:
        KeyError: an unknown option, an option before the first `type`, a missing source or destination.
        ValueError: an unknown type, permission or bool.
    """
    found: list[dict[str, str]] = []
    for opt in opts:
        key, equals, value = opt.partition("=")
        name = _SPELLINGS.get(key.strip())
        if name is None:
            raise KeyError(f"unknown mount option {key}; use one of {', '.join(_SPELLINGS)}")
        if name == "type":
            found.append({})
        elif not found:
            raise KeyError(f"type must be specified first, but the mount starts with {key}")
        found[-1][name] = value if equals or name != "readonly" else "true"
    return [_mount(options) for options in found]


def parse_mount(text: str) -> BindMount | VolumeMount:
    """Return the mount that a text such as `/path/of/host:/path` or `volume:/path:ro` describes.

    Raises:
        ValueError: the text has another form, or a relative folder, which would differ between workers.
    """
    source, *rest = text.split(":")
    if not source or len(rest) not in (1, 2) or not rest[0].startswith("/") or rest[1:] not in ([], ["ro"]):
        raise ValueError("must have the form /host:/path or volume:/path, with :ro to mount it read-only")
    is_read_only = len(rest) > 1
    if source.startswith("/"):
        return BindMount(source, rest[0], read_only=is_read_only)
    if "/" in source or source in (".", "..", "~"):
        raise ValueError(f"has the relative folder {source!r}; give its absolute path, or the name of a volume")
    return VolumeMount(source, rest[0], read_only=is_read_only)


def _mount(options: dict[str, str]) -> BindMount | VolumeMount | DeviceMount:
    kinds = [kind.value for kind in MountType]
    kind = options["type"]
    if kind not in kinds:
        raise ValueError(f"invalid mount type {kind!r}, must be one of {', '.join(kinds)}")
    src = _required(options, "src")
    read_only = str_to_bool(options.get("readonly", "false"))
    if kind == MountType.DEVICE.value:
        return DeviceMount(src_path=src, dst_path=options.get("dst") or src, permissions=_permissions(options))
    dst = _required(options, "dst")
    if kind == MountType.VOLUME.value:
        return VolumeMount(src=src, dst_path=dst, read_only=read_only)
    if src.startswith("~"):
        src = str(Path(src).expanduser())
    return BindMount(src_path=src, dst_path=dst, read_only=read_only)


def _required(options: dict[str, Any], name: str) -> str:
    if not options.get(name):
        given = ",".join(f"{key}={value}" for key, value in options.items())
        raise KeyError(f"mount {given} has no {name}; add it")
    return str(options[name])


def _permissions(options: dict[str, str]) -> str:
    permissions = options.get("perm", "rwm")
    if not permissions or set(permissions) - set("rwm"):
        raise ValueError(f"invalid mount permission {permissions!r}, must consist of r, w and m")
    return permissions
