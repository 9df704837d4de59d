"""The programs of a cluster, built from Go modules once and kept outside the checkout.

`go/` has a module for Kubernetes and etcd, one for CoreDNS and one for Kueue; their `go.mod` and `go.sum` pin every
version. What is built from them lies in a folder named after both, below `~/.cache/airflow-provider-launch/engines`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.docker.daemon import EngineError

_HERE = Path(__file__).resolve().parent / "go"
_RECIPE = "1"  # counts up when the same sources have to be built anew


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - who waits for minutes wants to know for what


def cache() -> Path:
    """Return the folder for what was built."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-launch/engines"


@dataclass(frozen=True)
class Module:
    """A Go module whose programs are wanted."""

    name: str
    version_of: str
    """The requirement that gives the version."""
    packages: dict[str, str]
    """Program -> its Go package."""
    minutes: str
    """How long building takes on two cores, download included."""
    files: tuple[str, ...] = ()
    """Files and folders of the module of `version_of` that the programs come with, by their paths in it."""

    @property
    def source(self) -> Path:
        return _HERE / self.name

    @property
    def version(self) -> str:
        return self._find(rf"^\s*(?:require )?{re.escape(self.version_of)} v(\S+)")

    @property
    def folder(self) -> Path:
        """Where the built programs lie; other sources, flags or processors have another folder."""
        sources = b"".join(file.read_bytes() for file in sorted(self.source.glob("*.*")))
        what = f"{_RECIPE} {self.packages} {self.files or ''}{platform.machine()} "
        key = hashlib.sha256(what.encode() + sources).hexdigest()[:10]
        return cache() / f"{self.name}-{self.version}-{key}"

    def build(self) -> None:
        """Build the programs into `folder`, where all appear at once."""
        go = _go(self._find(r"^go (\S+)"))
        version = f"v{self.version}"
        major, minor, _ = self.version.split(".", 2)
        # What a server says of itself; without these it is v0.0.0-master.
        facts = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        told = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in facts.items())
        env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        # Compilers that collect garbage rarely, and write nothing for debuggers, need a quarter less of a processor.
        env.setdefault("GOGC", "400")
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=f"{self.name}-") as made:
            # Others work on this machine, too.
            flags = ["-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {told}"]
            command = ["nice", "-n", "10", go, "build", *flags]
            # One by one: the last name of a package need not be the program's.
            for program, package in self.packages.items():
                done = subprocess.run(
                    [*command, "-o", str(Path(made, program)), package],
                    cwd=self.source,
                    env=env,
                    check=False,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                if done.returncode != 0:
                    last = "\n".join(done.stdout.strip().splitlines()[-8:])
                    raise EngineError(f"go build {package} failed with {done.returncode}:\n{last}")
            self._copy_files(go, env, Path(made))
            Path(made).chmod(0o755)
            Path(made).rename(self.folder)
            Path(made).mkdir()  # for the one who removes it

    def _copy_files(self, go: str, env: dict[str, str], folder: Path) -> None:
        if not self.files:
            return
        command = [go, "list", "-m", "-f", "{{.Dir}}", self.version_of]
        told = subprocess.run(command, cwd=self.source, env=env, check=True, capture_output=True, text=True)
        for file in self.files:
            source, target = Path(told.stdout.strip(), file), folder / Path(file).name
            if source.is_dir():
                shutil.copytree(source, target, copy_function=shutil.copyfile)
                target.chmod(0o755)
            else:
                shutil.copyfile(source, target)

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, (self.source / "go.mod").read_text(), re.MULTILINE)
        assert found, f"{self.source}/go.mod has no {pattern}"
        return found[1]


_KUBERNETES = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"]
MODULES = [
    Module(
        "kubernetes",
        "k8s.io/kubernetes",
        {"etcd": "go.etcd.io/etcd/server/v3"} | {name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES},
        "5 to 15",
    ),
    Module("coredns", "github.com/coredns/coredns", {"coredns": "."}, "1 to 3"),
]
_COMPONENTS = "config/components"
KUEUE = Module(
    "kueue",
    "sigs.k8s.io/kueue",
    {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
    "4 to 8",
    (f"{_COMPONENTS}/crd/bases", f"{_COMPONENTS}/crd/patches", f"{_COMPONENTS}/webhook/manifests.yaml"),
)
"""Which a cluster runs without: only the tests of queues wait for it."""


def paths() -> dict[str, Path]:
    """Return where each program lies once it is built."""
    return {name: module.folder / name for module in [*MODULES, KUEUE] for name in module.packages}


def build_in_background(module: Module) -> None:
    """Begin to build in a process of its own, which outlives this one; `build` waits for it."""
    command = [sys.executable, "-m", "tests.engines.kubernetes", "build", module.name]
    # Forked once more, into a session of its own: what is half built when the tests end is wanted by the next ones, and
    # pytest counts a child that still runs as an error.
    subprocess.run(
        ["setsid", "--fork", *command],
        cwd=_HERE.parents[3],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def build(tell: Callable[[str], None] = say, modules: Sequence[Module] = MODULES) -> None:
    """Build what is missing, one process at a time."""
    cache().mkdir(parents=True, exist_ok=True)
    for module in modules:
        if module.folder.exists():
            continue
        with (cache() / f"{module.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not module.folder.exists():
                what = f"{module.name} {module.version} ({', '.join(module.packages)})"
                tell(f"building {what}: about {module.minutes} minutes, once; kept in {module.folder}")
                module.build()


def _go(wanted: str) -> str:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/go/bin"])
    go = shutil.which("go", path=path)
    cure = f"install Go {wanted} or newer, or set LAUNCH_TEST_KUBECONFIG to a cluster (kind, minikube)"
    if go is None:
        raise EngineError(f"the cluster of the tests is built from Go modules, and there is no go: {cure}")
    # Asked outside of the module, where no other Go is fetched yet.
    told = subprocess.run([go, "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", check=True, capture_output=True, text=True)
    has, toolchain = told.stdout.splitlines()
    # Before 1.21 it fetches no other, and its line for that setting is empty.
    if _numbers(has) < _numbers(wanted) and toolchain in {"", "local"}:
        raise EngineError(f"the cluster of the tests needs Go {wanted}, {go} is {has}: {cure}")
    return go


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
