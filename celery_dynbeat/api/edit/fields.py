"""The fields of a call, as their types say, and the functions that check them together.

Each error names the argument, the value, the rule and the fix.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from celery_dynbeat.api import options
from celery_dynbeat.api.checks import BINDING, check_json, copy_as, invalid, payload_too_large
from celery_dynbeat.api.edit.conversion import TaskLike, TriggerLike
from celery_dynbeat.api.fields import FIELDS, PAYLOAD
from celery_dynbeat.common import ping_urls
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.settings import Settings

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
      ``retry=Retry(max_retries=0)`` never retries. ``retry`` may be a dict of the arguments of
      Retry.
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
    for name, value in given.items():
        field = FIELDS.get(name)
        if field is None or field.in_options:
            raise invalid(str(name), value, _unknown_field(str(name)))
        values[name] = field.check(value)
        if name in PAYLOAD:
            values[name] = check_json(name, values[name], limit=limit)
        if name == "options":
            options.check(values[name])
    check_span(start_at=values.get("start_at"), end_at=values.get("end_at"))
    _check_size(values, current, limit)
    return values


def require_trigger(given: Mapping[str, object]) -> None:
    """Raise InvalidScheduleError for a name of another library in place of ``trigger``."""
    for field in {"crontab", "interval", "solar", "clocked", "schedule"} & given.keys():
        raise invalid(field, given[field], _unknown_field(field))


def _unknown_field(field: str) -> str:
    known = sorted([*FIELDS, "trigger"])
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
    short = {key: given[key] for key in given if key in FIELDS and FIELDS[key].in_options}
    merged = {key: value for key, value in given.items() if key not in short}
    if short or "options" in given:
        base = given.get("options", current)
        if not isinstance(base, Mapping):
            raise invalid("options", base, "must be a mapping")
        for key, value in short.items():
            FIELDS[key].check(value)
        entries = copy_as(dict, "options", base) | short
        # queue=None and priority=None remove the entry.
        merged["options"] = {
            key: entries[key] for key in entries if short.get(key, entries) is not None
        }
    return merged


def check_span(*, start_at: datetime | None, end_at: datetime | None) -> None:
    """Raise InvalidScheduleError if ``end_at`` is before ``start_at``."""
    if start_at is not None and end_at is not None and end_at < start_at:
        raise invalid("end_at", end_at, f"must not be before start_at = {start_at}")


def _check_size(values: Mapping[str, Any], current: Mapping[str, Any], limit: int) -> None:
    given = [key for key in PAYLOAD if key in values]
    if not given:
        return
    merged = {**current, **values}
    payload = [merged[key] for key in PAYLOAD if key in merged]
    size = len(_ENCODER.encode(payload).encode())
    if size > limit:
        raise payload_too_large(given[0], values[given[0]], size, limit)


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
    **BINDING,
}


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
