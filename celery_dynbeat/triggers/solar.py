"""Solar: fire times by the sun, as Celery's own ``solar`` schedule computes them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import Trigger, require_text, shorten, utc

#: In the years that both datetime and the astronomy can be trusted with.
_EARLIEST, _LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
# A year and a month: what did not happen in that time never does.
_MOST_DAYS = 400
_SECOND = timedelta(seconds=1)
_HALF_A_SECOND = timedelta(milliseconds=500)
# Two searches for one event differ by less than this.
_PRECISION = timedelta(milliseconds=100)


class _Event(NamedTuple):
    """How ephem finds an event: the height of the sun in degrees, of its centre or its edge."""

    words: str
    method: str
    horizon: str
    use_center: bool


EVENTS = {
    "dawn_astronomical": _Event("astronomical dawn", "next_rising", "-18", use_center=True),
    "dawn_nautical": _Event("nautical dawn", "next_rising", "-12", use_center=True),
    "dawn_civil": _Event("civil dawn", "next_rising", "-6", use_center=True),
    "sunrise": _Event("sunrise", "next_rising", "-0:34", use_center=False),
    "solar_noon": _Event("solar noon", "next_transit", "0", use_center=False),
    "sunset": _Event("sunset", "next_setting", "-0:34", use_center=False),
    "dusk_civil": _Event("civil dusk", "next_setting", "-6", use_center=True),
    "dusk_nautical": _Event("nautical dusk", "next_setting", "-12", use_center=True),
    "dusk_astronomical": _Event("astronomical dusk", "next_setting", "-18", use_center=True),
}


@dataclass(frozen=True, slots=True, init=False)
class Solar(Trigger):
    """Fire at an event of the sun, such as ``"sunrise"``, at a place, in whole seconds.

    ``latitude`` and ``longitude`` are degrees, north and east positive. The nine events are those
    of Celery's ``solar``. Days without the event (a polar summer) are passed over.

    Needs the package ``ephem``: ``pip install 'celery-dynbeat[solar]'``. Raises
    ``InvalidTriggerError`` with field ``"event"``, also when ephem is missing or the place never
    has the event, ``"latitude"`` or ``"longitude"``.
    """

    kind: ClassVar[str] = "solar"

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
        if _first_from(self, _PROBE) is None:
            message = f"{self.spec}: this never happens there; choose another event or place"
            raise InvalidTriggerError(message, field="event")

    @property
    def spec(self) -> str:
        """Return the event, the latitude and the longitude: ``sunrise 37.5665 126.978``."""
        return f"{self.event} {self.latitude!r} {self.longitude!r}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 2998.

        None also when 400 days pass without the event.
        """
        instant = max(utc(instant, field="instant"), _EARLIEST)
        if instant >= _LATEST:
            return None
        found = _first_from(self, instant.replace(hour=0, minute=0, second=0, microsecond=0))
        while found is not None and found <= instant:
            found = _first_from(self, found + _SECOND)
        return found

    def phrase(self) -> str:
        """Say the event and the place in words."""
        north = "N" if self.latitude >= 0 else "S"
        east = "E" if self.longitude >= 0 else "W"
        place = f"{abs(self.latitude)!r} {north}, {abs(self.longitude)!r} {east}"
        return f"at {EVENTS[self.event].words} at {place}"


_PROBE = datetime(2000, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=8192)
def _first_from(trigger: Solar, start: datetime) -> datetime | None:
    """Return the first event at or after ``start``, a whole second.

    Callers ask from midnight, then from each event on: a day's evaluation serves all its instants.
    """
    sky = _Sky(trigger)
    approximate = sky.search(start - _PRECISION)
    while approximate is not None:
        found = sky.exactly(approximate)
        if found >= start:
            return found
        approximate = sky.search(approximate + _SECOND)
    return None


class _Sky:
    """The sun above a place, as ephem computes it."""

    def __init__(self, trigger: Solar) -> None:
        self._ephem = _load_ephem()
        self._event = EVENTS[trigger.event]
        self._observer = self._ephem.Observer()
        # Never in the notation with an exponent, which ephem reads as something else.
        self._observer.lat = f"{trigger.latitude:.12f}"
        self._observer.lon = f"{trigger.longitude:.12f}"
        self._observer.elev = 0
        self._observer.pressure = 0
        self._observer.horizon = self._event.horizon

    def search(self, start: datetime) -> datetime | None:
        """Return the first event from ``start`` on, day by day where days pass without it."""
        sun, begin = self._ephem.Sun(), self._ephem.Date(start.replace(tzinfo=None))
        find = getattr(self._observer, self._event.method)
        options = {"use_center": True} if self._event.use_center else {}
        for _ in range(_MOST_DAYS):
            try:
                found: datetime = find(sun, start=begin, **options).datetime()
            except self._ephem.CircumpolarError:
                begin = self._observer.next_antitransit(sun, start=begin)
            else:
                return found.replace(tzinfo=UTC)
        return None

    def exactly(self, approximate: datetime) -> datetime:
        """Return the second of an event, the same from wherever it was looked for.

        The results of searches from two different instants differ a little. So the last search
        begins at an hour: two approximations lead to the same hour, or both lie at the half second
        before it, where cutting off the fraction makes them equal.
        """
        hour = (approximate + _HALF_A_SECOND).replace(minute=0, second=0, microsecond=0)
        found = self.search(hour - _SECOND * 3600) or approximate
        # The hour before may hold another event, where the sun touches the horizon only.
        if abs(found - approximate) > _HALF_A_SECOND:
            found = approximate
        return found.replace(microsecond=0)


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
