"""Runs a command with the AWS Batch of the tests: `python -m tests.engines.aws_batch COMMAND ...`.

The address is in the Airflow connection `launch_aws_batch_default` of the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import docker

from tests.engines.aws_batch.engine import BatchServer, why_missing
from tests.engines.aws_batch.fixtures import params_for
from tests.engines.aws_batch.names import QUEUE
from tests.engines.docker import engine, images
from tests.engines.docker.daemon import EngineError


def main() -> int:
    host = engine.Use().begin(start=False)
    if reason := why_missing(None):
        raise EngineError(reason)
    os.environ["DOCKER_HOST"] = host
    with contextlib.closing(docker.from_env()) as client:
        images.python(client)
    with BatchServer() as server:
        extra = {**params_for(server.url), "queue": QUEUE}
        connection = json.dumps({"conn_type": "launch_aws_batch", "extra": extra})
        env = {**os.environ, "AIRFLOW_CONN_LAUNCH_AWS_BATCH_DEFAULT": connection}
        return subprocess.run(sys.argv[1:], env=env, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        sys.exit(f"{error}; root can start a Docker engine: python -m tests.engines.docker start")
