import pytest

from benchmarks.parts import NAMES, ON_ALL_SERVICES, select_parts


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_a_part_that_can_be_selected(name):
    [(selected, part)] = select_parts((name,)).items()

    assert selected == name
    assert callable(part)


def test_without_names_each_part_but_the_half_hour_is_selected_in_running_order():
    assert list(select_parts(())) == [name for name in NAMES if name != "long_run"]


def test_the_parts_for_all_services_are_parts():
    assert set(NAMES) >= ON_ALL_SERVICES
