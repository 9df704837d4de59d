import pytest

from airflow_provider_launch.specs import (
    InvalidAppError,
    MalformedAppHandleException,
    ParsedAppHandle,
    make_app_handle,
    parse_app_handle,
)


@pytest.mark.parametrize(
    ("handle", "parts"),
    [
        ("local://session/my_id", ("local", "session", "my_id")),
        ("k8s:///foo", ("k8s", "", "foo")),
        ("kubernetes://a/default:app-1", ("kubernetes", "a", "default:app-1")),
        ("local://a/b/c/id", ("local", "a/b/c", "id")),
        ("local://a//id", ("local", "a/", "id")),
        ("local://gpu cluster/ä:1", ("local", "gpu cluster", "ä:1")),
    ],
)
def test_a_handle_has_three_parts(handle, parts):
    parsed = parse_app_handle(handle)

    assert parsed == ParsedAppHandle(*parts)
    assert (parsed.scheduler_backend, parsed.session_name, parsed.app_id) == parts
    assert make_app_handle(*parts) == handle


@pytest.mark.parametrize(
    "text", ["", "s/my_id", "local://s/", "local://my_id", "://s/id", "local:s/id", "local:////", "local://s/id\n"]
)
def test_other_texts_are_not_handles(text):
    with pytest.raises(MalformedAppHandleException, match="scheduler://session/app_id") as caught:
        parse_app_handle(text)
    assert isinstance(caught.value, InvalidAppError)
