"""Write the fields of the events to docs/reference/signals.md: `make docs`.

tests/unit/telemetry/test_signals_page.py fails if the page differs from what this script writes.
"""

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from celery_dynbeat import signals

PAGE = Path(__file__).parent / "reference" / "signals.md"
#: A field with the same type and meaning in more events than this is described once.
SHARED_BY = 2
WIDTH = 120
BEGIN, END = "<!-- begin: docs/generate_signals.py -->\n", "<!-- end -->\n"
#: Field, or event and field -> what it means.
MEANINGS = {
    "runs": ("the sent runs, in the order of their messages"),
    "run_id": "the id of the run, which is the id of the task",
    "owner": 'the owner, or `""` for the application itself',
    "schedule": "the name of the schedule",
    "schedule_id": (
        "the id of the schedule's row. It is 0 in an alert about the installation, which has no"
        " owner, schedule or task"
    ),
    "task": "the name of the task",
    "queue": "the name of the queue, or None if it is unknown",
    "fire_at": "the fire time",
    "origin": "where the run comes from: `schedule`, `manual`, `backfill` or `rerun`",
    "attempt": "the number of the attempt, counted from 1",
    "reason": "the reason as text",
    "error": "the type and the text of the exception, or None if there was no error",
    "count": "the number of rows or messages",
    "duration": "how long the body of the task took, or None if this process did not execute it",
    "actor": 'who made the edit, or `""` if this is unknown',
    "SentRun.lag": (
        "the time from the fire time until the run was sent, including the offset in the window"
    ),
    "SentRun.sent_before": "whether an earlier message of the run had already been sent",
    "RunsSent.kind": (
        "`due`, or `overdue` for runs that are sent again and for runs of `run_now`, backfills and"
        " reruns"
    ),
    "RunsSent.claimed": "the number of runs in the batch",
    "RunsSent.sent": "the number of sent runs",
    "at": "when the event happened, according to the clock of the database",
    "exception": "the exception with its traceback, or None if there is none",
    "FireTimesSkipped.fire_at": "the newest skipped fire time",
    "FireTimesSkipped.count": "the number of skipped fire times",
    "RunStarted.waited": (
        "the time from sending to the start, or None if it is unknown or the attempt is a retry"
    ),
    "pings": "whether the schedule may have a ping URL",
    "RunRefused.attempt": ("the attempt that the message would start, or None if it is unknown"),
    "RunRefused.duplicate": (
        "whether another message of the run has started the run or will start it"
    ),
    "RunRefused.redelivered": (
        "whether the broker redelivered the message of a run that is still running"
    ),
    "RunRefused.undecided": "whether the guard failed, or could not reach the database in time",
    "RunDeferred.attempt": ("the attempt that the message would start, or None if it is unknown"),
    "RunDeferred.seconds": "the number of seconds after which the copy is due",
    "RunEnded.owner": "the owner, or None if the message is gone",
    "RunEnded.schedule": "the name of the schedule, or None if the message is gone",
    "RunEnded.task": 'the name of the task, or `""` if the message is gone',
    "RunEnded.status": "a final status of the run, or `retrying`",
    "RunEnded.at": "when the attempt ended",
    "RunEnded.attempt": "the number of the attempt, or None if it is unknown",
    "RunLost.schedule_id": "the id of the schedule's row, or None if the schedule was deleted",
    "SentRun.attempt": "the number of the attempt that the message starts",
    "RunLost.worker": "the name of the dead worker",
    "RunLost.sent_again": "whether beat sends the run again",
    "ScheduleQuarantined.error": "the error, as it is stored in the row",
    "SchedulePaused.automatic": (
        "whether beat or a worker paused the schedule because its runs failed"
    ),
    "failures": ("the number of failures in a row, or None if a caller paused the schedule"),
    "ScheduleRecovered.failing_since": "when the first of the failed runs ended",
    "HoldStarted.owner": "the owner, or None if the hold concerns everything",
    "HoldReleased.owner": "the owner, or None if the hold concerns everything",
    "until": "the end that was set for the hold, or None if the hold has no end",
    "RetriesResent.count": "the number of retries",
    "PassEnded.duration": "how long the pass took",
    "PassEnded.error": "the class of the error, or None if the pass succeeded",
    "PassEnded.is_database_error": "whether the database caused the error",
    "PassEnded.reason": "a summary of the error, or None if the pass succeeded",
    "PassEnded.retry_seconds": (
        "the number of seconds until the next try, or None if the pass succeeded"
    ),
    "PublishFailed.permanent": ("whether the schedule is quarantined. Otherwise, beat tries again"),
    "resend_after": "the value of `dynbeat_resend_after`",
    "older_than": "the minimum age of the rows that are deleted",
    "HistoryPruned.table": "the table: `run` or `change`",
    "HistoryPruned.count": "the number of deleted rows",
    "kind": "the [kind](../how-to/monitor.md#alerts) of the alert",
    "opened_at": "when the alert opened",
    "AlertOpened.run_id": "the id of the run that the alert is about, or None if there is none",
    "AlertRecovered.run_id": "the id of the run that the alert is about, or None if there is none",
    "cause": "why the alert opened",
    "url": "the position of the URL in `dynbeat_alert_urls`, from 1",
    "alerts": "the number of alerts",
    "AlertMessageDropped.error": "why the URL refused the message",
    "PingsDropped.count": "the number of pings",
    "PingsDropped.repeated": "whether the previous ping was dropped for the same reason",
}


class Field(NamedTuple):
    """A field of an event, as the page shows it."""

    name: str
    type: str
    meaning: str


def page(text: str) -> str:
    """Return ``text`` of the page with the present fields of each event."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{''.join(_sections())}{END}{after}"


def _sections() -> Iterator[str]:
    events = [
        each
        for each in map(vars(signals).get, signals.__all__)
        if dataclasses.is_dataclass(each) and isinstance(each, type)
    ]
    counts = Counter(field for event in events for field in _fields(event))
    shared = [field for field in counts if counts[field] > SHARED_BY]
    yield f"\n### Shared fields\n\n{_list(shared)}"
    names: dict[tuple[Field, ...], list[str]] = {}
    for event in events:
        names.setdefault(_fields(event), []).append(event.__name__)
    for fields, titles in names.items():
        yield f"\n### {', '.join(titles)}\n"
        if common := [f"`{field.name}`" for field in fields if field in shared]:
            yield f"\nShared fields: {', '.join(common)}.\n"
        if own := [field for field in fields if field not in shared]:
            yield f"\n{_list(own)}"
        if not fields:
            yield "\nNo fields.\n"
    yield "\n"


def _fields(event: Any) -> tuple[Field, ...]:
    return tuple(
        Field(each.name, _type(each.type), _meaning(event, each.name))
        for each in dataclasses.fields(event)
    )


def _list(fields: Iterable[Field]) -> str:
    lines = [f"- `{each.name}` ({each.type}): {each.meaning}" for each in fields]
    return "".join(
        textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False) + "\n"
        for line in lines
    )


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Sequence:
        return f"sequence of `{get_args(annotation)[0].__name__}`"
    parts = get_args(annotation) or (annotation,)
    return " or ".join("None" if part is NoneType else f"`{part.__name__}`" for part in parts)


def _meaning(event: type, field: str) -> str:
    return MEANINGS.get(f"{event.__name__}.{field}") or MEANINGS[field]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
