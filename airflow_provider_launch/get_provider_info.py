"""What Airflow reads about this provider. Made by `make gen` from the options' classes; edit those."""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Return the provider info: connection types with their forms, and where the classes are."""
    return {
        "package-name": "airflow-provider-launch",
        "name": "Launch",
        "description": "Launch distributed apps (roles and replicas) on any scheduler.",
        "integrations": [
            {
                "integration-name": "Launch",
                "external-doc-url": "https://github.com/airflow-provider-launch/airflow-provider-launch/tree/main/docs",
                "tags": ["service"],
            }
        ],
        "operators": [{"integration-name": "Launch", "python-modules": ["airflow_provider_launch.operators.launch"]}],
        "sensors": [{"integration-name": "Launch", "python-modules": ["airflow_provider_launch.sensors.launch"]}],
        "triggers": [{"integration-name": "Launch", "python-modules": ["airflow_provider_launch.triggers.launch"]}],
        "hooks": [
            {
                "integration-name": "Launch",
                "python-modules": [
                    "airflow_provider_launch.hooks.launch",
                    "airflow_provider_launch.hooks.local",
                    "airflow_provider_launch.hooks.docker",
                    "airflow_provider_launch.hooks.kubernetes",
                    "airflow_provider_launch.hooks.aws_batch",
                    "airflow_provider_launch.hooks.slurm",
                ],
            }
        ],
        "task-decorators": [
            {
                "name": "launch",
                "class-name": "airflow_provider_launch.decorators.launch.launch_task",
                "path": "airflow_provider_launch.decorators.launch.launch_task",
            }
        ],
        "extra-links": [
            "airflow_provider_launch.links.launch.SchedulerLink",
            "airflow_provider_launch.links.launch.JobDefinitionLink",
            "airflow_provider_launch.links.launch.QueueLink",
            "airflow_provider_launch.links.launch.SchedulerLogLink",
            "airflow_provider_launch.links.launch.RequestLink",
            "airflow_provider_launch.links.launch.LauncherLink",
            "airflow_provider_launch.pipelines.links.AttemptsLink",
        ],
        "connection-types": [
            {
                "connection-type": "launch_local",
                "hook-class-name": "airflow_provider_launch.hooks.local.LocalLaunchHook",
                "hook-name": "Launch (local processes)",
                "conn-fields": {
                    "root": {
                        "label": "Root",
                        "description": "Directory of apps and logs: an absolute "
                        "path, or one below ~. Empty means local "
                        "below LAUNCH_HOME, or below\n"
                        "~/.torchx.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "gpus": {
                        "label": "GPUs",
                        "description": "UUIDs or indices of the GPUs that apps may "
                        "use. Empty means all that the driver of this "
                        "host lists.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "keep_days": {
                        "label": "Keep days",
                        "description": "Days after which the directory of a finished app is removed. Empty means 14.",
                        "schema": {"minimum": 0, "type": ["integer", "null"]},
                    },
                    "max_time_limit_s": {
                        "label": "Max time limit (seconds)",
                        "description": "The longest time_limit_s that a "
                        "launch may ask for, and the "
                        "limit of one that asks for none. "
                        "Empty means that\n"
                        "launches need no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "locked": {
                        "label": "Locked",
                        "description": "Names of launch options that tasks cannot "
                        "change: the value here holds, or the "
                        "default. Where some are locked, no\n"
                        "task gives an overlay, which reaches past "
                        "them. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "copy_env": {
                        "label": "Copy environment",
                        "description": "Patterns (HF_*) of variables that "
                        "replicas inherit from the launcher, "
                        "besides PATH, HOME, LANG and so on.\n"
                        "AIRFLOW* and _AIRFLOW* are never copied. "
                        "Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "working_dir": {
                        "label": "Working dir",
                        "description": "Directory in which replicas start, "
                        "relative to the image directory. "
                        "Empty means the image directory.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "prepend_cwd": {
                        "label": "Prepend current directory",
                        "description": "Whether the image directory comes "
                        "first in PATH, so that its programs "
                        "win; otherwise it comes last. Empty "
                        "means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "grace_s": {
                        "label": "Grace (seconds)",
                        "description": "Seconds between TERM and KILL when replicas are stopped. Empty means 10.0.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "time_limit_s": {
                        "label": "Time limit (seconds)",
                        "description": "Seconds after which the app is ended "
                        "as FAILED, counted from its "
                        "submission. Empty means no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "log_max_mb": {
                        "label": "Log max (MB)",
                        "description": "MB of stdout, or of stderr, of one "
                        "attempt of a replica at which the app "
                        "is ended as FAILED, so that it does "
                        "not\n"
                        "fill the disk. Empty means no limit.",
                        "schema": {"minimum": 1, "type": ["integer", "null"]},
                    },
                    "workspace_max_mb": {
                        "label": "Workspace max (MB)",
                        "description": "Megabytes that a workspace may "
                        "have, without what its ignore "
                        "file leaves out. Empty means "
                        "200.0.",
                        "schema": {"exclusiveMinimum": 0, "type": ["number", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
            {
                "connection-type": "launch_docker",
                "hook-class-name": "airflow_provider_launch.hooks.docker.DockerLaunchHook",
                "hook-name": "Launch (Docker)",
                "conn-fields": {
                    "host": {
                        "label": "Host",
                        "description": "unix:///path, tcp://host:port or "
                        "ssh://user@host. Empty means DOCKER_HOST, or "
                        "the default socket.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "tls_ca": {
                        "label": "TLS CA",
                        "description": "File of the certificate authority that "
                        "signed the engine's certificate. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "tls_cert": {
                        "label": "TLS cert",
                        "description": "File of the client's certificate, for "
                        "engines that ask for one; tls_key "
                        "belongs to it. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "tls_key": {
                        "label": "TLS key",
                        "description": "File of the key of tls_cert. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "tls_verify": {
                        "label": "TLS verify",
                        "description": "Whether the engine's certificate is "
                        "checked, where TLS is used. Empty "
                        "means true.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "registry": {
                        "label": "Registry",
                        "description": "Registry that registry_username and "
                        "registry_password are for, as it stands "
                        "before the image's name or in\n"
                        "docker login. Empty means Docker Hub.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "registry_username": {
                        "label": "Registry username",
                        "description": "User for pulls from registry; "
                        "registry_password belongs to "
                        "it. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "registry_password": {
                        "label": "Registry password",
                        "description": "Password or token for pulls from registry. Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "gpus": {
                        "label": "GPUs",
                        "description": "UUIDs or indices of the GPUs of the engine's "
                        "host that apps may use. Empty means none.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "timeout_s": {
                        "label": "Timeout (seconds)",
                        "description": "Seconds after which a request without "
                        "an answer is given up; pulls may take "
                        "longer. Empty means 30.0.",
                        "schema": {"maximum": 86400, "minimum": 1, "type": ["number", "null"]},
                    },
                    "max_time_limit_s": {
                        "label": "Max time limit (seconds)",
                        "description": "The longest time_limit_s that a "
                        "launch may ask for, and the "
                        "limit of one that asks for none. "
                        "Empty means that\n"
                        "launches need no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "locked": {
                        "label": "Locked",
                        "description": "Names of launch options that tasks cannot "
                        "change: the value here holds, or the "
                        "default. Where some are locked, no\n"
                        "task gives an overlay, which reaches past "
                        "them. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "pull": {
                        "label": "Pull",
                        "description": "When images are pulled: where the engine "
                        "lacks them, at each launch, or never. Empty "
                        "means missing.",
                        "schema": {"enum": ["missing", "always", "never", None], "type": ["string", "null"]},
                    },
                    "copy_env": {
                        "label": "Copy environment",
                        "description": "Patterns (HF_*) of variables that "
                        "replicas inherit from the launcher. "
                        "AIRFLOW* and\n"
                        "_AIRFLOW* are never copied. Empty means "
                        "unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "network": {
                        "label": "Network",
                        "description": "Network of the replicas: launch is shared "
                        "by all apps and made if missing, app "
                        "gives the app one of its own,\n"
                        "none, host and bridge are Docker's, any "
                        "other name must exist. Empty means launch "
                        "for apps of several\n"
                        "replicas, which find each other there by "
                        "name, and the faster bridge for one "
                        "alone.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "user": {
                        "label": "User",
                        "description": "User, or user:group, that runs the program. Empty means the image's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "working_dir": {
                        "label": "Working dir",
                        "description": "Directory in which replicas start. Empty means the image's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "privileged": {
                        "label": "Privileged",
                        "description": "Whether replicas get all rights on the host. Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "init": {
                        "label": "Init",
                        "description": "Whether Docker's init is process 1, so that "
                        "signals reach the program and zombie "
                        "processes are reaped. Empty means true.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "platform": {
                        "label": "Platform",
                        "description": "Platform of the image, such as linux/arm64. Empty means the engine's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "extra_hosts": {
                        "label": "Extra hosts",
                        "description": "Host names and their addresses, added "
                        "to the replicas' /etc/hosts. Empty "
                        "means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "ulimits": {
                        "label": "Ulimits",
                        "description": "Limits by name: soft:hard, or one number "
                        'for both; {"nofile": "1024:4096"}. Empty '
                        "means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "shm_size_mb": {
                        "label": "Shared memory size (MB)",
                        "description": "Size of /dev/shm in MB. Empty means the engine's default, which is 64.",
                        "schema": {"minimum": 1, "type": ["integer", "null"]},
                    },
                    "labels": {
                        "label": "Labels",
                        "description": "Labels of the containers, beside the launcher's. Empty means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "log_max_mb": {
                        "label": "Log max (MB)",
                        "description": "Size in MB at which the engine begins "
                        "the next log file of a replica. Lines "
                        "that are rotated away before they\n"
                        "were read are lost, so it must be "
                        "large compared to what a replica "
                        "writes in some seconds. Empty means "
                        "500.",
                        "schema": {"minimum": 1, "type": ["integer", "null"]},
                    },
                    "log_max_files": {
                        "label": "Log max files",
                        "description": "Log files kept for each replica; "
                        "the lines of older ones are lost. "
                        "Empty means 3.",
                        "schema": {"minimum": 2, "type": ["integer", "null"]},
                    },
                    "grace_s": {
                        "label": "Grace (seconds)",
                        "description": "Seconds between TERM and KILL when "
                        "replicas are stopped; whole seconds, "
                        "rounded up. Empty means 10.0.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "on_outside_stop": {
                        "label": "On outside stop",
                        "description": "What it means when a program ends "
                        "with 0 because somebody else has "
                        "stopped its container: a failure, "
                        "or what the\n"
                        "exit code shows. Empty means "
                        "fail.",
                        "schema": {"enum": ["fail", "accept", None], "type": ["string", "null"]},
                    },
                    "time_limit_s": {
                        "label": "Time limit (seconds)",
                        "description": "Seconds after which the app is ended "
                        "as FAILED, counted from its "
                        "submission, by its followers: the "
                        "engine\n"
                        "itself has no such limit. Empty "
                        "means no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "workspace_max_mb": {
                        "label": "Workspace max (MB)",
                        "description": "Megabytes that a workspace may "
                        "have, without what its ignore "
                        "file leaves out. Empty means "
                        "200.0.",
                        "schema": {"exclusiveMinimum": 0, "type": ["number", "null"]},
                    },
                    "image_repo": {
                        "label": "Image repo",
                        "description": "Repository, with its registry, to "
                        "which images with workspaces are "
                        "pushed: registry.example/team/launch. "
                        "None\n"
                        "means that they are not pushed. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "build_host": {
                        "label": "Build host",
                        "description": "Docker engine that builds images with "
                        "workspaces, as unix:///path, "
                        "tcp://host:port or ssh://user@host. "
                        "None\n"
                        "means the engine of the connection, or "
                        "DOCKER_HOST or the default socket for "
                        "schedulers that have no engine. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "quiet": {
                        "label": "Quiet",
                        "description": "Whether the output of builds of workspaces "
                        "is left out of the log. Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
            {
                "connection-type": "launch_kubernetes",
                "hook-class-name": "airflow_provider_launch.hooks.kubernetes.KubernetesLaunchHook",
                "hook-name": "Launch (Kubernetes)",
                "conn-fields": {
                    "namespace": {
                        "label": "Namespace",
                        "description": "Namespace of the apps. Empty means that "
                        "of the kubeconfig's context or of the "
                        "pod we run in, else default.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "in_cluster": {
                        "label": "In cluster",
                        "description": "Whether the service account of the pod "
                        "we run in is used. Empty means: if "
                        "there is one and neither a kubeconfig\n"
                        "nor a context is given.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "kubeconfig_path": {
                        "label": "Kubeconfig path",
                        "description": "File of the kubeconfig. Empty means KUBECONFIG, or ~/.kube/config.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "kubeconfig_secret": {
                        "label": "Kubeconfig secret",
                        "description": "The kubeconfig itself, as JSON "
                        "on one line (kubectl config "
                        "view --raw --minify --flatten "
                        "-o json) or as base64;\n"
                        "YAML only where line breaks are "
                        "kept, which the form does not. "
                        "Hidden in the form and in logs. "
                        "Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "context": {
                        "label": "Context",
                        "description": "Context of the kubeconfig. Empty means its current one.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "timeout_s": {
                        "label": "Timeout (seconds)",
                        "description": "Seconds after which a request without an answer is given up. Empty means 30.0.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "max_time_limit_s": {
                        "label": "Max time limit (seconds)",
                        "description": "The longest time_limit_s that a "
                        "launch may ask for, and the "
                        "limit of one that asks for none. "
                        "Empty means that\n"
                        "launches need no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "locked": {
                        "label": "Locked",
                        "description": "Names of launch options that tasks cannot "
                        "change: the value here holds, or the "
                        "default. Where some are locked, no\n"
                        "task gives an overlay, which reaches past "
                        "them. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "pull": {
                        "label": "Pull",
                        "description": "When nodes pull the image: where they lack "
                        "it, for each pod, or never. Empty means "
                        "missing.",
                        "schema": {"enum": ["missing", "always", "never", None], "type": ["string", "null"]},
                    },
                    "image_pull_secrets": {
                        "label": "Image pull secrets",
                        "description": "Names of the secrets with which nodes pull images. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "copy_env": {
                        "label": "Copy environment",
                        "description": "Patterns (HF_*) of variables that "
                        "replicas inherit from the launcher. "
                        "AIRFLOW* and\n"
                        "_AIRFLOW* are never copied. Empty means "
                        "unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "env_secrets": {
                        "label": "Environment secrets",
                        "description": "Variables from Secrets of the "
                        'namespace, {"HF_TOKEN": '
                        '"training/token"}: name of the Secret '
                        "and its key. The\n"
                        "launcher never has the values. Empty "
                        "means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "env_from_secrets": {
                        "label": "Environment from secrets",
                        "description": "Names of Secrets of which each "
                        "key becomes a variable; other "
                        "variables of the same name win. "
                        "Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "service_account": {
                        "label": "Service account",
                        "description": "Service account of the pods. "
                        "Empty means the namespace's "
                        "default; its token is mounted "
                        "only if one is named.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "security": {
                        "label": "Security",
                        "description": "auto sets what every image can run with: "
                        "the runtime's seccomp profile, and no "
                        "privileges beyond those at the\n"
                        "start of the program; in a namespace "
                        "that enforces the Pod Security Standard "
                        "restricted it is restricted. That\n"
                        "also refuses root and drops all "
                        "capabilities. none sets nothing, so the "
                        "cluster's defaults hold. Empty means "
                        "auto.",
                        "schema": {"enum": ["auto", "restricted", "none", None], "type": ["string", "null"]},
                    },
                    "run_as_user": {
                        "label": "Run as user",
                        "description": "Number of the user that runs the "
                        "program. Empty means the image's own, "
                        "which restricted requires to be a "
                        "number\n"
                        "other than 0.",
                        "schema": {"minimum": 0, "type": ["integer", "null"]},
                    },
                    "working_dir": {
                        "label": "Working dir",
                        "description": "Directory in which replicas start. Empty means the image's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "init": {
                        "label": "Init",
                        "description": "Whether a process of Kubernetes is process 1 "
                        "of the pod, so that signals reach the "
                        "program and zombie processes\n"
                        "are reaped. Empty means true.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "shm_size_mb": {
                        "label": "Shared memory size (MB)",
                        "description": "Size of /dev/shm in MB; it counts as "
                        "memory of the pod. Empty means the "
                        "runtime's default, mostly 64.",
                        "schema": {"minimum": 1, "type": ["integer", "null"]},
                    },
                    "node_selector": {
                        "label": "Node selector",
                        "description": "Labels that a node must have. Empty means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "tolerations": {
                        "label": "Tolerations",
                        "description": "Tolerations, as in the spec of a pod. Empty means unset.",
                        "schema": {
                            "items": {"additionalProperties": True, "type": "object"},
                            "type": ["array", "null"],
                        },
                    },
                    "affinity": {
                        "label": "Affinity",
                        "description": "Affinities, as in a pod. Empty means unset.",
                        "schema": {"additionalProperties": True, "type": ["object", "null"]},
                    },
                    "priority_class": {
                        "label": "Priority class",
                        "description": "Priority class of the pods. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "queue": {
                        "label": "Queue",
                        "description": "Local queue of Kueue, which then decides "
                        "when the app starts: of an app of several "
                        "roles, or with APPLICATION\n"
                        "retries, all pods or none, which needs "
                        "Kueue's integration pod. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "labels": {
                        "label": "Labels",
                        "description": "Labels of the Service, the Jobs and the "
                        "pods, beside the launcher's. A name or "
                        "value that Kubernetes does not\n"
                        "take is changed; an annotation of that "
                        "name has the value whole. Empty means "
                        "unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "annotations": {
                        "label": "Annotations",
                        "description": "Annotations of the Jobs and pods, beside the launcher's. Empty means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "on_disruption": {
                        "label": "On disruption",
                        "description": "What an eviction, a drain or a "
                        "preemption means: another attempt "
                        "that is not charged, or a failure. "
                        "The other\n"
                        "attempt is one of the replica; of "
                        "the whole app, where a queue admits "
                        "all of it as one. Empty means "
                        "retry.",
                        "schema": {"enum": ["retry", "fail", None], "type": ["string", "null"]},
                    },
                    "success_policy": {
                        "label": "Success policy",
                        "description": "When the app has succeeded: when "
                        "all replicas have, or when replica "
                        "0 of the first role has. "
                        "Kubernetes then\n"
                        "removes the others of its role, "
                        "with their logs; those of other "
                        "roles are stopped by the followers "
                        "of the app. A\n"
                        "replica that fails before the "
                        "leader has ended fails the app. "
                        "Empty means all.",
                        "schema": {"enum": ["all", "leader", None], "type": ["string", "null"]},
                    },
                    "grace_s": {
                        "label": "Grace (seconds)",
                        "description": "Seconds between TERM and KILL when "
                        "replicas are stopped; whole seconds, "
                        "rounded up. Empty means 10.0.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "on_outside_stop": {
                        "label": "On outside stop",
                        "description": "What it means when a program ends "
                        "with 0 because its pod was "
                        "deleted or evicted: a failure, or "
                        "what the exit code\n"
                        "shows. Empty means fail.",
                        "schema": {"enum": ["fail", "accept", None], "type": ["string", "null"]},
                    },
                    "sidecar_grace_s": {
                        "label": "Sidecar grace (seconds)",
                        "description": "Seconds for which other "
                        "containers of a pod may run once "
                        "its program has ended; then the "
                        "pod is stopped, and the\n"
                        "exit code of the program counts. "
                        "Native sidecars are stopped by "
                        "Kubernetes at once. Empty means "
                        "30.0.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "container_logs": {
                        "label": "Container logs",
                        "description": "Names of init containers and "
                        "sidecars whose logs are shown, "
                        "too, as [role/k name]. Empty means "
                        "unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "time_limit_s": {
                        "label": "Time limit (seconds)",
                        "description": "Seconds after which the app is ended "
                        "as FAILED, counted from its start: "
                        "by its followers, and a minute "
                        "after\n"
                        "its grace by Kubernetes itself. "
                        "Empty means no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "ttl_s": {
                        "label": "Time to live (seconds)",
                        "description": "Seconds for which an ended app stays "
                        "readable, with its logs as far as the nodes "
                        "keep them, unless it is deleted\n"
                        "before. Empty means until it is deleted.",
                        "schema": {"minimum": 60, "type": ["integer", "null"]},
                    },
                    "overlay": {
                        "label": "Overlay",
                        "description": "Fields that have no option, merged into "
                        "what is sent: pod, container, job and "
                        "service hold parts of their\n"
                        "specs, as Kubernetes spells them. Objects "
                        "merge, lists are appended to, null "
                        "removes. Empty means unset.",
                        "schema": {"additionalProperties": True, "type": ["object", "null"]},
                    },
                    "workspace_max_mb": {
                        "label": "Workspace max (MB)",
                        "description": "Megabytes that a workspace may "
                        "have, without what its ignore "
                        "file leaves out. Empty means "
                        "200.0.",
                        "schema": {"exclusiveMinimum": 0, "type": ["number", "null"]},
                    },
                    "image_repo": {
                        "label": "Image repo",
                        "description": "Repository, with its registry, to "
                        "which images with workspaces are "
                        "pushed: registry.example/team/launch. "
                        "None\n"
                        "means that they are not pushed. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "build_host": {
                        "label": "Build host",
                        "description": "Docker engine that builds images with "
                        "workspaces, as unix:///path, "
                        "tcp://host:port or ssh://user@host. "
                        "None\n"
                        "means the engine of the connection, or "
                        "DOCKER_HOST or the default socket for "
                        "schedulers that have no engine. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "quiet": {
                        "label": "Quiet",
                        "description": "Whether the output of builds of workspaces "
                        "is left out of the log. Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
            {
                "connection-type": "launch_aws_batch",
                "hook-class-name": "airflow_provider_launch.hooks.aws_batch.AwsBatchLaunchHook",
                "hook-name": "Launch (AWS Batch)",
                "conn-fields": {
                    "aws_conn_id": {
                        "label": "AWS conn ID",
                        "description": "An Airflow connection of type aws, "
                        "whose credentials, role, proxies and "
                        "endpoints are used; needs the amazon\n"
                        "provider. Empty means the fields "
                        "below, and without them what boto3 "
                        "finds on the host.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "region_name": {
                        "label": "Region name",
                        "description": "Region, such as eu-west-1. Empty "
                        "means that of the credentials' "
                        "profile or of the environment.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "profile_name": {
                        "label": "Profile name",
                        "description": "Profile of the AWS configuration of the host. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "aws_access_key_id": {
                        "label": "AWS access key ID",
                        "description": "Access key; aws_secret_access_key belongs to it. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "aws_secret_access_key": {
                        "label": "AWS secret access key",
                        "description": "Secret of the access key. Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "aws_session_token": {
                        "label": "AWS session token",
                        "description": "Session token of temporary keys. Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "role_arn": {
                        "label": "Role ARN",
                        "description": "Role to assume with the credentials "
                        "above; its keys are renewed by "
                        "themselves. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "external_id": {
                        "label": "External ID",
                        "description": "External id that the role's trust policy demands. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "role_session_name": {
                        "label": "Role session name",
                        "description": "Name of the sessions of that "
                        "role, as the account's records "
                        "show it. Empty means "
                        "airflow-provider-launch.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "role_duration_s": {
                        "label": "Role duration (seconds)",
                        "description": "Seconds for which keys of the "
                        "role are valid; boto3 renews them "
                        "in the last 15 minutes. Empty "
                        "means AWS's default,\n"
                        "an hour.",
                        "schema": {"maximum": 43200, "minimum": 1800, "type": ["integer", "null"]},
                    },
                    "endpoint_url": {
                        "label": "Endpoint URL",
                        "description": "Address of all services, for a VPC "
                        "endpoint or a test server. Empty "
                        "means AWS's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "logs_endpoint_url": {
                        "label": "Logs endpoint URL",
                        "description": "Address of CloudWatch Logs, "
                        "where it differs from "
                        "endpoint_url. Empty means "
                        "unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "sts_endpoint_url": {
                        "label": "Sts endpoint URL",
                        "description": "Address of the token service, "
                        "where it differs from "
                        "endpoint_url. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "config_kwargs": {
                        "label": "Config kwargs",
                        "description": "Arguments of botocore's Config, "
                        'such as {"proxies": {"https": '
                        '"http://proxy:3128"}}; retries and '
                        "times are\n"
                        "the launcher's own. Empty means "
                        "unset.",
                        "schema": {"additionalProperties": True, "type": ["object", "null"]},
                    },
                    "verify": {
                        "label": "Verify",
                        "description": "File of the certificate authority of the "
                        "endpoints. Empty means those that boto3 "
                        "knows.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "requests_per_s": {
                        "label": "Requests per (seconds)",
                        "description": "Most requests a second to AWS "
                        "Batch by one process, for all its "
                        "apps: the rate is the account's. "
                        "Empty means 20.0.",
                        "schema": {"maximum": 1000, "minimum": 1, "type": ["number", "null"]},
                    },
                    "log_requests_per_s": {
                        "label": "Log requests per (seconds)",
                        "description": "Most GetLogEvents a second by "
                        "one process, and two fifths as "
                        "many FilterLogEvents, by which "
                        "many apps are\n"
                        "followed. Empty means 10.0.",
                        "schema": {"maximum": 1000, "minimum": 1, "type": ["number", "null"]},
                    },
                    "claim_wait_s": {
                        "label": "Claim wait (seconds)",
                        "description": "Seconds for which a repeated launch "
                        "waits for the job of the first one "
                        "to be listed before it replaces a "
                        "launch\n"
                        "that was cut off, and once more "
                        "after. Longer than Batch takes to "
                        "list a new job; only such a launch "
                        "waits. Empty means 60.0.",
                        "schema": {"maximum": 600, "minimum": 0.1, "type": ["number", "null"]},
                    },
                    "timeout_s": {
                        "label": "Timeout (seconds)",
                        "description": "Seconds after which a request without an answer is given up. Empty means 20.0.",
                        "schema": {"maximum": 600, "minimum": 1, "type": ["number", "null"]},
                    },
                    "max_time_limit_s": {
                        "label": "Max time limit (seconds)",
                        "description": "The longest time_limit_s that a "
                        "launch may ask for, and the "
                        "limit of one that asks for none. "
                        "Empty means that\n"
                        "launches need no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "locked": {
                        "label": "Locked",
                        "description": "Names of launch options that tasks cannot "
                        "change: the value here holds, or the "
                        "default. Where some are locked, no\n"
                        "task gives an overlay, which reaches past "
                        "them. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "queue": {
                        "label": "Queue",
                        "description": "Job queue, by name or ARN. Required, here "
                        "or in the connection. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "layout": {
                        "label": "Layout",
                        "description": "What several replicas become: children of "
                        "an array job, which start as capacity "
                        "allows, or nodes of a multi-node\n"
                        "job, which start together and reach each "
                        "other. auto takes nodes for several roles, "
                        "ports, macros.rank0_env and\n"
                        "APPLICATION retries, and an array "
                        "otherwise. Empty means auto.",
                        "schema": {"enum": ["auto", "array", "multi-node", None], "type": ["string", "null"]},
                    },
                    "platform": {
                        "label": "Platform",
                        "description": "What the queue's compute environments are. Empty means EC2.",
                        "schema": {"enum": ["EC2", "FARGATE", None], "type": ["string", "null"]},
                    },
                    "job_role_arn": {
                        "label": "Job role ARN",
                        "description": "Role that the program in the container has. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "execution_role_arn": {
                        "label": "Execution role ARN",
                        "description": "Role by which the host pulls "
                        "the image, reads secrets and "
                        "writes logs; Fargate demands "
                        "it. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "assign_public_ip": {
                        "label": "Assign public IP",
                        "description": "Whether a Fargate container gets "
                        "a public address, which it needs "
                        "for pulls without a NAT gateway. "
                        "Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "share_identifier": {
                        "label": "Share identifier",
                        "description": "Share that the job counts for, "
                        "on a queue with a fair-share "
                        "policy. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "priority": {
                        "label": "Priority",
                        "description": "Priority within its share, on a queue "
                        "with a fair-share policy. Empty means "
                        "unset.",
                        "schema": {"maximum": 9999, "minimum": 0, "type": ["integer", "null"]},
                    },
                    "tags": {
                        "label": "Tags",
                        "description": "Tags of the job and its definition. Empty means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "propagate_tags": {
                        "label": "Propagate tags",
                        "description": "Whether the tags go to the tasks "
                        "of ECS too, by which AWS allocates "
                        "costs. Empty means true.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "copy_env": {
                        "label": "Copy environment",
                        "description": "Patterns (HF_*) of variables that "
                        "replicas inherit from the launcher. "
                        "AIRFLOW* is never copied. Empty means "
                        "unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "secrets": {
                        "label": "Secrets",
                        "description": "Variable to ARN of a secret or parameter, "
                        "which the host reads; the value is in no "
                        "request. Empty means unset.",
                        "schema": {"additionalProperties": {"type": "string"}, "type": ["object", "null"]},
                    },
                    "shell": {
                        "label": "Shell",
                        "description": "Whether programs are started by a small sh "
                        "script, which gives each replica its "
                        "number, hands back the result\n"
                        "and marks the end of the log. False is for "
                        "images without sh. Empty means true.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "init": {
                        "label": "Init",
                        "description": "Whether an init is process 1, so that "
                        "signals reach the program and zombie "
                        "processes are reaped. Empty means true.",
                        "schema": {"type": ["string", "null"], "enum": ["true", "false", None]},
                    },
                    "working_dir": {
                        "label": "Working dir",
                        "description": "Directory in which programs start; needs shell. Empty means the image's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "user": {
                        "label": "User",
                        "description": "User, or user:group, that runs the program. Empty means the image's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "privileged": {
                        "label": "Privileged",
                        "description": "Whether replicas get all rights on the host. Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "shm_size_mb": {
                        "label": "Shared memory size (MB)",
                        "description": "Size of /dev/shm in MB. Empty means the host's default, which is 64.",
                        "schema": {"minimum": 1, "type": ["integer", "null"]},
                    },
                    "log_group": {
                        "label": "Log group",
                        "description": "Log group in CloudWatch, which must exist. Empty means /aws/batch/job.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "result_prefix": {
                        "label": "Result prefix",
                        "description": "s3://bucket/folder below which the "
                        "program itself writes its result, "
                        "to the address in LAUNCH_RESULT_S3: "
                        "for\n"
                        "images without sh, and where lines "
                        "go elsewhere than to CloudWatch. "
                        "Empty means that the log brings the "
                        "result.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "linger_s": {
                        "label": "Linger (seconds)",
                        "description": "Seconds for which replica 0 of the first "
                        "role of a multi-node job stays after its "
                        "success: Batch ends the other\n"
                        "nodes when that one ends. Empty means "
                        "10.",
                        "schema": {"maximum": 3600, "minimum": 0, "type": ["integer", "null"]},
                    },
                    "overlay": {
                        "label": "Overlay",
                        "description": "Fields of containerProperties that no "
                        "option has, merged into those of every "
                        "role. Empty means unset.",
                        "schema": {"additionalProperties": True, "type": ["object", "null"]},
                    },
                    "time_limit_s": {
                        "label": "Time limit (seconds)",
                        "description": "Seconds after which the app is ended "
                        "as FAILED, counted from its "
                        "submission, by its observers; "
                        "Batch's own limit\n"
                        "per attempt, of at least 60 s, ends "
                        "an app without observers. Empty "
                        "means no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
            {
                "connection-type": "launch_slurm",
                "hook-class-name": "airflow_provider_launch.hooks.slurm.SlurmLaunchHook",
                "hook-name": "Launch (Slurm)",
                "conn-fields": {
                    "root": {
                        "label": "Root",
                        "description": "Directory of apps and logs that login node "
                        "and compute nodes share: an absolute path, "
                        "or one below ~. Empty means ~/.launch/slurm.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "mount": {
                        "label": "Mount",
                        "description": "Where the worker itself has root mounted; "
                        "logs are then read there, and not over ssh. "
                        "Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssh_host": {
                        "label": "Ssh host",
                        "description": "Login node that is reached by ssh. Empty "
                        "means that the worker has the commands "
                        "of Slurm itself.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssh_port": {
                        "label": "Ssh port",
                        "description": "Port of the ssh server. Empty means 22.",
                        "schema": {"minimum": 1, "type": ["integer", "null"]},
                    },
                    "ssh_user": {
                        "label": "Ssh user",
                        "description": "User on the login node. Empty means that of the worker.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssh_key_file": {
                        "label": "Ssh key file",
                        "description": "File of the private key. Empty means "
                        "the keys of the user's agent and of "
                        "~/.ssh.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssh_key_secret": {
                        "label": "Ssh key secret",
                        "description": "The private key itself, as text. "
                        "Hidden in the form and in logs. "
                        "Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "ssh_key_password": {
                        "label": "Ssh key password",
                        "description": "Passphrase of the private key. Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "ssh_password": {
                        "label": "Ssh password",
                        "description": "Password of the user, where the login node takes one. Empty means unset.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "ssh_host_key": {
                        "label": "Ssh host key",
                        "description": "Key of the ssh server, ssh-ed25519 "
                        "AAAA.... Empty means that "
                        "known_hosts of the worker's user has "
                        "it. A server\n"
                        "that cannot prove this key is "
                        "refused.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssh_jump_host": {
                        "label": "Ssh jump host",
                        "description": "Host through which the login node "
                        "is reached, user@host:port; it "
                        "takes the same key. Empty means "
                        "unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssh_jump_host_key": {
                        "label": "Ssh jump host key",
                        "description": "Key of ssh_jump_host, as ssh_host_key. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "slurm_bin": {
                        "label": "Slurm bin",
                        "description": "Directory of sbatch and the others, "
                        "where it is not on the path. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "slurm_conf": {
                        "label": "Slurm conf",
                        "description": "Configuration file of the cluster. Empty means Slurm's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "timeout_s": {
                        "label": "Timeout (seconds)",
                        "description": "Seconds after which a command without an answer is given up. Empty means 30.0.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "settle_s": {
                        "label": "Settle (seconds)",
                        "description": "Seconds that files of a node may need "
                        "until they are seen on the login node; "
                        "an app whose end Slurm reports\n"
                        "stays RUNNING for that long if its own "
                        "record of the end is missing. NFS may "
                        "need 60. Empty means 10.0.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "test_node": {
                        "label": "Test node",
                        "description": "Whether the test of the connection also "
                        "lets a node write a file, by a job of "
                        "some seconds. Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "keep_days": {
                        "label": "Keep days",
                        "description": "Days after which the directory of a finished app is removed. Empty means 14.",
                        "schema": {"minimum": 0, "type": ["integer", "null"]},
                    },
                    "max_time_limit_s": {
                        "label": "Max time limit (seconds)",
                        "description": "The longest time_limit_s that a "
                        "launch may ask for, and the "
                        "limit of one that asks for none. "
                        "Empty means that\n"
                        "launches need no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "locked": {
                        "label": "Locked",
                        "description": "Names of launch options that tasks cannot "
                        "change: the value here holds, or the "
                        "default. Where some are locked, no\n"
                        "task gives an overlay, which reaches past "
                        "them. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "partition": {
                        "label": "Partition",
                        "description": "Partition, or several with commas between. Empty means the cluster's default.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "account": {
                        "label": "Account",
                        "description": "Account that is charged. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "qos": {
                        "label": "Qos",
                        "description": "Quality of service. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "reservation": {
                        "label": "Reservation",
                        "description": "Reservation whose nodes are used. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "constraint": {
                        "label": "Constraint",
                        "description": "Features that nodes must have, as "
                        "sbatch --constraint spells them. Empty "
                        "means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "nodelist": {
                        "label": "Nodelist",
                        "description": "Nodes that must be part of the job. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "exclude": {
                        "label": "Exclude",
                        "description": "Nodes that must not be part of the job. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "exclusive": {
                        "label": "Exclusive",
                        "description": "Whether no other job shares the nodes. Empty means false.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "gpu_type": {
                        "label": "Gpu type",
                        "description": "Type of the GPUs, such as a100. Empty means any.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "comment": {
                        "label": "Comment",
                        "description": "Text that the comment of the job ends with. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "mail_user": {
                        "label": "Mail user",
                        "description": "Who gets mail about the job. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "mail_type": {
                        "label": "Mail type",
                        "description": "Events about which mail is sent, such as END,FAIL. Empty means unset.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "container": {
                        "label": "Container",
                        "description": "What runs image as a container, where "
                        "the site has it; pyxis needs bash in "
                        "the image. Empty means that image\n"
                        "is a directory of the cluster, in which "
                        "replicas start, or empty.",
                        "schema": {"enum": ["apptainer", "pyxis", None], "type": ["string", "null"]},
                    },
                    "container_mounts": {
                        "label": "Container mounts",
                        "description": "Directories of the nodes in the container, /data:/data:ro. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "setup": {
                        "label": "Setup",
                        "description": "Lines of bash before the program, in a "
                        "login shell: module load cuda, conda "
                        "activate train. Empty means unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "copy_env": {
                        "label": "Copy environment",
                        "description": "Patterns (HF_*) of variables that "
                        "replicas inherit from the launcher. "
                        "AIRFLOW* is never copied. Empty means "
                        "unset.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "working_dir": {
                        "label": "Working dir",
                        "description": "Directory in which replicas start. "
                        "Empty means the image directory, or "
                        "the home directory; with pyxis /.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "on_disruption": {
                        "label": "On disruption",
                        "description": "What the loss of a node or a "
                        "preemption means: a failure, or "
                        "that Slurm puts the job back into "
                        "its queue. That\n"
                        "is not counted as a retry. Empty "
                        "means fail.",
                        "schema": {"enum": ["fail", "retry", None], "type": ["string", "null"]},
                    },
                    "signal": {
                        "label": "Signal",
                        "description": "Signal that replicas get signal_s before "
                        "the time limit, for instance to write a "
                        "checkpoint. Empty means USR1.",
                        "schema": {"enum": ["USR1", "USR2", "INT", "HUP", "TERM", None], "type": ["string", "null"]},
                    },
                    "signal_s": {
                        "label": "Signal (seconds)",
                        "description": "Seconds before the time limit at which "
                        "replicas get signal. Empty means that "
                        "they get none.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "grace_s": {
                        "label": "Grace (seconds)",
                        "description": "Seconds between TERM and KILL when "
                        "replicas are stopped. Where Slurm itself "
                        "ends the job, or a replica has\n"
                        "failed, its KillWait (30 seconds by "
                        "default) is the longest. Empty means "
                        "10.0.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "time_limit_s": {
                        "label": "Time limit (seconds)",
                        "description": "Seconds after which the app is ended "
                        "as FAILED, counted from the start of "
                        "its job. Empty means the limit of "
                        "the\n"
                        "partition.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                    "overlay": {
                        "label": "Overlay",
                        "description": "Options of sbatch that have no option "
                        'here, by long name: {"nice": 100, '
                        '"spread-job": true}. Null removes\n'
                        "one that is set. Empty means unset.",
                        "schema": {"additionalProperties": True, "type": ["object", "null"]},
                    },
                    "workspace_max_mb": {
                        "label": "Workspace max (MB)",
                        "description": "Megabytes that a workspace may "
                        "have, without what its ignore "
                        "file leaves out. Empty means "
                        "200.0.",
                        "schema": {"exclusiveMinimum": 0, "type": ["number", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
            {
                "connection-type": "launch",
                "hook-class-name": "airflow_provider_launch.hooks.launch.LaunchHook",
                "hook-name": "Launch (scheduler of a plug-in)",
                "conn-fields": {
                    "scheduler": {
                        "label": "Scheduler (required)",
                        "description": "Name under which the plug-in registers its scheduler.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "params": {
                        "label": "Parameters",
                        "description": "JSON object: keywords for the factory of the scheduler.",
                        "schema": {"type": ["object", "null"]},
                    },
                    "cfg": {
                        "label": "Options",
                        "description": "JSON object: default options of each launch.",
                        "schema": {"type": ["object", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
        ],
        "config": {
            "launch": {
                "description": "Settings of the Launch provider.",
                "options": {
                    "replace_wait_s": {
                        "description": "Seconds for which a cleared task waits until its previous app has ended.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "60",
                    },
                    "log_drain_s": {
                        "description": "Seconds without a new line after which the rest of the log is given up.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "30",
                    },
                    "on_finish": {
                        "description": "What becomes of an app that has ended, once "
                        "its log and its result are in Airflow: "
                        "`keep`, `delete_succeeded` or `delete`. A "
                        "task may name another one.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": None,
                        "default": "delete_succeeded",
                    },
                    "defer_after_s": {
                        "description": "Seconds for which the worker of a "
                        "deferrable task follows its app before "
                        "it defers: an app that ends by then "
                        "needs no triggerer. 0 defers at once.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "10",
                    },
                    "trigger_fire_after_s": {
                        "description": "Seconds after a deferral before "
                        "which no trigger ends it. "
                        "Airflow fails a task that goes "
                        "on before its scheduler has "
                        "noticed that the worker has "
                        "left.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "10",
                    },
                    "trigger_log_bytes_per_s": {
                        "description": "Bytes of log lines that one "
                        "triggerer process writes in a "
                        "second, shared fairly by all "
                        "apps that it follows. What is "
                        "not shown when an app ends is "
                        "written by the worker.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "262144",
                    },
                    "config_file": {
                        "description": "File with default options of schedulers, "
                        "which connections and tasks overrule, and "
                        "the trackers of all replicas. Empty means "
                        "none: files in home and current directory "
                        "do not count here.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/etc/launch/launchconfig",
                        "default": "",
                    },
                    "allow_kubeconfig_exec": {
                        "description": "Whether a kubeconfig that "
                        "stands in a connection may "
                        "start programs (`exec`, "
                        "`auth-provider`). Who may edit "
                        "connections then runs them on "
                        "workers, triggerers and, by the "
                        "connection test, where Airflow "
                        "tests connections.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "False",
                    },
                    "trigger_logs_last": {
                        "description": "Whether the log that a triggerer "
                        "wrote can still be read when its "
                        "task has ended. False makes the "
                        "worker write the whole log at the "
                        "end.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                },
            }
        },
    }
