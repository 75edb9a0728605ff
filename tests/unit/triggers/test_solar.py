"""Solar has the fire times of Celery's solar schedule, also where the sun does not set."""

import builtins
import random
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from celery.schedules import solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Solar
from celery_dynbeat.triggers import solar as module

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SEOUL = {"latitude": 37.5665, "longitude": 126.978}
TROMSO = {"latitude": 69.6492, "longitude": 18.9553}
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
PLACES = [
    *((0.0, 0.0), (37.5665, 126.978), (52.52, 13.405), (-33.8688, 151.2093), (64.1466, -21.9426)),
    *((69.6492, 18.9553), (-77.85, 166.67), (21.3, 179.99), (-18.1, -179.99), (84.0, 40.0)),
]


@pytest.fixture(scope="module")
def app():
    app = Celery(set_as_current=False)
    app.conf.timezone = "UTC"
    return app


def by_celery(app, event, place, instant):
    schedule = solar(event, *place, nowfun=lambda: instant, app=app)
    return instant + schedule.remaining_estimate(instant)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("event", module.EVENTS)
def test_solar_has_the_fire_times_of_celery(app, event, place):
    trigger = Solar(event, latitude=place[0], longitude=place[1])
    dice = random.Random(f"{event} {place}")  # noqa: S311 - the same at each run

    for _ in range(8):
        instant = NEW_YEAR + timedelta(seconds=dice.randrange(10 * 365 * 86400))
        fire_time = trigger.next_after(instant)
        assert abs(fire_time - by_celery(app, event, place, instant)) < 1.1 * SECOND, instant
        assert fire_time.microsecond == 0


@settings(max_examples=40)
@given(
    event=st.sampled_from(list(module.EVENTS)),
    latitude=st.floats(-66, 66),
    longitude=st.floats(-180, 180),
    day=st.integers(0, 20000),
)
def test_an_event_has_the_same_second_from_every_instant_before_it(event, latitude, longitude, day):
    trigger = Solar(event, latitude=latitude, longitude=longitude)
    fire_time = trigger.next_after(datetime(1980, 1, 1, tzinfo=UTC) + day * DAY)

    for seconds in (0.000001, 1, 59, 3600, 40000):
        assert trigger.next_after(fire_time - timedelta(seconds=seconds)) in {
            fire_time,
            # The same event, a little less than a day earlier.
            trigger.next_after(fire_time - DAY - timedelta(minutes=20)),
        }
    assert trigger.next_after(fire_time) - fire_time > timedelta(hours=20)


def test_days_without_the_event_have_no_fire_time():
    sunrise = Solar("sunrise", **TROMSO)

    after_polar_night = sunrise.next_after(datetime(2026, 12, 1, tzinfo=UTC))

    assert datetime(2027, 1, 10, tzinfo=UTC) < after_polar_night < datetime(2027, 1, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("event", "latitude", "longitude", "field", "reason"),
    [
        ("moonrise", 0, 0, "event", "sunrise"),
        (None, 0, 0, "event", "must be text"),
        ("sunrise", 90.1, 0, "latitude", "-90 to 90"),
        ("sunrise", float("nan"), 0, "latitude", "-90 to 90"),
        ("sunrise", 0, float("inf"), "longitude", "-180 to 180"),
        pytest.param("sunrise", 0, 10**400, "longitude", "-180 to 180", id="huge"),
        ("sunrise", "37", 0, "latitude", "number"),
        ("sunrise", True, 0, "latitude", "number"),
    ],
)
def test_invalid_input_is_rejected_with_the_field(event, latitude, longitude, field, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        Solar(event, latitude=latitude, longitude=longitude)

    assert refusal.value.field == field


def test_text_and_description_are_readable():
    assert Solar("Sunrise", **SEOUL).spec == "sunrise 37.5665 126.978"
    assert Solar("sunrise", **SEOUL).phrase() == "at sunrise at 37.5665 N, 126.978 E"
    south_west = Solar("dusk_civil", latitude=-33, longitude=-70.5)
    assert south_west.describe() == "At civil dusk at 33.0 S, 70.5 W"


def test_without_ephem_the_error_names_the_package_to_install(monkeypatch):
    real_import = builtins.__import__

    def without_ephem(name, *args, **kwargs):
        if name == "ephem":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_ephem)

    with pytest.raises(InvalidTriggerError, match=r"celery-dynbeat\[solar\]"):
        Solar("sunrise", latitude=1, longitude=1)
