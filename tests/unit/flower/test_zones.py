"""The time zone of a page: the argument of the URL, else the choice of the viewer."""

from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat.flower.base.zones import view_zone

SEOUL, BERLIN, UTC = map(ZoneInfo, ("Asia/Seoul", "Europe/Berlin", "UTC"))


@pytest.mark.parametrize(
    ("argument", "choice", "viewer", "zone"),
    [
        ("", "", "", UTC),
        ("", "", "Asia/Seoul", SEOUL),
        ("", "viewer", "Asia/Seoul", SEOUL),
        ("", "UTC", "Asia/Seoul", UTC),
        ("Europe/Berlin", "UTC", "Asia/Seoul", BERLIN),
        ("viewer", "UTC", "Asia/Seoul", SEOUL),
        ("No/Such", "", "Asia/Seoul", UTC),
        ("", "../../etc/passwd", "Asia/Seoul", UTC),
        ("", "", "\0", UTC),
    ],
)
def test_the_argument_comes_before_the_choice(argument, choice, viewer, zone):
    found = view_zone(argument=argument, choice=choice, viewer=viewer)

    assert (found.zone, found.of("America/New_York"), found.common) == (zone, zone, zone)
    assert found.argument == zone.key


def test_the_time_of_each_owner():
    found = view_zone(argument="owner", choice="", viewer="Asia/Seoul")

    assert found.of("Europe/Berlin") == BERLIN
    assert found.of("No/Such") == UTC
    # An axis belongs to no owner.
    assert found.common == SEOUL
    assert found.argument == "owner"
