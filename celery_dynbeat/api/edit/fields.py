"""The fields of a schedule: their types, and the functions that check and convert them to columns.

Each error names the argument, the value, the rule and the fix.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from celery_dynbeat.api.checks import (
    MAX_SECONDS,
    check_instant,
    check_integer,
    check_json,
    check_name,
    check_text,
    copy_as,
    invalid,
    payload_too_large,
)
from celery_dynbeat.api.edit import options
from celery_dynbeat.api.edit.conversion import TaskLike, TriggerLike, task_name
from celery_dynbeat.common import ping_urls
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.settings import CATCH_UPS, ON_LOST, OVERLAPS, Settings
from celery_dynbeat.common.text import as_text
from celery_dynbeat.common.window import as_share

TAG_LENGTH = 64
MAX_TAGS = 32
#: The columns that are sent in the message. dynbeat_max_payload_bytes limits their size.
PAYLOAD_FIELDS = ("kwargs", "args", "options")
#: The optional fields other than the payload, with the values of a schedule that does not set them.
FIELD_DEFAULTS: Mapping[str, Any] = {
    "start_at": None,
    "end_at": None,
    "max_runs": None,
    "catch_up": None,
    "catch_up_window": None,
    "expires_after": None,
    "finish_within": None,
    "window": None,
    "overlap": None,
    "max_run_time": None,
    "on_lost": None,
    "pause_after_failures": None,
    "retry": None,
    "description": "",
    "tags": [],
    "ping_url": None,
}
#: A constant: json.dumps makes an encoder for each call with other options than its defaults.
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_NO_COLUMNS: Mapping[str, Any] = {}


class Fields(TypedDict, total=False):
    """The optional fields of a schedule.

    - ``queue`` and ``priority`` are shortcuts for the entries of ``options``; None removes the
      entry.
    - Instants are aware datetimes. Durations are timedeltas or numbers of seconds.
    - A policy (``catch_up`` to ``retry``) that is None follows the setting of the same name.
      ``window=0`` means no window, ``pause_after_failures=0`` never pauses, and
      ``retry=Retry(times=0)`` never retries. ``retry`` may be a dict of the arguments of Retry.
    - ``window`` is a duration, or a share of the interval such as ``"50%"``.
    - ``finish_within`` counts from the fire time: a run that has not ended by then opens an alert.
    - ``ping_url`` is the URL to which a worker reports each run. dynbeat_ping_hosts must allow its
      host.
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
    finish_within: timedelta | float | None
    window: timedelta | float | str | None
    overlap: str | None
    max_run_time: timedelta | float | None
    on_lost: str | None
    pause_after_failures: int | None
    retry: Retry | Mapping[str, Any] | None
    description: str
    tags: Sequence[str]
    ping_url: str | None


class NewFields(Fields, total=False):
    """The optional fields of a new schedule.

    With ``enabled=False``, the schedule is created paused, with ``paused_reason`` as its reason.
    Beat resumes it at ``paused_until``.
    """

    enabled: bool
    paused_reason: str
    paused_until: datetime | timedelta | None


class Changes(Fields, total=False):
    """The fields that an update can change."""

    task: TaskLike
    trigger: TriggerLike


def to_columns(
    given: Mapping[str, Any], *, limit: int, current: Mapping[str, Any] = _NO_COLUMNS
) -> dict[str, Any]:
    """Return the columns for the ``given`` fields.

    ``limit`` is the size in bytes of args, kwargs and options together, as JSON. Those that are
    not given count with their size in ``current``. If none of them is given, there is no size
    check. Raises InvalidScheduleError.
    """
    values: dict[str, Any] = {}
    for field, value in given.items():
        if field in PAYLOAD_FIELDS:
            values[field] = _check_payload(field, value, limit)
        elif check := _CHECKS.get(field):
            values[field] = check(field, value)
        else:
            raise invalid(str(field), value, _unknown_field(str(field)))
    check_span(start_at=values.get("start_at"), end_at=values.get("end_at"))
    _check_size(values, current, limit)
    return values


def require_trigger(given: Mapping[str, object]) -> None:
    """Raise InvalidScheduleError for a name of another library in place of ``trigger``."""
    for field in {"crontab", "interval", "solar", "clocked", "schedule"} & given.keys():
        raise invalid(field, given[field], _unknown_field(field))


def _unknown_field(field: str) -> str:
    known = sorted([*_CHECKS, *PAYLOAD_FIELDS, *_OTHER_FIELDS])
    near = difflib.get_close_matches(field[:40], known, n=1, cutoff=0.6)
    hint = _HINTS.get(field) or (f"did you mean {near[0]}?" if near else None)
    if hint is None and options.is_known(field):
        hint = f"it is an option: options={{{field!r}: ...}}"
    return f"there is no such field; {hint or 'the known fields are ' + ', '.join(known)}"


def merge_options(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with ``queue`` and ``priority`` moved into its ``options``.

    If ``given`` does not contain ``options``, the other entries of the ``current`` options are
    kept.
    """
    merged = {key: value for key, value in given.items() if key not in {"queue", "priority"}}
    short = {key: given[key] for key in ("queue", "priority") if key in given}
    if short or "options" in given:
        base = given.get("options", current)
        if not isinstance(base, Mapping):
            raise invalid("options", base, "must be a mapping")
        for key, value in short.items():
            if value is not None:
                options.check_one(key, value)
        entries = copy_as(dict, "options", base) | short
        # queue=None and priority=None remove the entry.
        merged["options"] = {
            key: entries[key] for key in entries if short.get(key, entries) is not None
        }
    return merged


def _check_payload(field: str, value: Any, limit: int) -> Any:
    check = _check_list if field == "args" else _check_mapping
    plain = check_json(field, check(field, value), limit=limit)
    if field == "options":
        options.check(plain)
    return plain


def _check_list(field: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise invalid(field, value, "must be a list or tuple")
    return copy_as(list, field, value)


def _check_mapping(field: str, value: Any) -> dict[str, Any]:
    rule = "must be a mapping whose keys are strings"
    if not isinstance(value, Mapping):
        raise invalid(field, value, rule)
    copy: dict[str, Any] = copy_as(dict, field, value)
    if not all(isinstance(key, str) for key in copy):
        raise invalid(field, value, rule)
    return copy


def _check_duration(field: str, value: Any, *, allow_zero: bool = False) -> Any:
    """Return the seconds of a duration, or None."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    # Rounded to microseconds, so that a caller reads exactly the stored duration.
    is_in_range = is_number and 0 <= seconds < MAX_SECONDS
    duration = timedelta(seconds=seconds) if is_in_range else None
    if duration is None or not (duration or allow_zero):
        minimum = "0 or more" if allow_zero else "more than 0"
        rule = f"must be a timedelta or a number of seconds, {minimum} and below {MAX_SECONDS:,.0f}"
        raise invalid(field, value, rule)
    return duration.total_seconds()


def _check_window(field: str, value: Any) -> Any:
    if not isinstance(value, str):
        return _check_duration(field, value, allow_zero=True)
    try:
        return as_share(value)
    except ValueError as error:
        raise invalid(field, value, str(error)) from None


def _check_max_runs(field: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise invalid(field, value, "must be a whole number of at least 1")
    return value


def _check_catch_up_window(field: str, value: Any) -> Any:
    seconds = _check_duration(field, value)
    if seconds is not None and seconds < 1:
        rule = "must be at least 1 second: a shorter window skips runs that are on time"
        raise invalid(field, value, rule)
    return seconds


def _check_failures(field: str, value: Any) -> Any:
    return None if value is None else check_integer(field, value, minimum=0, maximum=2**31 - 1)


def _check_retry(field: str, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, Retry):
        if not isinstance(value, Mapping):
            raise invalid(field, value, "must be Retry(times=...), or a dict of its arguments")
        value = Retry.from_json(copy_as(dict, field, value))
    return value.to_json()


def _choice_check(*choices: str) -> Callable[[str, Any], Any]:
    def check(field: str, value: Any) -> Any:
        if value is not None and value not in choices:
            raise invalid(field, value, f"must be one of {', '.join(choices)}")
        return value

    return check


def _check_tags(field: str, value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > MAX_TAGS:
        raise invalid(field, value, f"must be a list of at most {MAX_TAGS} strings")
    tags = [as_text(tag) for tag in copy_as(list, field, value)]
    for tag in tags:
        if len(check_name(field, tag)) > TAG_LENGTH:
            raise invalid(field, tag, f"a tag must have at most {TAG_LENGTH} characters")
    return sorted(set(tags))


def check_span(*, start_at: datetime | None, end_at: datetime | None) -> None:
    """Raise InvalidScheduleError if ``end_at`` is before ``start_at``."""
    if start_at is not None and end_at is not None and end_at < start_at:
        raise invalid("end_at", end_at, f"must not be before start_at = {start_at}")


def _check_size(values: Mapping[str, Any], current: Mapping[str, Any], limit: int) -> None:
    given = [key for key in PAYLOAD_FIELDS if key in values]
    if not given:
        return
    merged = {**current, **values}
    payload = [merged[key] for key in PAYLOAD_FIELDS if key in merged]
    size = len(_ENCODER.encode(payload).encode())
    if size > limit:
        raise payload_too_large(given[0], values[given[0]], size, limit)


#: Fields that another function checks. Only create() accepts the fields of a pause.
_OTHER_FIELDS = ("priority", "queue", "trigger")
#: Names from other libraries, and fields that another call accepts.
_HINTS = {
    "timezone": "it belongs to the trigger: Cron(..., timezone=...), or call set_timezone()",
    "enabled": "create() accepts it; for an existing schedule call pause() or resume()",
    "paused_reason": "create() accepts it; for an existing schedule call pause(reason=...)",
    "paused_until": "create() accepts it; for an existing schedule call pause(until=...)",
    "expires": (
        "use end_at for the instant after which the schedule stops (django-celery-beat calls it"
        " expires), or expires_after for how long one run may wait"
    ),
    **dict.fromkeys(
        ("crontab", "interval", "solar", "clocked"),
        "use trigger: a string such as '0 9 * * mon-fri' or 'PT5M', Cron(...), Every(...),"
        " Solar(...), Once(instant), or one of Celery's schedules",
    ),
    "eta": "use the trigger Once(instant), or start_at= for the first fire time of another trigger",
    "countdown": "use the trigger Once.after(delay), or options={'countdown': seconds}",
    "schedule": "use trigger",
    "name": "rename() changes a name",
    **{
        each: f"bind the calls to it: for_owner(owner, {each}=...), or bound({each}=...)"
        for each in ("session", "actor", "reason")
    },
}


def _check_ping_url(field: str, value: Any) -> str | None:
    # No error shows a ping URL, because the URL can contain a token.
    if value is None or isinstance(value, str):
        return value
    msg = f"{field} is of type {type(value).__name__}: must be a URL, or None"
    raise InvalidScheduleError(msg, field=field)


def check_ping_url(settings: Settings, values: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError if the settings do not allow a new ping URL in ``values``."""
    url = values.get("ping_url")
    if url is None:
        return
    if settings.ping_hosts is None:
        msg = "ping_url: no host is allowed; list the allowed ones in dynbeat_ping_hosts"
        raise InvalidScheduleError(msg, field="ping_url")
    try:
        ping_urls.parse_ping_url(url, allowed=settings.ping_hosts)
    except ValueError as error:
        raise InvalidScheduleError(f"ping_url: {error}", field="ping_url") from None


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "task": task_name,
    "start_at": check_instant,
    "end_at": check_instant,
    "max_runs": _check_max_runs,
    "catch_up": _choice_check(*CATCH_UPS),
    "catch_up_window": _check_catch_up_window,
    "expires_after": _check_duration,
    "finish_within": _check_duration,
    "window": _check_window,
    "overlap": _choice_check(*OVERLAPS),
    "max_run_time": _check_duration,
    "on_lost": _choice_check(*ON_LOST),
    "pause_after_failures": _check_failures,
    "retry": _check_retry,
    "description": check_text,
    "tags": _check_tags,
    "ping_url": _check_ping_url,
}
