"""The message headers that identify a run, and the header names that are reserved.

Anyone who can write to the broker can write any header. Only this module therefore reads headers.
It returns each header typed and bounded, as it would be stored, or as if the header were missing.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery.app.task import Context

from celery_dynbeat.common.retry import stored_retry
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.planning.plan import OutgoingRun

HEADER_RUN_ID = "dynbeat_run_id"
HEADER_SCHEDULE = "dynbeat_schedule"
HEADER_OWNER = "dynbeat_owner"
HEADER_FIRE_AT = "dynbeat_fire_at"
#: Only on runs of another origin than the schedule itself: manual, backfill or rerun.
HEADER_ORIGIN = "dynbeat_origin"
#: In a message: the number of the attempt before it. In a task: the number of this attempt, from 1.
HEADER_ATTEMPT = "dynbeat_attempt"
#: When beat sent the message. The retry of a task copies it.
HEADER_SENT_AT = "dynbeat_sent_at"
#: Only on runs that expire. The guard refuses a first start after this instant.
HEADER_EXPIRES_AT = "dynbeat_expires_at"
#: Only in a message from Task.replace(). It means that the attempt that the message follows has
#: ended.
HEADER_REPLACES = "dynbeat_replaces"
#: Only on runs that another run may wait for. Workers check no waiting run without it.
HEADER_OVERLAP = "dynbeat_overlap"
#: Only on runs of a schedule with a ping URL. The URL is a secret and stays in the database.
HEADER_PING = "dynbeat_ping"
#: Only on runs with a retry policy: that policy as JSON, and the next fire time if it needs that.
HEADER_RETRY, HEADER_NEXT_FIRE_AT = "dynbeat_retry", "dynbeat_next_fire_at"

#: Headers that Celery's protocol 2 uses for the message itself, or that set task.request in the
#: worker. A caller's header of that name could name another task or bypass the guard.
_CELERYS = frozenset(vars(Context)) | {
    *("lang", "task", "argsrepr", "kwargsrepr", "compression", "group_index", "stamps"),
    *("stamped_headers", "replaced_task_nesting", "celery_beat_task", "periodic_task_name"),
}
#: The instant at which the guard last deferred the message. The name on the wire is an old one:
#: workers of the previous version read it during a rolling upgrade.
HEADER_DEFERRED_AT = "dynbeat_put_off_at"
#: The number of times that the guard has deferred the message.
HEADER_DEFERRALS = "dynbeat_deferrals"

#: Characters of an owner and of a name.
_NAME_LENGTH = 255
#: Characters of an instant.
_INSTANT_LENGTH = 64
#: Characters of a retry policy. The longest has about 140.
_RETRY_LENGTH = 256
#: The largest count that each database stores, less one for the next attempt.
_MAX_COUNT = 2**31 - 2


def is_reserved(header: str) -> bool:
    """Return whether the header is reserved for Celery or this package."""
    return header in _CELERYS or header.startswith("dynbeat_")


def run_headers(run: OutgoingRun, *, sent_at: datetime | None = None) -> dict[str, Any]:
    """Return the headers of the message of a run that is sent at ``sent_at``."""
    headers: dict[str, Any] = {
        HEADER_RUN_ID: run.run_id,
        HEADER_SCHEDULE: run.name,
        HEADER_OWNER: run.owner,
        HEADER_FIRE_AT: run.fire_at.isoformat(),
        HEADER_ATTEMPT: run.attempt,
        # Other tools recognise a scheduled task by these two.
        "celery_beat_task": True,
        "periodic_task_name": run.name,
    }
    if sent_at:
        headers[HEADER_SENT_AT] = sent_at.isoformat()
    if run.expires_at:
        headers[HEADER_EXPIRES_AT] = run.expires_at.isoformat()
    if run.origin != "schedule":
        headers[HEADER_ORIGIN] = run.origin
    if run.overlap == "buffer_one":
        headers[HEADER_OVERLAP] = run.overlap
    if run.pings:
        headers[HEADER_PING] = True
    if run.retry is not None:
        headers[HEADER_RETRY] = json.dumps(run.retry.to_json())
        if run.retry.until_next_fire and run.next_fire_at is not None:
            headers[HEADER_NEXT_FIRE_AT] = run.next_fire_at.isoformat()
    if not run.options:
        return headers
    given: dict[str, Any] = run.options.get("headers", {})
    # The API rejects reserved headers. A row written in SQL may contain them.
    return {**{key: value for key, value in given.items() if not is_reserved(key)}, **headers}


def replacement_headers(request: Any) -> dict[str, Any]:
    """Return the headers of a message that replaces the executed attempt of a run."""
    kept = ("dynbeat_", "celery_beat_task", "periodic_task_name")
    headers = {key: value for key, value in headers_of(request).items() if key.startswith(kept)}
    for of_this_message in (HEADER_DEFERRED_AT, HEADER_DEFERRALS):
        headers.pop(of_this_message, None)
    return {**headers, HEADER_REPLACES: True}


def headers_of(message: Any) -> Mapping[str, Any]:
    """Return the headers of a message or a request, which can hold anything."""
    # A header with the name "headers" replaces Celery's dict.
    headers = getattr(message, "headers", None)
    return headers if isinstance(headers, dict) else {}


def _text_in(message: Any, header: str, max_length: int) -> str | None:
    text = headers_of(message).get(header)
    return text if isinstance(text, str) and len(text) <= max_length else None


def _count_of(value: object) -> int | None:
    # isinstance is not enough, because True is an int.
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else None


def run_id_of(request: Any) -> str | None:
    """Return the run id of the message of an executed task, or None for any other call."""
    if request is None or request.called_directly or request.is_eager:
        return None
    return claimed_run_id(request)


def claimed_run_id(request: Any) -> str | None:
    """Return the run id of a message, executed or not, or None when no schedule sent it."""
    run_id = headers_of(request).get(HEADER_RUN_ID)
    return run_id if run_id == request.id and is_run_id(run_id) else None


def schedule_of(request: Any) -> tuple[str, str]:
    """Return the owner and the name of the schedule in the headers of a run."""
    owner, name = (
        _text_in(request, header, _NAME_LENGTH) for header in (HEADER_OWNER, HEADER_SCHEDULE)
    )
    return owner or "", name or ""


def origin_of(request: Any) -> str:
    """Return the origin in the headers of a run."""
    return _text_in(request, HEADER_ORIGIN, _NAME_LENGTH) or "schedule"


def attempt_of(request: Any) -> int | None:
    """Return the attempt number in the headers, or None."""
    return _count_of(headers_of(request).get(HEADER_ATTEMPT))


def retries_of(request: Any) -> int | None:
    """Return Celery's count of retries, or None if it is not a count."""
    return _count_of(request.retries or 0)


def deferrals_of(request: Any) -> int:
    """Return how many times the guard has deferred the message."""
    return _count_of(headers_of(request).get(HEADER_DEFERRALS)) or 0


def next_attempt_of(request: Any) -> int:
    """Return the number of the attempt that the message of a run starts."""
    return (attempt_of(request) or 0) + 1


class _Admitted(int):
    """An attempt number that the guard set. No message header can have this type."""


def admit(request: Any, attempt: int | None) -> None:
    """Set the attempt number on the request of a task.

    ``retry()`` copies the headers, so the message of the retry names this attempt.
    """
    request.dynbeat_admitted = None if attempt is None else _Admitted(attempt)
    request.headers = {**headers_of(request), HEADER_ATTEMPT: attempt}


def admitted_attempt(request: Any) -> int | None:
    """Return the attempt number that the guard set in this process, or None."""
    attempt = getattr(request, "dynbeat_admitted", None)
    return int(attempt) if isinstance(attempt, _Admitted) else None


def instant_in(request: Any, header: str) -> datetime | None:
    """Return the instant in a header of the message in UTC, or None without such an instant."""
    written = _text_in(request, header, _INSTANT_LENGTH)
    try:
        instant = None if written is None else datetime.fromisoformat(written)
        return None if instant is None or instant.tzinfo is None else instant.astimezone(UTC)
    # OverflowError means that an offset leads out of the years 1 to 9999.
    except (ValueError, OverflowError):
        return None


def is_awaited(request: Any) -> bool:
    """Return whether another run of the schedule may wait for the end of this run."""
    return HEADER_OVERLAP in headers_of(request)


def wants_pings(message: Any) -> bool:
    """Return whether to report the start and end of this run to a ping URL."""
    return HEADER_PING in headers_of(message)


def retry_at_of(request: Any, *, now: datetime) -> datetime | None:
    """Return when the run whose attempt failed at ``now`` starts again, or None if it does not.

    A run whose task replaced itself does not start again, because other tasks of a chain or group
    may have run.
    """
    written, retries = _text_in(request, HEADER_RETRY, _RETRY_LENGTH), retries_of(request)
    if written is None or retries is None or HEADER_REPLACES in headers_of(request):
        return None
    try:
        retry = stored_retry(json.loads(written))
    except (RecursionError, ValueError):
        return None
    if retry is None:
        return None
    next_fire_at = instant_in(request, HEADER_NEXT_FIRE_AT)
    return retry.retry_at(retries=retries, now=now, next_fire_at=next_fire_at)
