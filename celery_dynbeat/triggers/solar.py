"""Solar: fire times at the events of the sun that Celery's own ``solar`` schedule knows.

ephem computes the position of the sun. Its own search for risings and settings is not used: near
the poles it may never end, or find one event twice. This search is bounded. A solar day has two
culminations, antitransit (midnight) and transit (noon), and between two of them the sun only rises
or only sinks. The sun therefore passes the horizon between two culminations that lie on different
sides of it, and a fixed number of halvings finds the instant. Days are numbered as ephem counts its
dates, from noon of 31 December 1899.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import (
    LATEST_LOOKUPS,
    LOOKUP_STEPS,
    SAMPLE,
    SearchBudget,
    Trigger,
    require_text,
    utc,
)

#: The positions are exact enough in these years.
_EARLIEST, _LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
_DAY = timedelta(days=1)
# Each event happens at least once a year at every place, including the poles.
_MAX_DAYS = 400
# One event takes half a millisecond to compute.
_EVENT_STEPS, _DAY_STEPS = 8 * LOOKUP_STEPS, 2 * LOOKUP_STEPS
# True noon is less than 29 minutes off mean noon. Each iteration divides the error by a thousand.
_MAX_NOON_OFFSET = 0.02
_NOON_ITERATIONS = 3
# They narrow half a day down to about ten milliseconds.
_HALVINGS = 22
# In days. Within a degree of the poles, the events of two days can fall into one night.
_MIN_INTERVAL = 20 / 24
_NEAR_POLE = 88


class _Phase(NamedTuple):
    """The height in degrees that the sun's centre or edge passes, and in which direction."""

    words: str
    rising: bool
    height: float
    use_center: bool


# Celery defines the heights, and whether they apply to the centre or the edge of the sun.
EVENTS = {
    "dawn_astronomical": _Phase("astronomical dawn", rising=True, height=-18, use_center=True),
    "dawn_nautical": _Phase("nautical dawn", rising=True, height=-12, use_center=True),
    "dawn_civil": _Phase("civil dawn", rising=True, height=-6, use_center=True),
    "sunrise": _Phase("sunrise", rising=True, height=-34 / 60, use_center=False),
    "solar_noon": _Phase("solar noon", rising=True, height=0, use_center=True),
    "sunset": _Phase("sunset", rising=False, height=-34 / 60, use_center=False),
    "dusk_civil": _Phase("civil dusk", rising=False, height=-6, use_center=True),
    "dusk_nautical": _Phase("nautical dusk", rising=False, height=-12, use_center=True),
    "dusk_astronomical": _Phase("astronomical dusk", rising=False, height=-18, use_center=True),
}


@dataclass(frozen=True, slots=True, init=False)
class Solar(Trigger):
    """Fire at an event of the sun at a place, such as ``"sunrise"``, in whole seconds.

    ``latitude`` and ``longitude`` are in degrees, which are positive in the north and in the east.
    The nine events are the same as in Celery's ``solar``. The trigger fires at most once per solar
    day, and not on days without the event, as during the polar summer.

    It needs the package ``ephem``: ``pip install 'celery-dynbeat[solar]'``. Raises
    ``InvalidTriggerError`` with field ``"event"`` (also if ephem is missing), ``"latitude"`` or
    ``"longitude"``.

    >>> sunrise = Solar("sunrise", latitude=37.5665, longitude=126.978)
    >>> sunrise.describe()
    'At sunrise at 37.5665 N, 126.978 E'
    >>> str(sunrise.next_after(datetime(2026, 11, 21, tzinfo=UTC)))
    '2026-11-21 22:18:40+00:00'
    """

    kind: ClassVar[str] = "solar"
    needs_budget: ClassVar[bool] = True

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
        return self._next(utc(instant, field="instant"), days=_MAX_DAYS)

    def next_within(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return ``next_after(instant)``. The cost is known, and taken, after the search."""
        fire_time = self.next_after(instant)
        budget.spend(_search_steps(instant, fire_time))
        return fire_time

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return ``latest_until``. Take its steps from ``budget``."""
        fire_time = self.latest_until(after=after, until=until)
        budget.spend(
            LATEST_LOOKUPS * _search_steps(after if fire_time is None else fire_time, until)
        )
        return fire_time

    def _next(self, instant: datetime, *, days: int) -> datetime | None:
        instant = max(instant, _EARLIEST)
        if instant >= _LATEST:
            return None
        # The first solar day that has not ended. A day ends half a day after its noon.
        elapsed = (instant - _EPOCH) / _DAY + self.longitude / 360
        first = math.floor(elapsed - 0.5 - _MAX_NOON_OFFSET) + 1
        for day in range(first, first + days + 1):
            fire_time = _fire_time(self, day)
            if fire_time is not None and fire_time > instant:
                return fire_time if fire_time < _LATEST else None
        return None

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest interval between the fire times of the next ``2 * sample`` days.

        The days are limited because each has to be computed, and near a pole months may pass
        without a fire time.
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

    def phrase(self, timezone: str | None = None) -> str:  # noqa: ARG002 - it has no instant
        """Describe the event and the place."""
        north = "N" if self.latitude >= 0 else "S"
        east = "E" if self.longitude >= 0 else "W"
        place = f"{abs(self.latitude)!r} {north}, {abs(self.longitude)!r} {east}"
        return f"at {EVENTS[self.event].words} at {place}"


def _search_steps(instant: datetime, fire_time: datetime | None) -> int:
    """Return the steps to find a fire time. Each day without the event is computed."""
    days = _MAX_DAYS if fire_time is None else (fire_time - instant).days
    return _EVENT_STEPS + _DAY_STEPS * max(min(days, _MAX_DAYS), 0)


@lru_cache(maxsize=8192)
def _fire_time(trigger: Solar, day: int) -> datetime | None:
    """Return the fire time of a solar day, or None when there is none."""
    at = _event_on(trigger, day)
    if at is None:
        return None
    if abs(trigger.latitude) > _NEAR_POLE:
        before = _event_on(trigger, day - 1)
        if before is not None and at - before < _MIN_INTERVAL:
            return None
    return (_EPOCH + at * _DAY).replace(microsecond=0)


@lru_cache(maxsize=8192)
def _event_on(trigger: Solar, day: int) -> float | None:
    """Return when the event happens on a solar day, or None if it does not.

    The day lasts from antitransit to antitransit.
    """
    if trigger.event == "solar_noon":
        return _noon(trigger.longitude, day)
    sky = _Sky(trigger)
    noons = [_noon(trigger.longitude, day + step) for step in (-1, 0, 1)]
    culminations = [(noons[0] + noons[1]) / 2, noons[1], (noons[1] + noons[2]) / 2]
    # Away from the poles, the sun rises in the first half and sets in the second half.
    for start, stop in pairwise(culminations):
        if not sky.is_past(start) and sky.is_past(stop):
            return sky.crossing(start, stop)
    return None


@lru_cache(maxsize=8192)
def _noon(longitude: float, day: int) -> float:
    """Return when the sun crosses the meridian on a solar day."""
    ephem = _load_ephem()
    observer, sun = ephem.Observer(), ephem.Sun()
    observer.lon = math.radians(longitude)
    noon = day - longitude / 360
    for _ in range(_NOON_ITERATIONS):
        observer.date = noon
        sun.compute(observer)
        noon -= math.remainder(observer.sidereal_time() - sun.g_ra, math.tau) / math.tau
    return noon


class _Sky:
    """The position of the sun at a place, computed by ephem without an atmosphere."""

    def __init__(self, trigger: Solar) -> None:
        ephem = _load_ephem()
        self._event = EVENTS[trigger.event]
        self._height = math.radians(self._event.height)
        self._sun, self._observer = ephem.Sun(), ephem.Observer()
        self._observer.lat = math.radians(trigger.latitude)
        self._observer.lon = math.radians(trigger.longitude)
        self._observer.elev = 0
        self._observer.pressure = 0

    def is_past(self, at: float) -> bool:
        """Whether the sun is on the side of the height that it reaches by the event."""
        self._observer.date = at
        self._sun.compute(self._observer)
        edge = 0 if self._event.use_center else self._sun.radius
        above: bool = self._sun.alt + edge > self._height
        return above is self._event.rising

    def crossing(self, start: float, stop: float) -> float:
        """Return when the sun passes the height, once, between two culminations."""
        for _ in range(_HALVINGS):
            middle = (start + stop) / 2
            start, stop = (start, middle) if self.is_past(middle) else (middle, stop)
        return stop


def _load_ephem() -> Any:
    try:
        import ephem  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        message = "Solar needs the package ephem: pip install 'celery-dynbeat[solar]'"
        raise InvalidTriggerError(message, field="event") from error
    return ephem


def _degrees(value: object, *, field: str, limit: int) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Infinity and NaN do not lie between the limits.
    if is_number and -limit <= value <= limit:  # type: ignore[operator]
        # + 0.0 turns -0.0 into 0.0: equal places need equal specs.
        return float(value) + 0.0  # type: ignore[arg-type]
    message = (
        f"{field} is {shorten(value)}; it must be a number from -{limit} to {limit}, in degrees"
    )
    raise InvalidTriggerError(message, field=field)
