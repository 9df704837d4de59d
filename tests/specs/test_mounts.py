"""Mounts from text."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.specs.builders import BindMount, DeviceMount, VolumeMount, parse_mounts
from airflow_provider_launch.specs.roles import parse_mount


@pytest.mark.parametrize(
    ("opts", "mount"),
    [
        (["type=bind", "src=/a", "dst=/b"], BindMount("/a", "/b")),
        (["type=bind", "source=/a", "target=/b", "readonly"], BindMount("/a", "/b", read_only=True)),
        (["type=bind", "src=/a", "destination=/b", "read_only=false"], BindMount("/a", "/b")),
        (["type=bind", "src=~/a", "dst=/b"], BindMount(str(Path.home() / "a"), "/b")),
        (["type=bind", "src=/a=b", "dst=/b"], BindMount("/a=b", "/b")),
        (["type=volume", "src=data", "dst=/b", "readonly=YES"], VolumeMount("data", "/b", read_only=True)),
        (["type=volume", "src=~data", "dst=/b"], VolumeMount("~data", "/b")),
        (["type=device", "src=/dev/fuse"], DeviceMount("/dev/fuse", "/dev/fuse")),
        (["type=device", "src=/dev/a", "dst=/dev/b", "perm=rw"], DeviceMount("/dev/a", "/dev/b", permissions="rw")),
    ],
)
def test_a_mount_is_read_from_text(opts, mount):
    assert parse_mounts(opts) == [mount]


def test_one_list_holds_several_mounts():
    assert parse_mounts([]) == []
    assert parse_mounts(["type=bind", "src=/a", "dst=/b", "type=device", "src=/dev/a"]) == [
        BindMount("/a", "/b"),
        DeviceMount("/dev/a", "/dev/a"),
    ]


@pytest.mark.parametrize(
    ("opts", "error", "text"),
    [
        (["src=/a", "type=bind"], KeyError, "type must be specified first"),
        (["type=bind", "foo=1"], KeyError, "unknown mount option foo; use one of type"),
        (["type=bind", "dst=/b"], KeyError, "src"),
        (["type=volume", "src=a"], KeyError, "dst"),
        (["type=device"], KeyError, "src"),
        (["type=tmpfs", "src=a"], ValueError, "invalid mount type .*must be one of bind"),
        (["type"], ValueError, "invalid mount type"),
        (["type=device", "src=/a", "perm=rx"], ValueError, "permission 'rx'"),
        (["type=bind", "src=/a", "dst=/b", "readonly=maybe"], ValueError, "maybe"),
    ],
)
def test_a_wrong_mount_is_refused(opts, error, text):
    with pytest.raises(error, match=text):
        parse_mounts(opts)


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a:/b", BindMount("/a", "/b")),
        ("/a/c:/b:ro", BindMount("/a/c", "/b", read_only=True)),
        ("data:/b", VolumeMount("data", "/b")),
        ("data:/b:ro", VolumeMount("data", "/b", read_only=True)),
    ],
)
def test_a_mount_is_read_from_a_short_text(text, mount):
    assert parse_mount(text) == mount


@pytest.mark.parametrize("text", ["", "/a", ":/b", "/a:b", "/a:/b:rw", "/a:/b:ro:x"])
def test_a_short_text_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="/host:/path or volume:/path"):
        parse_mount(text)


@pytest.mark.parametrize("folder", [".", "..", "./data", "../data", "data/x", "~", "~/data"])
def test_a_relative_folder_is_refused(folder):
    """It would be a different folder on each worker."""
    with pytest.raises(ValueError, match="absolute path, or the name of a volume"):
        parse_mount(f"{folder}:/data")
