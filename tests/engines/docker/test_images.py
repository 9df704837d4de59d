"""The images that tests run in."""

from __future__ import annotations

import pytest

from tests.engines.docker import images

pytestmark = pytest.mark.engine("docker")


def run(docker_engine, image: str, *command: str, **options: object) -> str:
    return docker_engine.client.containers.run(image, command, remove=True, network_mode="none", **options).decode()


def test_a_shell_and_its_tools_are_there(docker_engine):
    """Scripts of the contract use only the first list, which is in `docs/testing.md`; our tests use the rest."""
    tools = "sh env fold grep head kill mkfifo nc printf rm seq sleep test touch tr true"
    further = "cat dd id wc wget"

    found = run(docker_engine, docker_engine.image, "sh", "-c", f"which {tools} {further}").split()

    assert [path.rpartition("/")[2] for path in found] == f"{tools} {further}".split()


@pytest.mark.parametrize("image", ["image", "python_image"])
def test_any_user_may_write_temporary_files(docker_engine, image):
    found = docker_engine.image if image == "image" else docker_engine.python_image()

    assert run(docker_engine, found, "sh", "-c", "echo x > /tmp/x; id -u; cat /tmp/x", user="1234") == "1234\nx\n"


def test_python_has_its_library_and_the_example(docker_engine):
    """Modules with shared libraries show that those are included."""
    program = (
        "import asyncio, bz2, ctypes, curses, dbm, hashlib, json, lzma, readline, sqlite3, ssl, uuid, zlib, zoneinfo\n"
        "import pathlib, sys\n"
        "print(sys.executable, sys.getfilesystemencoding(), sorted(p.name for p in pathlib.Path('/').glob('launch_*')))"
    )

    output = run(docker_engine, docker_engine.python_image(), "python3", "-c", program)

    assert output == "/usr/bin/python3 utf-8 ['launch_wordcount.md', 'launch_wordcount.py']\n"


def test_an_image_is_built_once(docker_engine):
    """Each rebuild would leave an unnamed image."""
    first = docker_engine.client.images.get(docker_engine.image).id

    assert images.busybox(docker_engine.client) == docker_engine.image
    assert docker_engine.client.images.get(docker_engine.image).id == first
