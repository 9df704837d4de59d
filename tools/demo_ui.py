"""Start Airflow with the example DAGs and say where to look: `make demo-ui PORT=8793`."""

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
    """Return the wanted port, or another one if somebody has it."""
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
    """Wait until the API answers, then tell the user, below what Airflow prints meanwhile."""
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
    """Run `airflow standalone` on a port of our own."""
    home = os.environ["AIRFLOW_HOME"]
    port = free_port(int(sys.argv[1]))
    url = f"http://localhost:{port}"
    env = os.environ | {
        "AIRFLOW__API__PORT": str(port),
        # Tasks call the API by this address; without it they would try the default port.
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
    # Ctrl-C reaches both of us; Airflow then takes a moment to stop its parts.
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(airflow.wait())
    sys.exit(airflow.wait())


if __name__ == "__main__":
    main()
