"""What the headers of a message say of its run, and which of them are nobody else's to write."""

from typing import Any

from celery.app.task import Context

from celery_dynbeat import ids

HEADER_RUN_ID = "dynbeat_run_id"
HEADER_SCHEDULE = "dynbeat_schedule"
HEADER_OWNER = "dynbeat_owner"
HEADER_SCHEDULED_FOR = "dynbeat_scheduled_for"
#: Sent with the runs that another may wait for, so that the others cost their worker nothing.
HEADER_OVERLAP = "dynbeat_overlap"

#: Headers that are the message itself in Celery's protocol 2, or task.request in the worker: one of
#: a caller's would name another task, or pass by the guard.
_CELERYS = frozenset(vars(Context)) | {
    *("lang", "task", "argsrepr", "kwargsrepr", "compression", "group_index", "stamps"),
    *("stamped_headers", "replaced_task_nesting", "celery_beat_task", "periodic_task_name"),
}
#: When, and by which process, a message was put off before.
HEADER_PUT_OFF_AT = "dynbeat_put_off_at"
HEADER_PUT_OFF_BY = "dynbeat_put_off_by"


def is_reserved(header: str) -> bool:
    """Return whether Celery or this package writes the header, and nobody else may."""
    return header in _CELERYS or header.startswith("dynbeat_")


def run_id_of(request: Any) -> str | None:
    """Return the run that a message claims to be, or None when no schedule sent it."""
    if request is None or request.called_directly or request.is_eager:
        return None
    return claimed_run_id(request)


def claimed_run_id(request: Any) -> str | None:
    """Return the run that a message claims to be, also when it was never executed."""
    run_id = (request.headers or {}).get(HEADER_RUN_ID)
    return run_id if run_id == request.id and ids.is_run_id(run_id) else None


def is_awaited(request: Any) -> bool:
    """Return whether another run of the schedule may wait for this one to end."""
    return HEADER_OVERLAP in (request.headers or {})
