from typing import Any

import pytest

from airflow_provider_launch.specs import NULL_RESOURCE, GiB, Resource, Role, resource


@pytest.mark.parametrize(
    ("given", "number"),
    [("500m", 0.5), ("2", 2), (" 1.5 ", 1.5), (".5", 0.5), (2.0, 2), ("x", "x"), ("-1", "-1")],
)
def test_cpus_are_numbers_or_text_of_kubernetes(given: Any, number: object) -> None:
    found = Resource(cpu=given, gpu=0, memMB=1, cpu_request=given)

    assert (found.cpu, found.cpu_request) == (number, number)
    assert type(found.cpu) is type(number)
    assert resource(cpu=given).cpu == number


@pytest.mark.parametrize("given", [float("inf"), float("nan")], ids=str)
def test_a_number_of_cpus_that_is_not_finite_is_left_for_the_checks(given: float) -> None:
    assert Resource(cpu=given, gpu=0, memMB=1).cpu is given


def test_repr_shows_all_fields():
    assert (
        repr(Resource(cpu=4, gpu=1, memMB=8 * GiB))
        == "Resource(cpu=4, gpu=1, memMB=8192, capabilities={}, devices={}, tags={})"
    )


def test_a_copy_merges_capabilities_and_shares_no_dict():
    original = Resource(1, 2, 3, capabilities={"a": 1, "b": 1}, devices={"d": 1}, tags={"t": 1})

    copied = Resource.copy(original, b=2, c=3)

    assert copied == Resource(1, 2, 3, capabilities={"a": 1, "b": 2, "c": 3}, devices={"d": 1}, tags={"t": 1})
    copied.devices["d"] = 9
    copied.tags["t"] = 9
    assert original == Resource(1, 2, 3, capabilities={"a": 1, "b": 1}, devices={"d": 1}, tags={"t": 1})


def test_tags_show_the_name_and_whether_it_is_a_fraction():
    tagged = Resource(
        1, 0, 1, tags={"torchx/named_resources.name": "half", "torchx/named_resources.is_fractional": True}
    )

    assert tagged.get_resource_name() == "half"
    assert tagged.is_fractional()
    assert NULL_RESOURCE.get_resource_name() is None
    assert not NULL_RESOURCE.is_fractional()


def test_the_default_resource_of_a_role_equals_null_and_can_be_filled_in():
    """Filling in the resource of one role must not change it for all roles."""
    role = Role(name="r", image="")
    assert role.resource == NULL_RESOURCE

    role.resource.capabilities["a"] = 1

    assert Role(name="r", image="").resource == NULL_RESOURCE == Resource(cpu=-1, gpu=-1, memMB=-1)
