"""What a caller may say of a schedule, checked and put into the form of the table.

Each check names the argument, the value, the rule and the cure.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypedDict

from celery_dynbeat.client import options
from celery_dynbeat.client.checks import (
    LONGEST,
    check_text,
    copied,
    instant,
    name,
    number,
    plain_json,
    refuse,
    too_large,
)
from celery_dynbeat.client.conversion import TaskLike, TriggerLike, task_name
from celery_dynbeat.common.settings import CATCH_UPS, ON_LOST, OVERLAPS

TAG_LENGTH = 64
TAGS = 32
#: The columns that go into the message, and that dynbeat_max_payload_bytes is about.
PAYLOAD = ("kwargs", "args", "options")
_NOTHING: Mapping[str, Any] = {}


class Fields(TypedDict, total=False):
    """What may be said of a schedule beside its name, task and trigger.

    ``queue`` and ``priority`` are short for entries of ``options``; None takes them back. Instants
    are aware datetimes, durations timedeltas or seconds. For a policy (``catch_up`` to
    ``pause_after_failures``) None means the setting of that name; ``jitter=0`` is none at all, and
    ``pause_after_failures=0`` never pauses, whatever the settings say.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    queue: str | None
    priority: int | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    catch_up: str | None
    catch_up_window: timedelta | float | None
    expires_after: timedelta | float | None
    jitter: timedelta | float | None
    overlap: str | None
    max_run_time: timedelta | float | None
    on_lost: str | None
    pause_after_failures: int | None
    description: str
    tags: Sequence[str]


class NewFields(Fields, total=False):
    """What may be said of a new schedule besides.

    With ``enabled=False`` it is paused from the start, for the ``paused_reason`` given.
    """

    enabled: bool
    paused_reason: str


class Changes(Fields, total=False):
    """What an update may change."""

    task: TaskLike
    trigger: TriggerLike


def columns(
    given: Mapping[str, Any], *, limit: int, current: Mapping[str, Any] = _NOTHING
) -> dict[str, Any]:
    """Return the columns for what was ``given``; args, kwargs and options within ``limit`` bytes.

    Those that are not given count as they are in ``current``; where none is given, their size is
    no matter. Raises InvalidScheduleError.
    """
    values: dict[str, Any] = {}
    for field, value in given.items():
        if field in PAYLOAD:
            values[field] = _payload(field, value, limit)
        elif check := _CHECKS.get(field):
            values[field] = check(field, value)
        else:
            raise refuse(str(field), value, _unknown(str(field)))
    _check_span(values)
    _check_size(values, current, limit)
    return values


def _unknown(field: str) -> str:
    known = sorted([*_CHECKS, *PAYLOAD, "priority", "queue", "trigger"])
    near = difflib.get_close_matches(field[:40], known, n=1, cutoff=0.6)
    cure = _ELSEWHERE.get(field) or (f"did you mean {near[0]}?" if near else None)
    if cure is None and options.is_known(field):
        cure = f"it is one of the options: options={{{field!r}: ...}}"
    return f"there is no such field; {cure or 'known are ' + ', '.join(known)}"


def merge_options(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with ``queue`` and ``priority`` moved into its ``options``.

    ``current`` are those that the schedule has; they stay where neither says otherwise.
    """
    rest = {key: value for key, value in given.items() if key not in {"queue", "priority"}}
    short = {key: given[key] for key in ("queue", "priority") if key in given}
    if short or "options" in given:
        base = given.get("options", current)
        if not isinstance(base, Mapping):
            raise refuse("options", base, "must be a mapping")
        for key, value in short.items():
            if value is not None:
                options.check_one(key, value)
        merged = copied(dict, "options", base) | short
        # None takes one of the two back.
        rest["options"] = {key: merged[key] for key in merged if short.get(key, merged) is not None}
    return rest


def _payload(field: str, value: Any, limit: int) -> Any:
    plain = plain_json(field, (_list if field == "args" else _mapping)(field, value), limit=limit)
    if field == "options":
        options.check(plain)
    return plain


def _list(field: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise refuse(field, value, "must be a list or tuple")
    return copied(list, field, value)


def _mapping(field: str, value: Any) -> dict[str, Any]:
    rule = "must be a mapping with texts as keys"
    if not isinstance(value, Mapping):
        raise refuse(field, value, rule)
    found: dict[str, Any] = copied(dict, field, value)
    if not all(isinstance(key, str) for key in found):
        raise refuse(field, value, rule)
    return found


def _seconds(field: str, value: Any, *, or_zero: bool = False) -> Any:
    """Return a duration in seconds; with ``or_zero`` also one of no length."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    known = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not known or not 0 <= seconds < LONGEST or not (seconds or or_zero):
        least = "0 or more" if or_zero else "more than 0"
        rule = f"must be a timedelta or a number of seconds, {least} and below {LONGEST:,.0f}"
        raise refuse(field, value, rule)
    return float(seconds)


def _max_runs(field: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise refuse(field, value, "must be a whole number of at least 1")
    return value


def _window(field: str, value: Any) -> Any:
    seconds = _seconds(field, value)
    if seconds is not None and seconds < 1:
        raise refuse(field, value, "must be at least a second: less would skip what is on time")
    return seconds


def _failures(field: str, value: Any) -> Any:
    if value is None:
        return None
    return number(field, value, least=0, most=2**31 - 1, whole=True)


def _one_of(*choices: str) -> Callable[[str, Any], Any]:
    def check(field: str, value: Any) -> Any:
        if value is not None and value not in choices:
            raise refuse(field, value, f"must be one of {', '.join(choices)}")
        return value

    return check


def _tags(field: str, value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > TAGS:
        raise refuse(field, value, f"must be a list of at most {TAGS} texts")
    tags = copied(list, field, value)
    for tag in tags:
        if len(name(field, tag)) > TAG_LENGTH:
            raise refuse(field, tag, f"a tag has at most {TAG_LENGTH} characters")
    return sorted(set(tags))


def _check_span(values: Mapping[str, Any]) -> None:
    start_at, end_at = values.get("start_at"), values.get("end_at")
    if start_at is not None and end_at is not None and end_at < start_at:
        raise refuse("end_at", end_at, f"must not be before start_at = {start_at!r}")


def _check_size(values: Mapping[str, Any], current: Mapping[str, Any], limit: int) -> None:
    given = [key for key in PAYLOAD if key in values]
    if not given:
        return
    merged = {**current, **values}
    payload = [merged[key] for key in PAYLOAD if key in merged]
    size = len(json.dumps(payload, ensure_ascii=False).encode())
    if size > limit:
        raise too_large(given[0], values[given[0]], size, limit)


#: What people look for here, and where it is.
_ELSEWHERE = {
    "timezone": "it belongs to the trigger: Cron(..., timezone=...)",
    "enabled": "create() takes it; of a schedule that exists call pause() or resume()",
    "paused_reason": "create() takes it; of a schedule that exists call pause(reason=...)",
    "expires": "it is expires_after here",
    "eta": "give the trigger Once(instant), or start_at= for the first fire time of a rule",
    "countdown": "give the trigger Once.after(delay), or options={'countdown': seconds}",
    "schedule": "it is trigger here",
    "name": "a name stays; create another and delete this one",
}
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "task": task_name,
    "start_at": instant,
    "end_at": instant,
    "max_runs": _max_runs,
    "catch_up": _one_of(*CATCH_UPS),
    "catch_up_window": _window,
    "expires_after": _seconds,
    "jitter": partial(_seconds, or_zero=True),
    "overlap": _one_of(*OVERLAPS),
    "max_run_time": _seconds,
    "on_lost": _one_of(*ON_LOST),
    "pause_after_failures": _failures,
    "description": check_text,
    "tags": _tags,
}
