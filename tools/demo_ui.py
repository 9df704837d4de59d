"""Starts Airflow with the example DAGs and prints its URL: `make demo-ui PORT=8793`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

WAIT_FOR_API_S = 180


def free_port(wanted: int) -> int:
    """Return the wanted port, or another one if it is in use."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SystemExit("no free port")


def announce(url: str, home: str) -> None:
    """Wait until the API answers, then print the URL below the output of Airflow."""
    deadline = time.monotonic() + WAIT_FOR_API_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5) as answer:  # noqa: S310  # our own URL
                json.load(answer)
            break
        except (OSError, ValueError):
            time.sleep(1)
    else:
        return
    lines = [
        f"Airflow is at {url} (no login)",
        f"A distributed app: {url}/dags/launch_local_demo -> Trigger -> task count_words -> Logs",
        "Also: launch_local_retry, launch_local_sensor; after `make demo DAG=launch_docker_demo` that one",
        f"Everything is kept in {home}; Ctrl-C ends it",
    ]
    width = max(map(len, lines)) + 2
    print("\n".join(["", "=" * width, *(f" {line}" for line in lines), "=" * width, ""]), flush=True)


def main() -> None:
    """Run `airflow standalone` on the chosen port."""
    home = os.environ["AIRFLOW_HOME"]
    port = free_port(int(sys.argv[1]))
    url = f"http://localhost:{port}"
    env = os.environ | {
        "AIRFLOW__API__PORT": str(port),
        # Tasks call the API at this address; without it they would use the default port.
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port(0)),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port(0)),
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    }
    airflow = subprocess.Popen([sys.executable, "-m", "airflow", "standalone"], env=env)
    threading.Thread(target=announce, args=(url, home), daemon=True).start()
    # Ctrl-C reaches both processes; Airflow then takes a moment to stop.
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(airflow.wait())
    sys.exit(airflow.wait())


if __name__ == "__main__":
    main()
