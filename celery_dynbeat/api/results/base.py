"""The base of the values that the API returns: their JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from functools import singledispatch
from typing import Any, ClassVar

from celery_dynbeat.common.retry import Retry
from celery_dynbeat.triggers import Trigger


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


def as_json(value: Any) -> Any:
    """Return ``value`` with instants, days, durations, triggers and infos as JSON values."""
    # The dispatch takes ten times as long as this test.
    return value if type(value) in _PLAIN else _as_json(value)


_PLAIN = frozenset({str, int, float, bool, type(None)})


@singledispatch
def _as_json(value: Any) -> Any:
    return value


@_as_json.register
def _(value: Info) -> dict[str, Any]:
    return value.to_dict()


@_as_json.register
def _(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


@_as_json.register
def _(value: date) -> str:
    return value.isoformat()


@_as_json.register
def _(value: timedelta) -> float:
    return value.total_seconds()


@_as_json.register
def _(value: Trigger) -> dict[str, str | None]:
    return value.to_json()


@_as_json.register
def _(value: Retry) -> dict[str, Any]:
    return value.to_json()


@_as_json.register(list)
@_as_json.register(tuple)
def _(value: Sequence[Any]) -> list[Any]:
    return [as_json(each) for each in value]


@_as_json.register
def _(value: Mapping) -> dict[str, Any]:  # type: ignore[type-arg]  # singledispatch needs a class
    return {key: as_json(each) for key, each in value.items()}
