"""Solar: fire times by the sun, those of Celery's own ``solar`` schedule.

ephem says where the sun stands. Its own search for risings and settings is left alone: near the
poles it runs in circles for ever, or finds one event twice. Ours is bounded. A solar day has two
culminations, antitransit (midnight) and transit (noon), and between two of them the sun climbs or
sinks: so it rises between two of which the first lies below the horizon and the second above it,
and a fixed number of halvings finds when. Days are numbered as ephem counts its dates, which begin
at noon of 31 December 1899.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import LOOKS_BACK, SAMPLE, Trigger, require_text, utc
from celery_dynbeat.triggers.budget import LOOKUP, Budget

#: In the years that both datetime and the astronomy can be trusted with.
_EARLIEST, _LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
_DAY = timedelta(days=1)
# Each event happens each year everywhere, at the poles too.
_MOST_DAYS = 400
# The sun takes half a millisecond.
_EVENT_STEPS, _DAY_STEPS = 8 * LOOKUP, 2 * LOOKUP
# Noon is a quarter of an hour off the mean one at most; each step leaves a thousandth of the error.
_STEPS_TO_NOON = 3
# Half a day in parts of about ten milliseconds.
_HALVINGS = 22
# Within a degree of the poles neighbouring days can have their events in one night.
_LEAST_DISTANCE = 20 / 24


class _Event(NamedTuple):
    """The height of the sun in degrees, of its centre or its edge, and which way it passes it."""

    words: str
    rising: bool
    height: float
    use_center: bool


# The heights, and where they are measured, are those of Celery.
EVENTS = {
    "dawn_astronomical": _Event("astronomical dawn", rising=True, height=-18, use_center=True),
    "dawn_nautical": _Event("nautical dawn", rising=True, height=-12, use_center=True),
    "dawn_civil": _Event("civil dawn", rising=True, height=-6, use_center=True),
    "sunrise": _Event("sunrise", rising=True, height=-34 / 60, use_center=False),
    "solar_noon": _Event("solar noon", rising=True, height=0, use_center=True),
    "sunset": _Event("sunset", rising=False, height=-34 / 60, use_center=False),
    "dusk_civil": _Event("civil dusk", rising=False, height=-6, use_center=True),
    "dusk_nautical": _Event("nautical dusk", rising=False, height=-12, use_center=True),
    "dusk_astronomical": _Event("astronomical dusk", rising=False, height=-18, use_center=True),
}


@dataclass(frozen=True, slots=True, init=False)
class Solar(Trigger):
    """Fire at an event of the sun, such as ``"sunrise"``, at a place, in whole seconds.

    ``latitude`` and ``longitude`` are degrees, north and east positive. The nine events are those
    of Celery's ``solar``. It fires once per solar day at most; days without the event (a polar
    summer) are passed over.

    Needs the package ``ephem``: ``pip install 'celery-dynbeat[solar]'``. Raises
    ``InvalidTriggerError`` with field ``"event"``, also when ephem is missing, ``"latitude"`` or
    ``"longitude"``.
    """

    kind: ClassVar[str] = "solar"
    metered: ClassVar[bool] = True

    event: str
    latitude: float
    longitude: float

    def __init__(self, event: str, *, latitude: float, longitude: float) -> None:
        require_text(event, field="event", example="sunrise")
        name = event.strip().lower()
        if name not in EVENTS:
            message = f"unknown event {shorten(event)}; known are {', '.join(EVENTS)}"
            raise InvalidTriggerError(message, field="event")
        object.__setattr__(self, "event", name)
        object.__setattr__(self, "latitude", _degrees(latitude, field="latitude", limit=90))
        object.__setattr__(self, "longitude", _degrees(longitude, field="longitude", limit=180))
        _load_ephem()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for an event, a latitude and a longitude."""
        del timezone
        words = spec.split()
        try:
            event, latitude, longitude = words[0], *map(float, words[1:])
        except (IndexError, ValueError) as error:
            message = f"{shorten(spec)} must look like 'sunrise 37.5665 126.978'"
            raise InvalidTriggerError(message, field="spec") from error
        return cls(event, latitude=latitude, longitude=longitude)

    @property
    def spec(self) -> str:
        """Return the event, the latitude and the longitude: ``sunrise 37.5665 126.978``."""
        return f"{self.event} {self.latitude!r} {self.longitude!r}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 2998."""
        return self._next(utc(instant, field="instant"), days=_MOST_DAYS)

    def next_within(self, instant: datetime, budget: Budget) -> datetime | None:
        """Return ``next_after(instant)``; paid for when the days are known that it takes."""
        found = self.next_after(instant)
        budget.spend(_steps(instant, found))
        return found

    def latest_within(self, budget: Budget, *, after: datetime, until: datetime) -> datetime | None:
        """Return ``latest_until``, paid for from ``budget``."""
        found = self.latest_until(after=after, until=until)
        budget.spend(LOOKS_BACK * _steps(after if found is None else found, until))
        return found

    def _next(self, instant: datetime, *, days: int) -> datetime | None:
        instant = max(instant, _EARLIEST)
        if instant >= _LATEST:
            return None
        today = math.floor((instant - _EPOCH) / _DAY + self.longitude / 360)
        for day in range(today - 1, today + days):
            found = _fire_time(self, day)
            if found is not None and found > instant:
                return found if found < _LATEST else None
        return None

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest distance between the fire times of the next ``2 * sample`` days.

        Near a pole a fire time is months of days away, each of which has to be computed.
        """
        after = max(utc(after, field="after"), _EARLIEST)
        if after >= _LATEST:
            return None
        fire_times: list[datetime] = []
        until = after + 2 * sample * _DAY
        fire_time = self._next(after, days=2 * sample)
        while fire_time is not None and fire_time < until and len(fire_times) < sample:
            fire_times.append(fire_time)
            fire_time = self._next(fire_time, days=(until - fire_time).days)
        return min((later - earlier for earlier, later in pairwise(fire_times)), default=None)

    def phrase(self) -> str:
        """Say the event and the place in words."""
        north = "N" if self.latitude >= 0 else "S"
        east = "E" if self.longitude >= 0 else "W"
        place = f"{abs(self.latitude)!r} {north}, {abs(self.longitude)!r} {east}"
        return f"at {EVENTS[self.event].words} at {place}"


def _steps(instant: datetime, found: datetime | None) -> int:
    """Return what it costs to find a fire time: days without the event are passed one by one."""
    days = _MOST_DAYS if found is None else (found - instant).days
    return _EVENT_STEPS + _DAY_STEPS * max(min(days, _MOST_DAYS), 0)


@lru_cache(maxsize=8192)
def _fire_time(trigger: Solar, day: int) -> datetime | None:
    """Return the fire time of a solar day, None when it has none."""
    at = _event_on(trigger, day)
    if at is None:
        return None
    before = _event_on(trigger, day - 1)
    if before is not None and at - before < _LEAST_DISTANCE:
        return None
    return (_EPOCH + at * _DAY).replace(microsecond=0)


@lru_cache(maxsize=8192)
def _event_on(trigger: Solar, day: int) -> float | None:
    """Return when the event happens on a solar day, from antitransit to antitransit."""
    if trigger.event == "solar_noon":
        return _noon(trigger.longitude, day)
    sky = _Sky(trigger)
    noons = [_noon(trigger.longitude, day + step) for step in (-1, 0, 1)]
    culminations = [(noons[0] + noons[1]) / 2, noons[1], (noons[1] + noons[2]) / 2]
    # Away from the poles the sun rises in the first half and sets in the second.
    for start, stop in pairwise(culminations):
        if not sky.passed(start) and sky.passed(stop):
            return sky.passing(start, stop)
    return None


@lru_cache(maxsize=8192)
def _noon(longitude: float, day: int) -> float:
    """Return when the sun crosses the meridian on a solar day."""
    ephem = _load_ephem()
    observer, sun = ephem.Observer(), ephem.Sun()
    observer.lon = math.radians(longitude)
    noon = day - longitude / 360
    for _ in range(_STEPS_TO_NOON):
        observer.date = noon
        sun.compute(observer)
        noon -= math.remainder(observer.sidereal_time() - sun.g_ra, math.tau) / math.tau
    return noon


class _Sky:
    """The sun above a place, as ephem computes it without an atmosphere."""

    def __init__(self, trigger: Solar) -> None:
        ephem = _load_ephem()
        self._event = EVENTS[trigger.event]
        self._height = math.radians(self._event.height)
        self._sun, self._observer = ephem.Sun(), ephem.Observer()
        self._observer.lat = math.radians(trigger.latitude)
        self._observer.lon = math.radians(trigger.longitude)
        self._observer.elev = 0
        self._observer.pressure = 0

    def passed(self, at: float) -> bool:
        """Whether the sun is on the side of the horizon to which the event brings it."""
        self._observer.date = at
        self._sun.compute(self._observer)
        edge = 0 if self._event.use_center else self._sun.radius
        above: bool = self._sun.alt + edge > self._height
        return above is self._event.rising

    def passing(self, start: float, stop: float) -> float:
        """Return when the sun passes the horizon, which it does between these culminations."""
        for _ in range(_HALVINGS):
            middle = (start + stop) / 2
            start, stop = (start, middle) if self.passed(middle) else (middle, stop)
        return stop


def _load_ephem() -> Any:
    try:
        import ephem  # noqa: PLC0415 - an extra, loaded by those who use it
    except ImportError as error:
        message = "Solar needs the package ephem: pip install 'celery-dynbeat[solar]'"
        raise InvalidTriggerError(message, field="event") from error
    return ephem


def _degrees(value: object, *, field: str, limit: int) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # Neither infinity nor "not a number" lies between the limits.
    if number and -limit <= value <= limit:  # type: ignore[operator]
        # Without the sign of a negative zero.
        return float(value) + 0.0  # type: ignore[arg-type]
    message = (
        f"{field} is {shorten(value)}; it must be a number from -{limit} to {limit}, in degrees"
    )
    raise InvalidTriggerError(message, field=field)
