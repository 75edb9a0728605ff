"""The values that the API returns, as JSON; and a number of rows. PURE."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar, Self


class Info:
    """A value that the API returns: a frozen dataclass with slots.

    ``_PROPERTIES`` names the properties that ``to_dict`` adds after the fields.
    """

    __slots__ = ()

    _PROPERTIES: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts.

        - The keys are the names of the attributes, always all of them and in the same order.
        - An instant is ISO 8601 text in UTC (``"2026-11-22T09:00:00+00:00"``).
        - A day is ISO 8601 text (``"2026-11-22"``), and a duration is a number of seconds.
        - A trigger is the dict from ``Trigger.to_json``, and a retry policy from ``Retry.to_json``.
        """
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return {name: as_json(getattr(self, name)) for name in (*names, *self._PROPERTIES)}

    @classmethod
    def _of_row(cls, row: Any, **values: Any) -> Self:
        """Return a snapshot of a row: ``values``, and the columns of the other fields."""
        names: Sequence[str] = cls.__slots__
        columns = {name: getattr(row, name) for name in names if name not in values}
        return cls(**columns, **values)


def as_json(value: Any) -> Any:
    """Return ``value`` with instants, days, durations, triggers and infos as JSON values."""
    if type(value) in _PLAIN:
        return value
    if hasattr(value, "to_json"):
        return value.to_json()
    match value:
        case Info():
            value = value.to_dict()
        case datetime():
            value = value.astimezone(UTC).isoformat()
        case date():
            value = value.isoformat()
        case timedelta():
            value = value.total_seconds()
        case list() | tuple():
            value = [as_json(each) for each in value]
        case Mapping():
            value = {as_json(key): as_json(each) for key, each in value.items()}
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedCount(Info):
    """A number of schedules or runs. If ``exact`` is false, it is a lower bound.

    Its text is ``"123"``, or ``"10,000+"`` if it is not exact.
    """

    count: int
    exact: bool = True

    def cut(self, limit: int) -> "BoundedCount":
        """Return the count, at most ``limit``."""
        return self if self.count <= limit else BoundedCount(count=limit, exact=False)

    def __add__(self, other: "BoundedCount") -> "BoundedCount":
        return BoundedCount(count=self.count + other.count, exact=self.exact and other.exact)

    def __str__(self) -> str:
        return f"{self.count:,}" if self.exact else f"{self.count:,}+"


ZERO = BoundedCount(count=0)
