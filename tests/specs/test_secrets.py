"""Names and texts that look like secrets are hidden wherever a request, an error or a log shows them."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs.secrets import is_secret_name, masked_args, masked_env, masked_text

SECRET = [
    "PASSWORD", "DB_PASSWORD", "dbPassword", "db-password", "DB_PASS", "SMTP_PASS", "PASSPHRASE", "SSH_PASSPHRASE",
    "PWD_X",
    "SLACK_WEBHOOK_URL", "FERNET_KEY", "ENCRYPTION_KEY", "SIGNING_KEY", "SSH_KEY", "JWT", "SESSION_COOKIE", "BEARER",
    "ACCOUNT_KEY", "AZURE_STORAGE_CONNECTION_STRING", "SAS", "GITHUB_PAT", "HTTP_AUTHORIZATION", "AUTHORIZATION",
    "KEYFILE_DICT", "GOOGLE_SERVICE_ACCOUNT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "api_key",
    "private_key", "MY_CREDENTIALS", "SENTRY_DSN", "AIRFLOW_CONN_X",
]  # fmt: skip
PLAIN = [
    "PATH", "HOME", "LAUNCH_APP_ID", "TORCHX_RANK0_HOST", "MONKEY", "KEYBOARD", "COMPASS", "PATTERN", "AUTHOR",
    "EPOCHS",
    "SSH_KEY_PATH", "CONN_TIMEOUT", "BYPASS",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_what_looks_like_a_secret_is_hidden(name: str) -> None:
    assert is_secret_name(name)
    assert masked_env({name: "hunter2"}) == {name: "***"}


@pytest.mark.parametrize("name", PLAIN)
def test_what_does_not_is_shown(name: str) -> None:
    assert masked_env({name: "value"}) == {name: "value"}


def test_whatever_airflow_hides_is_hidden() -> None:
    from airflow.sdk._shared.secrets_masker.secrets_masker import DEFAULT_SENSITIVE_FIELDS

    assert [name for name in DEFAULT_SENSITIVE_FIELDS if not is_secret_name(name)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:hunter2@db/x", "postgres://me:***@db/x"),
        ("redis://:hunter2@cache:6379", "redis://:***@cache:6379"),
        ("mysql+pymysql://me:hunter2@db", "mysql+pymysql://me:***@db"),
        ("see https://example.com:8080/a@b", "see https://example.com:8080/a@b"),
        ("a b@c", "a b@c"),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked_env({"DATABASE_URL": text}) == {"DATABASE_URL": shown}


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--password=hunter2", "x"], ["--password=***", "x"]),
        (["--password", "hunter2", "x"], ["--password", "***", "x"]),
        (["--api-key", "hunter2"], ["--api-key", "***"]),
        (["DB_PASS=hunter2"], ["DB_PASS=***"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["--url", "ftp://me:hunter2@host"], ["--url", "ftp://me:***@host"]),
        (["--epochs=3", "-v", "a=b"], ["--epochs=3", "-v", "a=b"]),
    ],
)
def test_secret_arguments_are_hidden(args: list[str], shown: list[str]) -> None:
    assert masked_args(args) == shown
