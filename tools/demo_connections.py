"""Prints the connections of `make demo` as variables for `env`, from `schedulers.backends`.

```shell
env $(python tools/demo_connections.py .build) airflow dags test launch_docker_demo
```
"""

from __future__ import annotations

import sys
from urllib.parse import urlencode

from airflow_provider_launch.schedulers.backends import BACKENDS


def connections(build: str) -> dict[str, str]:
    """Return the URIs by the names of their variables.

    Args:
        build: the build folder.
    """
    found = {}
    for info in BACKENDS.values():
        if info.demo_options is not None:
            query = urlencode({name: value.format(build=build) for name, value in info.demo_options.items()})
            uri = f"{info.connection_type.replace('_', '-')}://" + (f"?{query}" if query else "")
            found[f"AIRFLOW_CONN_{info.default_conn_id.upper()}"] = uri
    return found


if __name__ == "__main__":
    print(*(f"{name}={uri}" for name, uri in connections(sys.argv[1]).items()))
