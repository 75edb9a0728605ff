"""What the headers of a message say of its run, and which of them are nobody else's to write."""

from datetime import datetime
from typing import Any

from celery.app.task import Context

from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.planning.outgoing_run import OutgoingRun

HEADER_RUN_ID = "dynbeat_run_id"
HEADER_SCHEDULE = "dynbeat_schedule"
HEADER_OWNER = "dynbeat_owner"
HEADER_SCHEDULED_FOR = "dynbeat_scheduled_for"
#: In a message: the attempt that it follows. In a task: the attempt that is being made, from 1.
HEADER_ATTEMPT = "dynbeat_attempt"
#: Sent with the runs that expire: a first start after it is refused.
HEADER_EXPIRES_AT = "dynbeat_expires_at"
#: Sent with the runs that another may wait for, so that the others cost their worker nothing.
HEADER_OVERLAP = "dynbeat_overlap"

#: Headers that are the message itself in Celery's protocol 2, or task.request in the worker: one of
#: a caller's would name another task, or pass by the guard.
_CELERYS = frozenset(vars(Context)) | {
    *("lang", "task", "argsrepr", "kwargsrepr", "compression", "group_index", "stamps"),
    *("stamped_headers", "replaced_task_nesting", "celery_beat_task", "periodic_task_name"),
}
#: When a message was put off before.
HEADER_PUT_OFF_AT = "dynbeat_put_off_at"


def is_reserved(header: str) -> bool:
    """Return whether Celery or this package writes the header, and nobody else may."""
    return header in _CELERYS or header.startswith("dynbeat_")


def run_headers(run: OutgoingRun) -> dict[str, Any]:
    """Return the headers that tell a task which run it is."""
    given: dict[str, Any] = run.options.get("headers", {})
    return {
        # The API refuses what is reserved; a row that was typed by hand may hold it.
        **{key: value for key, value in given.items() if not is_reserved(key)},
        HEADER_RUN_ID: run.run_id,
        HEADER_SCHEDULE: run.name,
        HEADER_OWNER: run.owner,
        HEADER_SCHEDULED_FOR: run.scheduled_for.isoformat(),
        HEADER_ATTEMPT: run.attempt,
        **({HEADER_EXPIRES_AT: run.expires_at.isoformat()} if run.expires_at else {}),
        **({HEADER_OVERLAP: run.overlap} if run.overlap == "buffer_one" else {}),
        # What other tools know a scheduled task by.
        "celery_beat_task": True,
        "periodic_task_name": run.name,
    }


def run_id_of(request: Any) -> str | None:
    """Return the run that a message claims to be, or None when no schedule sent it."""
    if request is None or request.called_directly or request.is_eager:
        return None
    return claimed_run_id(request)


def claimed_run_id(request: Any) -> str | None:
    """Return the run that a message claims to be, also when it was never executed."""
    run_id = (request.headers or {}).get(HEADER_RUN_ID)
    return run_id if run_id == request.id and is_run_id(run_id) else None


def attempt_of(request: Any) -> int | None:
    """Return the attempt that the headers name, or None when they name none."""
    attempt = (getattr(request, "headers", None) or {}).get(HEADER_ATTEMPT)
    return attempt if isinstance(attempt, int) else None


class _Admitted(int):
    """An attempt that the guard admitted. Of a type that no header of a message can have."""


def admit(request: Any, attempt: int | None) -> None:
    """Note on the request of a task which attempt it is.

    Celery's retry takes the headers along, so its message follows this attempt.
    """
    request.dynbeat_admitted = None if attempt is None else _Admitted(attempt)
    request.headers = {**(request.headers or {}), HEADER_ATTEMPT: attempt}


def admitted_attempt(request: Any) -> int | None:
    """Return the attempt that was admitted in this process, or None when the guard did not."""
    attempt = getattr(request, "dynbeat_admitted", None)
    return int(attempt) if isinstance(attempt, _Admitted) else None


def instant_in(request: Any, header: str) -> datetime | None:
    """Return the instant that a header of the message names, or None without one."""
    written = (request.headers or {}).get(header)
    return None if written is None else datetime.fromisoformat(written)


def is_awaited(request: Any) -> bool:
    """Return whether another run of the schedule may wait for this one to end."""
    return HEADER_OVERLAP in (request.headers or {})
