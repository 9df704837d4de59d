"""The JSON document that a replica hands back, out of what Kubernetes keeps of its container: pure."""

from __future__ import annotations

from airflow_provider_launch.schedulers.kubernetes.objects import Pod
from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.specs.errors import InvalidAppError

_POD_BYTES = 12 * 1024
"""The kubelet divides this among all containers of a pod, init containers too, whatever each of them writes.

Source: kubernetes.io, Debug a running Pod, "Determine the Reason for Pod Failure".
"""


def result_in(pod: Pod | None) -> JsonValue:
    """Return the document that the last pod of a replica wrote before it succeeded; None: it wrote none.

    Raises:
        InvalidAppError: it is not JSON, or larger than Kubernetes hands back.
    """
    if pod is None or pod.exit_code != 0 or not pod.end_message:
        return None
    data = pod.end_message.encode()
    containers = 1 + len(pod.others)
    limit = min(RESULT_LIMIT_BYTES, _POD_BYTES // containers)
    # Of a larger document Kubernetes keeps as much as is allowed.
    if limit < RESULT_LIMIT_BYTES and len(data) >= limit:
        raise InvalidAppError(
            f"the result was cut: Kubernetes hands back {limit} bytes from each of the {containers} containers of a "
            f"pod; store it elsewhere and write its address to LAUNCH_RESULT_PATH, or use fewer init containers and "
            f"sidecars"
        )
    return parse_result(data, len(data) + (len(data) >= RESULT_LIMIT_BYTES))
