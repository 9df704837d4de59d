"""Overlays are applied to native requests; unsupported ones, and changes of the launcher's fields, are refused."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.docker.request import container_body
from airflow_provider_launch.schedulers.kubernetes.manifests import job_body
from airflow_provider_launch.schedulers.kubernetes.request import packed, unpacked
from airflow_provider_launch.specs import AppDef, InvalidAppError, Role, UnsupportedError, macros
from airflow_provider_launch.specs.overlays import DEL, JOIN, PUT, set_overlay

OPTIONS: dict[str, dict[str, object]] = {"kubernetes": {}, "docker": {}, "local": {}}


def role(**fields):
    return Role("main", "" if fields.pop("local", False) else "image", entrypoint="sh", args=["-c", "true"], **fields)


def request_of(backend, *roles, **metadata):
    with Runner("tests") as runner:
        return runner.dryrun(AppDef("app", [*roles], metadata), backend, OPTIONS[backend]).request


def overlaid(backend, kind, overlay, **fields):
    made = role(**fields)
    set_overlay(made, backend, kind, overlay)
    return made


def test_a_container_of_docker_is_patched():
    overlay = {
        "Hostname": macros.app_id,
        "Domainname": f"replica-{macros.replica_id}",
        "HostConfig": {"CapAdd": ["NET_ADMIN"], "LogConfig": {PUT("Config"): {"max-size": "1m"}}, DEL("Init"): None},
    }
    request = request_of("docker", overlaid("docker", "Container", overlay, num_replicas=2))
    body = container_body(request, request.roles[0], 1, 0, 0)

    assert body["Hostname"] == request.app_id
    assert body["Domainname"] == "replica-1"
    assert body["HostConfig"]["CapAdd"] == ["NET_ADMIN"]
    assert body["HostConfig"]["LogConfig"]["Config"] == {"max-size": "1m"}
    assert "Init" not in body["HostConfig"]
    assert json.loads(json.dumps(request.to_json()))["roles"][0]["overlays"]


def test_a_pod_and_a_job_of_kubernetes_are_patched():
    made = overlaid(
        "kubernetes",
        "V1Pod",
        {
            "metadata": {"annotations": {"team": macros.app_id}},
            "spec": {
                "hostNetwork": True,
                "tolerations": ({"key": "gpu", "operator": "Exists"},),
                JOIN("containers", on="name"): [{"name": "main", "stdin": True}, {"name": "side", "image": "i"}],
            },
        },
    )
    set_overlay(made, "kubernetes", "V1Job", {"spec": {"activeDeadlineSeconds": 5}})
    request = unpacked(packed(request_of("kubernetes", made)))
    job = job_body(request, request.roles[0], 0)
    template = job["spec"]["template"]

    assert job["spec"]["activeDeadlineSeconds"] == 5
    assert template["metadata"]["annotations"]["team"] == request.app_id
    assert template["spec"]["hostNetwork"] is True
    assert template["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    main, side = template["spec"]["containers"]
    assert (main["stdin"], main["image"], main["command"]) == (True, "image", ["sh"])
    assert side == {"name": "side", "image": "i", "terminationMessagePolicy": "FallbackToLogsOnError"}


def test_a_flat_overlay_of_torchx_is_taken_with_a_warning():
    made = role(metadata={"kubernetes": {"spec": {"hostNetwork": True}}})
    with pytest.warns(UserWarning, match="flat"):
        request = request_of("kubernetes", made)

    assert job_body(request, request.roles[0], 0)["spec"]["template"]["spec"]["hostNetwork"] is True


def test_overlays_of_other_schedulers_and_plain_notes_are_left_alone():
    made = overlaid("kubernetes", "V1Pod", {"spec": {"hostNetwork": True}}, local=True, metadata={"local": {"note": 1}})

    request_of("local", made)


REFUSED = [
    ("docker", "Container", {"Image": "other"}, "Container.Image"),
    ("docker", "Container", {PUT("Cmd"): ["x"]}, "Container.Cmd"),
    ("docker", "Container", {PUT("Env"): ["A=1"]}, "Container.Env.LAUNCH_APP_ID"),
    ("docker", "Container", {"HostConfig": {"AutoRemove": True}}, "HostConfig.AutoRemove"),
    ("docker", "Container", {DEL("HostConfig"): None}, "HostConfig.NetworkMode"),
    ("docker", "Container", {"Labels": {"launch.io/role": "x"}}, "Labels.launch.io/role"),
    ("docker", "Container", {"HostConfig": [1]}, "HostConfig"),
    ("docker", "V1Pod", {"spec": {}}, "V1Pod"),
    ("kubernetes", "V1Pod", {"spec": {"restartPolicy": "Always"}}, "V1Pod.spec.restartPolicy"),
    ("kubernetes", "V1Pod", {"spec": {PUT("containers"): []}}, "one container 'main'"),
    (
        "kubernetes",
        "V1Pod",
        {"spec": {JOIN("containers", on="name"): [{"name": "main", "image": "x"}]}},
        "containers[main].image",
    ),
    ("kubernetes", "V1Pod", {"spec": {JOIN("containers", on="name"): [{"name": "main", "env": []}]}}, "variables"),
    ("kubernetes", "V1Pod", {"spec": {JOIN("containers", on="name"): [{"image": "x"}]}}, "has no field"),
    ("kubernetes", "V1Pod", {"metadata": {"labels": {"launch.io/app-id": "x"}}}, "launch.io/app-id"),
    ("kubernetes", "V1Pod", {"spec": {"hostname": macros.replica_id}}, "replica_id"),
    ("kubernetes", "V1Job", {"spec": {"completions": 7}}, "V1Job.spec.completions"),
    ("kubernetes", "V1Service", {"spec": {}}, "V1Service"),
    ("local", "Process", {"nice": 5}, "Process"),
]


@pytest.mark.parametrize(("backend", "kind", "overlay", "words"), REFUSED)
def test_what_cannot_be_placed_is_refused(backend, kind, overlay, words):
    with pytest.raises(InvalidAppError) as caught:
        request_of(backend, overlaid(backend, kind, overlay, local=backend == "local"))

    assert words in str(caught.value)
    assert "main" in str(caught.value)


def test_an_overlay_of_the_app_is_refused():
    app = AppDef("app", [role()])
    set_overlay(app, "docker", "Container", {"Hostname": "x"})
    with pytest.raises(UnsupportedError, match="the app: overlay 'Container'"):
        request_of("docker", role(), **app.metadata)


@pytest.mark.parametrize("backend", ["docker", "kubernetes"])
@pytest.mark.parametrize("stored", ["file:///overlay.yaml", {"spec": {"hostNetwork": True}}], ids=["file", "flat"])
def test_an_overlay_of_the_app_in_the_older_forms_is_refused(backend, stored):
    """TorchX ignores it there; its components have a parameter for it."""
    with pytest.raises(UnsupportedError, match="the app: metadata"):
        request_of(backend, role(), **{backend: stored})


@pytest.mark.parametrize("backend", ["docker", "local", "aws_batch", "slurm", "local_cwd", "local_docker"])
def test_a_field_of_a_pod_is_refused_where_there_are_none(backend):
    """The program would get the text itself."""
    cfg = {"queue": "q"} if backend == "aws_batch" else {}
    app = AppDef("app", [role(env={"NODE": "[FIELD_PATH]spec.nodeName"}, local=backend in {"local", "slurm"})])
    with Runner("s") as runner, pytest.raises(UnsupportedError, match=r"variable NODE begins with \[FIELD_PATH\]"):
        runner.dryrun(app, backend, cfg)


@pytest.mark.parametrize("backend", ["docker", "local_docker"])
def test_the_option_overlay_of_docker_is_applied_before_that_of_a_role(backend):
    given = role()
    set_overlay(given, "docker", "Container", {"Tty": True})
    with Runner("s") as runner:
        text = str(runner.dryrun(AppDef("app", [given]), backend, {"overlay": {"Tty": False, "Domainname": "d"}}))

    assert '"Tty": true' in text
    assert '"Domainname": "d"' in text


def test_an_overlay_under_the_older_name_makes_the_same_request():
    """A launch under the other name must find the app again."""
    hashes = set()
    for namespace in ("docker", "local_docker"):
        given = role()
        set_overlay(given, namespace, "Container", {"Tty": True})
        with Runner("s") as runner:
            hashes.add(runner.dryrun(AppDef("app", [given]), "local_docker").request.spec_hash)

    assert len(hashes) == 1


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(InvalidAppError, match="no-such-file"):
        request_of("docker", role(metadata={"docker": "/no-such-file.yaml"}))
