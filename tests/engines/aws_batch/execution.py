"""Runs jobs instead of moto's `Job.run`: lasting states, attempts, arrays and nodes."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.engines.aws_batch.containers import Attempt, Containers, now_ms

_ENDED = "Essential container in task exited"
_STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")


def is_over(status: str) -> bool:
    return status in {"SUCCEEDED", "FAILED"}


def execution_of(job: Any) -> Execution:
    """Return our state of moto's job, created at the first call in SubmitJob."""
    if "launch_execution" not in vars(job):
        job.launch_execution = Execution(job)
    found: Execution = job.launch_execution
    return found


class _Runs:
    """Common parts of a job and a node: status, attempts, end."""

    def __init__(self) -> None:
        self.status = "SUBMITTED"
        self.created = now_ms()
        self.started: int | None = None
        self.stopped: int | None = None
        self.status_reason: str | None = None
        self.terminated = False
        self.cancelled = False
        self.attempts: list[Attempt] = []
        self.moved = threading.Condition()

    def move(self, status: str) -> None:
        with self.moved:
            if not is_over(self.status):
                if status == "RUNNING":
                    self.started = now_ms()
                if is_over(status):
                    self.stopped = now_ms()
                self.status = status
            self.moved.notify_all()

    def wait_over(self) -> None:
        with self.moved:
            self.moved.wait_for(lambda: is_over(self.status))

    def details(self) -> dict[str, Any]:
        """Return the fields that are also in a summary."""
        found: dict[str, Any] = {"createdAt": self.created, "status": self.status}
        if self.started:
            found["startedAt"] = self.started
        if self.stopped:
            found["stoppedAt"] = self.stopped
        if self.status_reason:
            found["statusReason"] = self.status_reason
        return found

    def ended_container(self) -> dict[str, Any]:
        """Return `container` of a summary: exit code and reason of the last attempt, after its end."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or not is_over(self.status):
            return {}
        document = last.document()["container"]
        return {key: document[key] for key in ("exitCode", "reason") if key in document}

    def container(self) -> dict[str, Any]:
        """Return what DescribeJobs adds to the container: the stream from STARTING on, the end's code and reason."""
        found = self.ended_container()
        if self.attempts and self.status in {"STARTING", "RUNNING", "SUCCEEDED", "FAILED"}:
            found["logStreamName"] = self.attempts[-1].stream
        return found


class Execution(_Runs):
    """A job of moto: a single job, an array, a child of an array, or a multi-node job."""

    containers: Containers
    held = False
    """True if there is no capacity, so that jobs stay RUNNABLE."""
    state_s = 0.03
    """Seconds for which a job stays in each state before it runs."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.job = job
        definition = job.job_definition
        # Batch copies the values of a definition when the job is submitted.
        self.properties = copy.deepcopy(definition.container_properties or {})
        self.node_properties = copy.deepcopy(definition.node_properties)
        self.retry = copy.deepcopy(definition.retry_strategy or {})
        timeout = job.timeout or definition.timeout or {}
        self.limit_s: float | None = timeout.get("attemptDurationSeconds")
        self.index: int | None = (job.array_properties or {}).get("index")
        self.nodes: list[Node] = []

    def may_start(self) -> bool:
        """Return whether a host may run the job; `corrections` replaces it."""
        return True

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for status in ("PENDING", "RUNNABLE", "STARTING"):
            time.sleep(self.state_s)
            if self._ended_before_start():
                return
            self.move(status)
            while status == "RUNNABLE" and (self.held or not self.may_start()) and not self.terminated:
                time.sleep(self.state_s)
        if self.node_properties:
            self._run_nodes()
            return
        most = int(self.retry.get("attempts", 1))
        for number in range(1, most + 1):
            attempt = self._run_attempt(number)
            if self._ended_before_start(attempt):
                return
            if attempt.exit_code == 0 and not attempt.status_reason:
                self.status_reason = _ENDED
                self.move("SUCCEEDED")
                return
            self.status_reason = attempt.status_reason = attempt.status_reason or _ENDED
            if number == most or "duration exceeded" in self.status_reason or not _retries(self.retry, attempt):
                self.move("FAILED")
                return
            # Between two attempts a job is RUNNABLE again.
            self.status = "RUNNABLE"
            time.sleep(self.state_s)
            if self._ended_before_start():
                return
            self.move("STARTING")

    def _run_attempt(self, number: int) -> Attempt:
        attempt = Attempt(f"{self.job.job_definition.name}/default/{_task_id(self.job.job_id)}-{number}")
        self.attempts.append(attempt)
        env = {"AWS_BATCH_JOB_ID": self.job.job_id, "AWS_BATCH_JOB_ATTEMPT": str(number)}
        if self.index is not None:
            env["AWS_BATCH_JOB_ARRAY_INDEX"] = str(self.index)
        self.containers.run(
            self.job.job_name,
            _overridden(self.properties, self.job.container_overrides),
            env,
            attempt,
            started=lambda: self.move("RUNNING"),
            stopped=lambda: self.terminated,
            limit_s=self.limit_s,
        )
        return attempt

    def _ended_before_start(self, attempt: Attempt | None = None) -> bool:
        if self.terminated:
            # Terminated jobs are FAILED, whatever the exit code of the container.
            self.move("FAILED")
        return self.terminated

    def _run_nodes(self) -> None:
        ranges = self.node_properties["nodeRangeProperties"]
        count, main = self.node_properties["numNodes"], self.node_properties["mainNode"]
        self.nodes = [Node(self, n, _range_of(ranges, n, count), n == main) for n in range(count)]
        for node in self.nodes:
            self.job.backend._jobs[node.job_id] = node
        env = {"AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main), "AWS_BATCH_JOB_NUM_NODES": str(count)}
        first = self.nodes[main]
        first.start(env)
        with first.moved:
            first.moved.wait_for(lambda: first.status in {"RUNNING", "SUCCEEDED", "FAILED"})
        self.move("RUNNING")
        address = first.attempts[0].address or ""
        for node in self.nodes:
            if node is not first:
                # The variable is on the children only.
                node.start({**env, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": address})
        first.wait_over()
        # The main node's end is the end of the job; the other nodes are stopped.
        for node in self.nodes:
            node.end(by_user=False)
        for node in self.nodes:
            node.wait_over()
        if self.terminated:
            self.move("FAILED")
        else:
            self.status_reason = first.status_reason
            self.move(first.status)

    # ---- ending ------------------------------------------------------------------------------------------------------

    def terminate(self, reason: str) -> None:
        """TerminateJob: waiting jobs are cancelled, running ones are stopped; the first reason stays."""
        if is_over(self.status) or self.terminated:
            return
        self.status_reason = reason
        self.terminated = True
        for child in self.job._child_jobs or []:
            execution_of(child).terminate(reason)
        for node in self.nodes:
            node.end(by_user=True)
        if self.attempts:
            threading.Thread(target=self.containers.stop, args=(self.attempts[-1],), daemon=True).start()

    # ---- answers -----------------------------------------------------------------------------------------------------

    @property
    def children(self) -> list[Execution]:
        return [execution_of(child) for child in self.job._child_jobs or []]

    def summary(self) -> dict[str, Any]:
        """Return the job in the format of ListJobs."""
        job = self.job
        self._follow_children()
        found: dict[str, Any] = {
            "jobId": job.job_id,
            "jobArn": job.arn,
            "jobName": job.job_name,
            "jobDefinition": job.job_definition.arn,
            **self.details(),
            **({"isTerminated": True} if self.terminated else {}),
        }
        if job._child_jobs:
            found["arrayProperties"] = {"size": len(job._child_jobs)}
        if self.index is not None:
            found["arrayProperties"] = {"index": self.index}
        if self.node_properties:
            found["nodeProperties"] = {"numNodes": self.node_properties["numNodes"]}
        elif ended := self.ended_container():
            found["container"] = ended
        return found

    def document(self) -> dict[str, Any]:
        """Return the job in the format of DescribeJobs."""
        job = self.job
        found = self.summary()
        found.pop("container", None)
        found |= {
            "jobQueue": job.job_queue.arn,
            "isCancelled": self.cancelled,
            "isTerminated": self.terminated,
            "parameters": {},
            "dependsOn": [],
            "tags": job.backend.list_tags_for_resource(job.arn),
            "attempts": [attempt.document() for attempt in self.attempts if attempt.stopped],
            "platformCapabilities": job.job_definition.platform_capabilities or ["EC2"],
        }
        if self.retry:
            found["retryStrategy"] = self.retry
        if self.limit_s:
            found["timeout"] = {"attemptDurationSeconds": int(self.limit_s)}
        if self.node_properties:
            found["nodeProperties"] = self.node_properties
        else:
            found["container"] = {**self.properties, **self.container()}
        if job._child_jobs:
            states = [child.status for child in self.children]
            summary = {state: states.count(state) for state in _STATES}
            found["arrayProperties"] = {"size": len(states), "statusSummary": summary}
        return found

    def _follow_children(self) -> None:
        """Update the parent of an array from its children: PENDING until all have ended."""
        if not self.children or is_over(self.status):
            return
        states = [child.status for child in self.children]
        if all(map(is_over, states)):
            self.status_reason = self.status_reason or (None if "FAILED" not in states else "Array Child Job failed")
            self.move("SUCCEEDED" if set(states) == {"SUCCEEDED"} else "FAILED")
        elif self.status == "SUBMITTED":
            self.move("PENDING")


class Node(_Runs):
    """One node of a multi-node job."""

    def __init__(self, parent: Execution, number: int, properties: Mapping[str, Any], is_main: bool) -> None:
        super().__init__()
        self.parent = parent
        self.number = number
        self.is_main = is_main
        self.properties = properties
        self.job_id = f"{parent.job.job_id}#{number}"
        self.arn = f"{parent.job.arn}#{number}"
        self._stopping = False

    def start(self, env: Mapping[str, str]) -> None:
        threading.Thread(target=self._run, args=(env,), daemon=True).start()

    def _run(self, env: Mapping[str, str]) -> None:
        self.move("STARTING")
        name = self.parent.job.job_definition.name
        attempt = Attempt(f"{name}/default/{_task_id(self.job_id)}")
        self.attempts.append(attempt)
        own = {
            "AWS_BATCH_JOB_ID": self.job_id,
            "AWS_BATCH_JOB_ATTEMPT": "1",
            "AWS_BATCH_JOB_NODE_INDEX": str(self.number),
        }
        self.parent.containers.run(
            self.parent.job.job_name,
            self.properties,
            {**own, **env},
            attempt,
            started=lambda: self.move("RUNNING"),
            stopped=lambda: self._stopping or self.parent.terminated,
            limit_s=self.parent.limit_s,
        )
        self.status_reason = attempt.status_reason or (self.parent.status_reason if self.terminated else _ENDED)
        good = attempt.exit_code == 0 and not attempt.status_reason and not self._stopping and not self.terminated
        self.move("SUCCEEDED" if good else "FAILED")

    def end(self, *, by_user: bool) -> None:
        """Stop the node: TerminateJob of the job, or the end of its main node."""
        if is_over(self.status) or (self.attempts and self.attempts[-1].stopped is not None):
            # Its program ended by itself, though the node does not say so yet.
            return
        self.terminated = self.terminated or by_user
        self._stopping = True
        if self.attempts:
            threading.Thread(target=self.parent.containers.stop, args=(self.attempts[-1],), daemon=True).start()
        elif self.status == "SUBMITTED" and not self.is_main:
            self.status_reason = self.parent.status_reason
            self.move("FAILED")

    def summary(self) -> dict[str, Any]:
        job = self.parent.job
        found = {
            "jobId": self.job_id,
            "jobArn": self.arn,
            "jobName": job.job_name,
            "jobDefinition": job.job_definition.arn,
            **self.details(),
            **({"isTerminated": True} if self.terminated else {}),
            "nodeProperties": {"isMainNode": self.is_main, "nodeIndex": self.number},
        }
        return {**found, "container": ended} if (ended := self.ended_container()) else found

    def document(self) -> dict[str, Any]:
        found = self.summary()
        found.pop("nodeProperties")
        return {
            **found,
            "jobQueue": self.parent.job.job_queue.arn,
            "isTerminated": self.terminated,
            "isCancelled": False,
            "nodeDetails": {"isMainNode": self.is_main, "nodeIndex": self.number},
            "container": {**self.properties, **self.container()},
            "attempts": [attempt.document() for attempt in self.attempts if attempt.stopped],
            "tags": {},
        }


def _range_of(ranges: list[dict[str, Any]], number: int, count: int) -> dict[str, Any]:
    for one in ranges:
        first, _, last = one["targetNodes"].partition(":")
        if int(first or 0) <= number <= int(last or count - 1):
            found: dict[str, Any] = one["container"]
            return found
    raise AssertionError(f"no range has node {number}")


def _retries(strategy: Mapping[str, Any], attempt: Attempt) -> bool:
    """Apply the first rule that matches; RETRY if none does."""
    texts = {
        "onExitCode": "" if attempt.exit_code is None else str(attempt.exit_code),
        "onReason": attempt.reason or "",
        "onStatusReason": attempt.status_reason or "",
    }
    for rule in strategy.get("evaluateOnExit", []):
        if all(_matches(rule[name], text) for name, text in texts.items() if name in rule):
            return bool(rule["action"].upper() == "RETRY")
    return True


def _matches(pattern: str, text: str) -> bool:
    if pattern.endswith("*"):
        return text.lower().startswith(pattern[:-1].lower())
    return text.lower() == pattern.lower()


def _overridden(properties: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a job that BatchOperator has submitted; the launcher overrides nothing."""
    given = {one["name"]: one for one in properties.get("environment") or []}
    given |= {one["name"]: one for one in overrides.get("environment") or []}
    return {**properties, **overrides, "environment": [*given.values()]}


def _task_id(job_id: str) -> str:
    """Return a name for the ECS task of the job; it is part of stream names, without the `:` of children."""
    return job_id.replace("-", "").replace(":", "-c").replace("#", "-n")
