"""Images of the tests, built from files of this machine without a pull."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound

from tests.engines.docker.daemon import EngineError
from tests.engines.docker.packages import needs_libraries

BUSYBOX = "launch-busybox:local"
"""A shell and its tools, 2 MB."""
PRINTS_ITS_ARGS = "/bin/prints its args"
"""A program of BUSYBOX whose name has blanks."""
PYTHON = "launch-python:local"
"""Debian's Python with its library, the shell and tools of BUSYBOX, and the example's word count; about 40 MB."""

_EXAMPLE = Path(__file__).resolve().parents[3] / "example_dags"
_CONTENT = "launch.io/test-content"
_PRINTS = b"#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n"
_RECIPE = "1"  # increase it to rebuild images of unchanged files


@dataclass(frozen=True)
class Content:
    """The parts of an image; other engines than Docker use the same parts."""

    name: str
    key: str
    """Changes with the files."""
    pack: Callable[[tarfile.TarFile], None]
    """Adds the files."""
    env: list[str]
    command: list[str]


def busybox(client: docker.DockerClient) -> str:
    """Return the name of the busybox image; build it if missing."""
    return _build(client, busybox_content())


def python(client: docker.DockerClient) -> str:
    """Return the name of the Python image; build it from Debian packages if missing."""
    return _build(client, python_content())


def busybox_content() -> Content:
    """Return the parts of the busybox image."""
    program = _busybox()

    def pack(tar: tarfile.TarFile) -> None:
        _folders(tar, "bin", "etc", "root", "tmp")
        _shell(tar, program, "bin")
        _file(tar, PRINTS_ITS_ARGS.removeprefix("/"), _PRINTS, 0o755)

    return Content(BUSYBOX, f"{_sum(program)} {_PRINTS!r}", pack, ["PATH=/bin"], ["sh"])


def python_content() -> Content:
    """Return the parts of the Python image."""
    program = _busybox()
    packages = _python_packages()
    example = sorted(_EXAMPLE.glob("launch_wordcount.*"))
    key = _output("dpkg-query", "--show", *packages) + _sum(program, *example)

    def pack(tar: tarfile.TarFile) -> None:
        _folders(tar, "usr", "usr/bin", "usr/lib", "usr/lib64", "etc", "root", "tmp")
        for name in ("bin", "lib", "lib64"):
            _link(tar, name, f"usr/{name}")
        files = _files_of(packages)
        for file in files:
            tar.add(file, _inside(file), recursive=False)
        for library in _libraries(files):
            tar.add(library.resolve(), _inside(library))
        _shell(tar, program, "usr/bin")
        for file in example:
            tar.add(file, file.name)

    return Content(PYTHON, key, pack, ["PATH=/usr/bin", "LANG=C.UTF-8"], ["python3"])


def _build(client: docker.DockerClient, made_of: Content) -> str:
    name = made_of.name
    changes = [*(f"ENV {one}" for one in made_of.env), f"CMD {json.dumps(made_of.command)}"]
    content = hashlib.sha256(f"{_RECIPE} {made_of.key} {changes}".encode()).hexdigest()[:16]
    # Workers of one run may build at the same time.
    with (Path(tempfile.gettempdir()) / f"launch-image-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = None
        with contextlib.suppress(ImageNotFound):
            old = client.images.get(name)
        if old is not None and old.labels.get(_CONTENT) == content:
            return name
        with tempfile.NamedTemporaryFile(suffix=".tar") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                made_of.pack(tar)
            file.flush()
            repository, tag = name.split(":")
            client.api.import_image_from_file(
                file.name, repository, tag, changes=[*changes, f"LABEL {_CONTENT}={content}"]
            )
        if old is not None:
            # It has no name any more, but a container may still need it.
            with contextlib.suppress(APIError):
                client.api.remove_image(old.id)
    return name


def _sum(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _folders(tar: tarfile.TarFile, *names: str) -> None:
    for name in names:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(info)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _shell(tar: tarfile.TarFile, program: Path, folder: str) -> None:
    tar.add(program, f"{folder}/busybox")
    for applet in _output(str(program), "--list").split():
        if applet != "busybox":
            _link(tar, f"{folder}/{applet}", "busybox")
    _file(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n", 0o644)


def _file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))


def _busybox() -> Path:
    """Return the path of a static busybox."""
    program = shutil.which("busybox")
    if program is None:
        raise EngineError("the image of the tests is made from busybox: apt-get install busybox-static")
    if needs_libraries(program):
        raise EngineError(f"{program} needs libraries; the image of the tests needs: apt-get install busybox-static")
    return Path(program)


def _python_packages() -> list[str]:
    link = Path("/usr/bin/python3")
    if not link.exists() or not shutil.which("dpkg-query"):
        raise EngineError("the Python image is made from Debian's packages: apt-get install python3")
    version = link.readlink().name  # python3.11
    return ["python3-minimal", f"{version}-minimal", f"lib{version}-minimal", f"lib{version}-stdlib"]


def _files_of(packages: Iterable[str]) -> set[Path]:
    found = {
        Path(line) for line in _output("dpkg-query", "--listfiles", *packages).splitlines() if line.startswith("/")
    }
    unwanted = (Path("/usr/share"), Path("/etc"))
    return {
        file
        for file in found
        if (file.is_symlink() or file.is_file()) and not any(file.is_relative_to(one) for one in unwanted)
    }


def _libraries(files: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that programs and extension modules load."""
    binaries = [str(one) for one in files if _is_elf(one)]
    words = _output("ldd", *binaries).split()
    return {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}


def _is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _inside(file: Path) -> str:
    # Here `/lib` may be a link to `/usr/lib`; in the image it always is.
    path = str(file).lstrip("/")
    return path if path.startswith("usr/") else f"usr/{path}"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}).stdout
