"""Triggers from text and from JSON.

The kinds that most applications have none of are imported with the first trigger of theirs.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import Trigger, require_text
from celery_dynbeat.triggers.cron.trigger import DAY_AND, Cron
from celery_dynbeat.triggers.interval.every import Every
from celery_dynbeat.triggers.limits import MAX_COMPOSITE, MAX_RRULE, MAX_SPEC
from celery_dynbeat.triggers.once import Once
from celery_dynbeat.triggers.text import parse_duration, parse_instant

#: The kinds that hold other triggers.
_COMPOSITE = ("any_of", "excluding")
_MAX_LENGTHS = {**dict.fromkeys(_COMPOSITE, MAX_COMPOSITE), "rrule": MAX_RRULE}
_REPEATING = re.compile(
    r"\s*R(?P<times>[^/]*)/(?P<anchor>[^/]*)/(?P<duration>[^/]*)", re.IGNORECASE
)
_KEYS = ("kind", "spec", "timezone")
#: How a text begins that is no cron expression.
_BEGINNINGS = (
    (Every.kind, re.compile(r"\s*(P|R\d*/)", re.IGNORECASE)),
    (Once.kind, re.compile(r"\s*\d{4}-\d", re.ASCII)),
    (
        "rrule",
        re.compile(r"\s*(RRULE|DTSTART|RDATE|EXDATE|EXRULE|[A-Z;=,+\d-]*FREQ=)", re.IGNORECASE),
    ),
)
#: Of so many characters.
_TOLD_BY = 200


def parse_trigger(kind: str, spec: str, *, timezone: str | None = None) -> Trigger:
    """Return the trigger that ``kind`` and ``spec`` stand for in the database.

    The inverse of ``Trigger.kind`` and ``Trigger.spec``; forgiving about case and spaces, because
    rows are typed by hand too. ``timezone`` matters to rules of the wall clock only.

    Raises ``InvalidTriggerError``, and nothing else, whatever the text.
    """
    return _parse_whole(*_required(kind, spec, timezone))


def trigger_from_json(data: Mapping[str, object]) -> Trigger:
    """Return the trigger that ``Trigger.to_json`` wrote: keys ``kind``, ``spec``, ``timezone``.

    Raises ``InvalidTriggerError`` also for a key that is missing or unknown.
    """
    return _parse_whole(*_texts(data))


def trigger_from_text(text: str) -> Trigger:
    """Return the trigger that a text stands for; its beginning tells which kind it is.

    A cron expression (``0 9 * * mon-fri``, ``@daily``), an ISO 8601 duration (``PT5M``, ``P1D``,
    ``R/2026-01-31T09:00:00Z/P1M``), an instant (``2026-11-21T09:00:00Z``), or the lines of a
    recurrence rule (``FREQ=WEEKLY;BYDAY=MO``).

    Raises ``InvalidTriggerError``.
    """
    text = require_text(text, field="trigger", example="0 9 * * mon-fri")
    kind = _kind_of(text[:_TOLD_BY])
    try:
        return _parse_whole(kind, text, None)
    except InvalidTriggerError as error:
        # A field, or a name such as @daily, shows that a cron expression was meant.
        if kind != Cron.kind or error.field is not None or text.lstrip().startswith("@"):
            raise
        message = (
            f"{error}; or write a duration ('PT5M'), an instant ('2026-11-21T09:00:00Z') or a"
            " recurrence rule ('FREQ=WEEKLY;BYDAY=MO')"
        )
        raise InvalidTriggerError(message, field=error.field) from error


def _kind_of(beginning: str) -> str:
    return next((kind for kind, pattern in _BEGINNINGS if pattern.match(beginning)), Cron.kind)


def _texts(data: object) -> tuple[str, str, str | None]:
    """Return kind, spec and timezone: texts, because caches stumble over what has no hash."""
    if not isinstance(data, Mapping):
        rule = f"it must be an object with the keys {', '.join(_KEYS)}"
        raise InvalidTriggerError(f"trigger is {shorten(data)}; {rule}", field="trigger")
    for key in data:
        if key not in _KEYS:
            message = f"unknown key {shorten(key)} in trigger; known are {', '.join(_KEYS)}"
            field = key if isinstance(key, str) and len(key) <= MAX_SPEC else shorten(key)
            raise InvalidTriggerError(message, field=field)
    return _required(data.get("kind"), data.get("spec"), data.get("timezone"))


def _required(kind: object, spec: object, timezone: object) -> tuple[str, str, str | None]:
    kind = require_text(kind, field="kind", example=Cron.kind)
    spec = require_text(spec, field="spec", example="0 9 * * mon-fri")
    if timezone is not None:
        timezone = require_text(timezone, field="timezone", example="Asia/Seoul")
    return kind, spec, timezone


@lru_cache(maxsize=8192)
def _parse_whole(kind: str, spec: str, timezone: str | None) -> Trigger:
    trigger = _parse(kind, spec, timezone)
    # Of the whole, not of each part that is read: together they have one effort.
    if trigger.kind in _COMPOSITE:
        _check_fires(trigger)
    return trigger


@contextmanager
def _importing() -> Iterator[None]:
    """Let what keeps a module from being read be an ImportError: it says nothing about a text."""
    try:
        yield
    except OSError as error:
        raise ImportError(f"a kind of trigger cannot be loaded: {error}") from error


def _check_fires(trigger: Trigger) -> None:
    with _importing():
        from celery_dynbeat.triggers.composite.members import Composite  # noqa: PLC0415 - as said above

    if isinstance(trigger, Composite):
        trigger.check_fires()


def _read_part(data: Mapping[str, object]) -> Trigger:
    return _parse(*_texts(data))


@lru_cache(maxsize=8192)
def _parse(kind: str, spec: str, timezone: str | None) -> Trigger:
    name = kind.strip().lower()
    if name not in _PARSERS:
        near = difflib.get_close_matches(name[:40], _PARSERS, n=1)
        cure = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_PARSERS)}"
        raise InvalidTriggerError(f"unknown kind of trigger {shorten(kind)}: {cure}", field="kind")
    most = _MAX_LENGTHS.get(name, MAX_SPEC)
    if len(spec) > most:
        message = f"{shorten(spec)} has {len(spec)} characters; at most {most} are allowed"
        raise InvalidTriggerError(message, field="spec")
    return _PARSERS[name](spec, timezone)


def _parse_cron(spec: str, timezone: str | None) -> Trigger:
    words = spec.split()
    day_or = not (words and words[-1].lower() == DAY_AND)
    expression = " ".join(words if day_or else words[:-1])
    return Cron(expression, timezone=timezone, day_or=day_or)


def _parse_every(spec: str, timezone: str | None) -> Trigger:
    match = _REPEATING.fullmatch(spec)
    if match is not None and match["times"].strip():
        message = f"{shorten(spec)} counts its repetitions; write R/ and set max_runs instead"
        raise InvalidTriggerError(message, field="interval")
    anchor = None if match is None else parse_instant(match["anchor"], field="anchor")
    duration = parse_duration(spec if match is None else match["duration"])
    if isinstance(duration, timedelta):
        return Every(duration, anchor=anchor)
    return Every(anchor=anchor, timezone=timezone, **duration)


def _parse_once(spec: str, _timezone: str | None) -> Trigger:
    if not spec.lstrip().upper().startswith("P"):
        return Once(parse_instant(spec, field="at"))
    delay = parse_duration(spec)
    if isinstance(delay, timedelta):
        return Once.after(delay)
    message = f"{shorten(spec)} is of the calendar; a delay is elapsed time, such as PT24H"
    raise InvalidTriggerError(message, field="at")


def _parse_any_of(spec: str, timezone: str | None) -> Trigger:
    with _importing():
        from celery_dynbeat.triggers.composite.any_of import parse_any_of  # noqa: PLC0415

    return parse_any_of(spec, timezone, read=_read_part)


def _parse_excluding(spec: str, timezone: str | None) -> Trigger:
    with _importing():
        from celery_dynbeat.triggers.composite.excluding import parse_excluding  # noqa: PLC0415

    return parse_excluding(spec, timezone, read=_read_part)


def _parse_rrule(spec: str, timezone: str | None) -> Trigger:
    with _importing():
        from celery_dynbeat.triggers.rrule.trigger import RRule  # noqa: PLC0415

    return RRule(spec, timezone=timezone)


def _parse_solar(spec: str, _timezone: str | None) -> Trigger:
    with _importing():
        from celery_dynbeat.triggers.solar import Solar  # noqa: PLC0415

    words = spec.split()
    try:
        event, latitude, longitude = words[0], *map(float, words[1:])
    except (IndexError, ValueError) as error:
        message = f"{shorten(spec)} must look like 'sunrise 37.5665 126.978'"
        raise InvalidTriggerError(message, field="spec") from error
    return Solar(event, latitude=latitude, longitude=longitude)


_PARSERS: dict[str, Callable[[str, str | None], Trigger]] = {
    Cron.kind: _parse_cron,
    Every.kind: _parse_every,
    Once.kind: _parse_once,
    "rrule": _parse_rrule,
    "solar": _parse_solar,
    "any_of": _parse_any_of,
    "excluding": _parse_excluding,
}
#: What this version can read. A row of another kind belongs to a newer one, or holds a typo.
KINDS = tuple(_PARSERS)


def is_known(kind: str) -> bool:
    """Return whether this version has a trigger of that kind."""
    return kind.strip().lower() in _PARSERS
