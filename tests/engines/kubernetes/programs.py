"""The programs of a cluster, built once from Go modules and cached outside the checkout.

`go/` has a module for Kubernetes and etcd, one for the oldest version of both that is promised, one for CoreDNS and one
for Kueue; their `go.mod` and `go.sum` pin every version. The built programs are in a folder named after both, below
`~/.cache/airflow-provider-launch/engines`.
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
_RECIPE = "1"  # increase it to rebuild unchanged sources
VERSION = "LAUNCH_TEST_KUBERNETES"
"""Set it to `oldest` for a cluster of the oldest version that is promised."""


def say(text: str) -> None:
    """Print progress for the waiting user."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - shows the reason of a wait of minutes


def cache() -> Path:
    """Return the folder of built programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-launch/engines"


@dataclass(frozen=True)
class Module:
    """A Go module with programs to build."""

    name: str
    version_of: str
    """The requirement that sets the version."""
    packages: dict[str, str]
    """Program -> its Go package."""
    minutes: str
    """Duration of the build on two cores, including the download."""
    files: tuple[str, ...] = ()
    """Files and folders of the module of `version_of` that the programs need, by their paths in it."""

    @property
    def source(self) -> Path:
        return _HERE / self.name

    @property
    def version(self) -> str:
        return self._find(rf"^\s*(?:require )?{re.escape(self.version_of)} v(\S+)")

    @property
    def folder(self) -> Path:
        """The folder of the built programs; it depends on sources, flags and processor."""
        sources = b"".join(file.read_bytes() for file in sorted(self.source.glob("*.*")))
        what = f"{_RECIPE} {self.packages} {self.files or ''}{platform.machine()} "
        key = hashlib.sha256(what.encode() + sources).hexdigest()[:10]
        return cache() / f"{self.name}-{self.version}-{key}"

    def build(self) -> None:
        """Build the programs into `folder`, which is created atomically."""
        go = _go(self._find(r"^go (\S+)"))
        version = f"v{self.version}"
        major, minor, _ = self.version.split(".", 2)
        # The version that a server reports; v0.0.0-master without these.
        facts = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        told = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in facts.items())
        env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        # Rare garbage collection and no debug information save a quarter of the CPU time.
        env.setdefault("GOGC", "400")
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=f"{self.name}-") as made:
            # Low priority, because others use this machine.
            flags = ["-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {told}"]
            command = ["nice", "-n", "10", go, "build", *flags]
            # One by one, because the program may be named differently from its package.
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
            Path(made).mkdir()  # because the context removes it

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
        "kubernetes-oldest" if os.environ.get(VERSION) == "oldest" else "kubernetes",
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
"""Optional programs: only tests of queues wait for them."""


def paths() -> dict[str, Path]:
    """Return the path of each program after its build."""
    return {name: module.folder / name for module in [*MODULES, KUEUE] for name in module.packages}


def build_in_background(module: Module) -> None:
    """Start to build in a separate process that outlives this one; `build` waits for it."""
    command = [sys.executable, "-m", "tests.engines.kubernetes", "build", module.name]
    # Forked twice into a separate session, because the next session needs an unfinished build, and pytest reports a
    # running child as an error.
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
        raise EngineError(f"the cluster of the tests is built from Go modules, but go is missing: {cure}")
    # Run outside of the module, where Go does not fetch another version.
    told = subprocess.run([go, "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", check=True, capture_output=True, text=True)
    has, toolchain = told.stdout.splitlines()
    # Go before 1.21 does not fetch other versions, and its line for that setting is empty.
    if _numbers(has) < _numbers(wanted) and toolchain in {"", "local"}:
        raise EngineError(f"the cluster of the tests needs Go {wanted}, {go} is {has}: {cure}")
    return go


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
