import subprocess
import sys

from airflow_provider_launch import specs
from airflow_provider_launch.specs import api

HEAVY = ("airflow", "docker", "kubernetes", "boto3", "hydra", "fsspec", "fastapi", "yaml", "pydantic")


def test_importing_the_specs_loads_nothing_heavy_and_discovers_nothing():
    """Every DAG parse pays for it."""
    program = (
        "import importlib.metadata, sys\n"
        "def refuse(*a, **k): raise SystemExit('plug-in discovery at import')\n"
        "importlib.metadata.entry_points = importlib.metadata.distributions = refuse\n"
        "import airflow_provider_launch.specs\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith('airflow_provider_launch.specs.named_resources_')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("[]\n[]\n", "")


def test_public_names_exist_and_the_package_has_all_of_the_api():
    assert [name for name in specs.__all__ if not hasattr(specs, name)] == []
    assert [name for name in api.__all__ if getattr(specs, name, None) is not getattr(api, name)] == []
    assert specs.GiB == 1024
    assert (specs.MISSING, specs.NONE, specs.UNKNOWN, specs.ALL) == ("<MISSING>", "<NONE>", "<UNKNOWN>", "all")
    assert specs.AppHandle is str
