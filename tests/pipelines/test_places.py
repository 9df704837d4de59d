"""The same pipeline on several executors: local processes, containers, pods and mocked."""

from __future__ import annotations

import json
import os
import uuid

import pytest

from tests.engines.aws_batch.fixtures import params_for

MAPPED = """
    executor:
      type: mocked
      config: {patches: PATCHES}
    dag:
      start_at: chunk files
      steps:
        chunk files: {type: task, command: gone.generate, returns: [chunks], next: iterate and execute, executor: kubernetes}
        iterate and execute:
          type: map
          iterate_on: chunks
          iterate_as: chunk
          next: success
          branch: {start_at: execute, steps: {execute: {type: task, command: gone.execute, next: success}}}
    """


def test_mocked_tasks_do_nothing(run_pipeline):
    ran = run_pipeline("""
        executor: mocked
        dag:
          start_at: step 1
          steps:
            step 1: {type: task, command_type: shell, command: exit 1, next: step 2}
            step 2: {type: task, command_type: shell, command: exit 7, next: step 3}
            step 3: {type: stub, next: success}
        """)

    assert ran.state == "success"
    assert ran.where("success") == {"step_1", "step_2", "step_3", "success"}
    assert ran.xcom("step_1", "attempt") is None


def test_a_patched_task_runs_its_patch(run_pipeline):
    patches = "{chunk files: {command_type: shell, command: \"export chunks='[1, 2, 3, 4, 5]'\"}}"

    ran = run_pipeline(MAPPED.replace("PATCHES", patches).replace(", executor: kubernetes", ""))

    assert ran.state == "success", ran.states
    assert {name for name in ran.states if ".execute[" in name} == {
        f"iterate_and_execute.each.execute[{index}]" for index in range(5)
    }


def test_a_deferrable_pipeline_hands_on_as_well(run_pipeline):
    ran = run_pipeline(
        """
        parameters: {xs: [1, 2]}
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: xs
              iterate_as: x
              next: read
              branch: {start_at: make, steps: {make: {type: task, command_type: shell, command: 'sleep 1; echo $x > f.txt; export y=$x', returns: [y], catalog: {put: f.txt}, next: success}}}
            read: {type: task, command_type: shell, command: 'test "$(cat m/0/f.txt)$y" = "1[1, 2]"', catalog: {get: "m/**"}, next: small}
            small: {type: task, command_type: shell, command: 'sleep 0.3', next: success}
        """,
        default_args={"deferrable": True},
    )

    assert ran.state == "success", ran.states
    record = ran.xcom("m.each.make", "attempt", map_index=1)
    assert (record["state"], record["returned"], [item["name"] for item in record["catalog"]]) == (
        "SUCCEEDED", {"y": 2}, ["f.txt"],
    )  # fmt: skip
    # A small step is saved at its deferral, which is earlier than that of a step which its worker waits for.
    record = ran.xcom("small", "attempt")
    assert (record["state"], record["parameters"]["y"]) == ("SUCCEEDED", [1, 2])


FILE = """
    parameters: {a: "it's", xs: [1, 2]}
    executor: {type: TYPE, config: {image: IMAGE, conn_id: place, DATA}}
    dag:
      start_at: one
      steps:
        one: {type: task, command_type: shell, command: 'export b="$a $LAUNCH_STEP"', returns: [b], next: two}
        two:
          type: map
          iterate_on: xs
          iterate_as: x
          next: three
          branch: {start_at: sum, steps: {sum: {type: task, command_type: shell, command: 'export y=$((x + 1))', returns: [y], next: success, on_failure: fail}}}
        three: {type: task, command_type: shell, command: 'test "$b$y" = "it''s one[2, 3]"', next: bad}
        bad: {type: task, command_type: shell, command: exit 3, next: success, on_failure: here}
        here: {type: task, executor: local, command_type: shell, command: 'test "$b" = "it''s one"', next: success}
    """


@pytest.mark.engine("docker")
def test_containers(docker_engine, run_pipeline, monkeypatch, tmp_path):
    (tmp_path / "code").write_text("3")
    extra = {"host": docker_engine.host, "pull": "never"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))

    ran = run_pipeline(
        FILE.replace("TYPE", "local-container")
        .replace("IMAGE", docker_engine.image)
        .replace("DATA", f"mounts: ['{tmp_path}:/given:ro']")
        .replace("exit 3", "touch /given/x || exit $(cat /given/code)")
    )

    assert ran.state == "success", ran.states
    assert ran.returned("two.fan_in") == {"y": [2, 3]}
    assert "exited with code 3" in ran.xcom("bad", "attempt")["error"]
    image = {"type": "image", "identifier": docker_engine.client.images.get(docker_engine.image).id, "dependable": True}
    for task in ("one", "bad"):
        (found,) = [one for one in ran.xcom(task, "attempt")["code"] if one["type"] == "image"]
        assert found == {**image, "url": "", "message": f"role task, {docker_engine.image}"}


@pytest.mark.engine("docker")
def test_functions_and_files_in_containers(docker_engine, run_pipeline, monkeypatch):
    """The image lacks this package; a program of another user may write into its folder."""
    extra = {"host": docker_engine.host, "pull": "never"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))

    ran = run_pipeline(
        """
        parameters: {path: [a, b.txt]}
        executor: {type: local-container, config: {image: IMAGE, conn_id: place}}
        dag:
          start_at: make
          steps:
            make:
              type: task
              command_type: shell
              command: echo 5 > file.txt; test "$(id -u)" = 65534
              executor: {type: local-container, config: {user: "65534:65534"}}
              catalog: {put: file.txt}
              next: join
            join: {type: task, command: json.dumps, returns: [text], catalog: {get: file.txt}, next: check, on_failure: check}
            check: {type: task, command_type: shell, command: 'test "$(cat file.txt)" = 5', catalog: {get: file.txt}, next: success}
        """.replace("IMAGE", docker_engine.python_image())
    )

    assert ran.state == "success", ran.states
    assert "the function needs obj, which no parameter gives" in ran.xcom("join", "attempt")["error"]


@pytest.mark.engine("kubernetes")
def test_pods(kubernetes_namespace, kubernetes_engine, run_pipeline, monkeypatch):
    extra = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace, "pull": "never"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_kubernetes", "extra": extra}))

    ran = run_pipeline(
        FILE.replace("TYPE", "kubernetes")
        .replace("IMAGE", kubernetes_engine.image)
        .replace("DATA", "run_as_user: 1000")
    )

    assert ran.state == "success", ran.states
    assert ran.returned("two.fan_in") == {"y": [2, 3]}
    for task in ("one", "bad"):
        (found,) = [one for one in ran.xcom(task, "attempt")["code"] if one["type"] == "image"]
        assert "sha256:" in found["identifier"]
        assert (found["dependable"], found["message"]) == (True, f"role task, {kubernetes_engine.image}")


@pytest.fixture
def shared_claim(kubernetes_engine, kubernetes_namespace, tmp_path):
    """A claim on a volume that is a folder of this host."""
    from kubernetes.client import CoreV1Api

    name = f"data-{uuid.uuid4().hex[:8]}"
    core = CoreV1Api(kubernetes_engine.client)
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    host = {"path": str(tmp_path / "claim"), "type": "DirectoryOrCreate"}
    (tmp_path / "claim").mkdir()
    core.create_persistent_volume(
        {"metadata": {"name": name}, "spec": {**common, "capacity": {"storage": "1Mi"}, "hostPath": host}}
    )
    asked = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}}
    core.create_namespaced_persistent_volume_claim(kubernetes_namespace, {"metadata": {"name": name}, "spec": asked})
    yield name, tmp_path / "claim"
    core.delete_namespaced_persistent_volume_claim(name, kubernetes_namespace)
    core.delete_persistent_volume(name)


MIXED = """
    catalog: CATALOG
    dag:
      start_at: make
      steps:
        make: {type: task, command_type: shell, command: 'echo a > f.txt; export n=1', returns: [n], catalog: {put: f.txt}, next: contain}
        contain:
          type: task
          executor: {type: local-container, config: {conn_id: docker, image: DOCKER}}
          command_type: shell
          command: echo "b$n" >> f.txt; export n=$((n + 1))
          returns: [n]
          catalog: {get: f.txt, put: f.txt}
          next: pods
        pods:
          type: map
          iterate_on: [x, y]
          iterate_as: letter
          next: read
          branch:
            start_at: pod
            steps:
              pod:
                type: task
                executor: {type: kubernetes, config: {conn_id: pods, image: POD, data_dir: FOLDER, data_volume: CLAIM}}
                command_type: shell
                command: mkdir sub; echo "c$n$letter" | cat f.txt - > sub/g.txt
                catalog: {get: f.txt, put: "sub/**"}
                next: success
        read: {type: task, command_type: shell, command: 'cat pods/*/sub/g.txt | tr "\\n" " " | grep -x "a b1 c2x a b1 c2y "', catalog: {get: "pods/**"}, next: success}
    """


@pytest.mark.engine("docker")
@pytest.mark.engine("kubernetes")
def test_one_dag_on_three_schedulers(
    docker_engine, kubernetes_namespace, kubernetes_engine, shared_claim, run_pipeline, monkeypatch, tmp_path
):
    """Values and files go from processes to a container, to pods with a volume, and back."""
    claim, folder = shared_claim
    cluster = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace, "pull": "never"}
    engine = {"host": docker_engine.host, "pull": "never"}
    for name, kind, extra in (("DOCKER", "launch_docker", engine), ("PODS", "launch_kubernetes", cluster)):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": kind, "extra": extra}))
    values = {"CATALOG": tmp_path / "catalog", "DOCKER": docker_engine.image, "POD": kubernetes_engine.image}
    text = MIXED
    for name, value in {**values, "FOLDER": folder, "CLAIM": claim}.items():
        text = text.replace(name, str(value))

    ran = run_pipeline(text)

    assert ran.state == "success", ran.states
    (pod,) = ran.xcom("pods.each.pod", "attempt", 0)["catalog"][1:]
    assert (pod["name"], pod["stage"]) == ("sub/g.txt", "put")
    # Only the folder of this user stays on the volume.
    assert [*folder.rglob("*")] == [folder / f"launch-{os.getuid()}"]


def test_a_connection_of_another_type_is_refused(run_pipeline, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_local", "extra": {}}))

    ran = run_pipeline("""
        executor: {type: kubernetes, config: {image: i, conn_id: place}}
        dag: {start_at: a, steps: {a: {type: task, command_type: shell, command: "true", next: success}}}
        """)

    assert ran.states["a"] == "failed"


EACH_KIND = """
    parameters: {a: "it's", xs: [1, 2]}
    executor: {type: TYPE, config: {conn_id: place, MORE}}
    dag:
      start_at: shell
      steps:
        shell: {type: task, command_type: shell, command: 'export b="$a $LAUNCH_STEP"', returns: [b], next: two}
        two:
          type: map
          iterate_on: xs
          iterate_as: x
          next: function
          branch: {start_at: sum, steps: {sum: {type: task, command_type: shell, command: 'export y=$((x + 1))', returns: [y], next: success}}}
        function: {type: task, command: json.dumps, returns: [text], next: app, on_failure: app}
        app:
          type: task
          command_type: app
          app: {name: a, roles: [{name: r, image: "IMAGE", entrypoint: sh, num_replicas: 2, args: ["-c", "[ $LAUNCH_REPLICA_ID != 0 ] || echo '{\\"c\\": 5}' > $LAUNCH_RESULT_PATH"]}]}
          returns: [c]
          next: three
        three: {type: task, command_type: shell, command: 'test "$b$y$c" = "it''s shell[2, 3]5" && echo 7 > f.txt', catalog: {put: f.txt}, next: bad}
        bad: {type: task, command_type: shell, command: mv f.txt g.txt; exit 3, catalog: {get: f.txt, put: g.txt}, next: success, on_failure: here}
        here: {type: task, executor: local, command_type: shell, command: 'test "$b$(cat g.txt)" = "it''s shell7"', catalog: {get: g.txt}, next: success}
    """


def each_kind(kind: str, more: str, image: str) -> str:
    return EACH_KIND.replace("TYPE", kind).replace("MORE", more).replace("IMAGE", image)


def check_each_kind(ran) -> None:
    assert ran.state == "success", ran.states
    assert ran.returned("two.fan_in") == {"y": [2, 3]}
    assert "the function needs obj, which no parameter gives" in ran.xcom("function", "attempt")["error"]
    assert ran.returned("app") == {"c": 5}
    assert "exited with code 3" in ran.xcom("bad", "attempt")["error"]


@pytest.mark.engine("slurm")
def test_slurm_jobs(slurm_cluster, slurm_root, run_pipeline, monkeypatch):
    """Workers and nodes share the data folder."""
    extra = {"root": str(slurm_root), "slurm_conf": str(slurm_cluster.conf)}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_slurm", "extra": extra}))

    ran = run_pipeline(each_kind("slurm", f"partition: debug, data_dir: {slurm_root.parent}/data", ""))

    check_each_kind(ran)


@pytest.mark.engine("aws_batch")
def test_batch_jobs(docker_engine, batch_server, batch_queue, run_pipeline, monkeypatch, tmp_path):
    extra = {**params_for(batch_server.url), "queue": batch_queue}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_aws_batch", "extra": extra}))
    image = docker_engine.python_image()

    ran = run_pipeline(each_kind("aws-batch", f"image: {image}, data_dir: {tmp_path}/data", image))

    check_each_kind(ran)
