"""Write the fields of the events to docs/reference/signals.md: `make docs`.

tests/unit/telemetry/test_signals_page.py fails if the page differs from what this script writes.
"""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from celery_dynbeat import signals

PAGE = Path(__file__).parent / "reference" / "signals.md"
BEGIN, END = "<!-- begin: docs/generate_signals.py -->\n", "<!-- end -->\n"
WIDTH = 120
TYPES = {
    "datetime": "`datetime`, aware, UTC",
    "timedelta": "`timedelta`",
    "NoneType": "None",
}
#: Field, or event and field -> what it means.
MEANINGS = {
    "runs": "the sent runs, in the order of the messages, built when you first read them",
    "run_id": "the id of the run, which is the id of the task",
    "owner": 'the owner; `""` is the application itself',
    "schedule": "the name of the schedule",
    "schedule_id": "the id of the row of the schedule",
    "task": "the name of the task",
    "queue": "the name of the queue. None: unknown",
    "scheduled_for": "the fire time",
    "origin": "`schedule`, `manual`, `backfill` or `rerun`",
    "attempt": "the number of the attempt, from 1",
    "reason": "the reason as text",
    "error": "the type and the text of an exception. None: there was no error",
    "count": "the number of rows or messages",
    "duration": "how long the body of the task took. None: the body did not run here",
    "actor": 'who made the edit; `""` is unknown',
    "SentRun.lag": "the time from the fire time to the send, including the jitter of the schedule",
    "SentRun.sent_before": "whether an earlier message of the run was already sent",
    "RunsSent.kind": "`due`, `overdue` (sent again, or `run_now`), `backfill` or `rerun`",
    "RunsSent.claimed": "the number of runs in the batch",
    "RunsSent.sent": "the number of sent runs",
    "at": "when the event happened, by the clock of the database",
    "exception": "the exception with its traceback. None: there is none",
    "FireTimesSkipped.scheduled_for": "the newest skipped fire time",
    "FireTimesSkipped.count": "the number of skipped fire times",
    "RunStarted.waited": "the time from the send to the start. None: unknown, or a retry",
    "pings": "whether the schedule may have a ping URL",
    "RunRefused.attempt": "the number of the attempt that the message starts. None: unknown",
    "RunRefused.duplicate": "whether another message of the run has started it or will start it",
    "RunRefused.redelivered": "whether the broker delivered the message of a running run again",
    "RunRefused.undecided": "whether the guard failed, or could not reach the database in time",
    "RunDeferred.attempt": "the number of the attempt that the message starts. None: unknown",
    "RunDeferred.seconds": "the number of seconds after which the copy starts",
    "RunEnded.owner": "the owner. None: the message is gone",
    "RunEnded.schedule": "the name of the schedule. None: the message is gone",
    "RunEnded.task": 'the name of the task. `""`: unknown, because the message is gone',
    "RunEnded.status": "a final status of a run, or `retrying`",
    "RunEnded.at": "when the attempt ended",
    "RunEnded.attempt": "the number of the attempt, from 1. None: unknown",
    "RunLost.schedule_id": "the id of the row. None: the schedule was deleted",
    "SentRun.attempt": "the attempt that the message starts",
    "RunLost.worker": "the name of the dead worker",
    "RunLost.sent_again": "whether beat sends the run once more",
    "ScheduleQuarantined.owner": "the owner. None: it cannot be read",
    "ScheduleQuarantined.schedule": "the name. None: it cannot be read",
    "ScheduleQuarantined.error": "the error that the row stores",
    "SchedulePaused.automatic": "whether beat or a worker paused it because its runs failed",
    "failures": "the number of failures in a row that caused the pause. None: a caller paused it",
    "ScheduleRecovered.failing_since": "when the first of the failed runs ended",
    "HoldStarted.owner": "the owner. None: the hold concerns everything",
    "HoldStarted.until": "when the hold ends. None: it lasts until it is released",
    "HoldReleased.owner": "the owner. None: the hold concerns everything",
    "HoldReleased.until": "when the hold would have ended",
    "RetriesResent.count": "the number of retries",
    "PassEnded.duration": "how long the pass took",
    "PassEnded.error": "the class of the error. None: the pass succeeded",
    "PassEnded.is_database_error": "whether the database caused the error",
    "PassEnded.reason": "the summary of the error",
    "PassEnded.retry_seconds": "the seconds until the next try. None: the pass succeeded",
    "PublishFailed.permanent": "whether the schedule is quarantined. If not, beat tries again",
    "resend_after": "`dynbeat_resend_after`",
    "older_than": "the age from which rows are deleted",
    "HistoryPruned.table": "`run` or `change`",
    "HistoryPruned.count": "the number of deleted rows",
    "kind": "the [kind](alerts.md) of the alert",
    "opened_at": "when the alert was opened",
    "AlertOpened.run_id": "the last run that the alert is about, if any",
    "AlertRecovered.run_id": "the last run that the alert is about, if any",
    "value": "how late or how slow the run was. None: the alert is of another kind",
    "detail": "the error, if any",
    "target": "the name of the target",
    "severity": "the severity of the message",
    "message_id": "the id of the message",
    "attempts": "the number of tries",
    "AlertMessageDropped.error": "why the message was dropped",
    "PingsDropped.count": "the number of pings",
    "PingsDropped.repeated": "whether the previous ping was dropped for the same reason",
}


def page(text: str) -> str:
    """Return ``text`` of the page with the present fields of each event."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{''.join(_sections())}{END}{after}"


def _sections() -> Iterator[str]:
    for event in map(vars(signals).get, signals.__all__):
        if dataclasses.is_dataclass(event) and isinstance(event, type):
            yield f"\n### {event.__name__}\n\n{_prose(event)}\n\n{_table(event)}"
    yield "\n"


def _prose(event: type) -> str:
    summary = (event.__doc__ or "").partition("\n\n")[0]
    return textwrap.fill(" ".join(summary.split()).replace("``", "`"), WIDTH)


def _table(event: Any) -> str:
    fields = dataclasses.fields(event)
    if not fields:
        return "It has no fields.\n"
    rows = [
        f"| `{field.name}` | {_type(field.type)} | {_meaning(event, field.name)} |"
        for field in fields
    ]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows, ""])


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Sequence:
        return f"sequence of `{get_args(annotation)[0].__name__}`"
    parts = get_args(annotation) or (annotation,)
    return " or ".join(TYPES.get(part.__name__, f"`{part.__name__}`") for part in parts)


def _meaning(event: type, field: str) -> str:
    return MEANINGS.get(f"{event.__name__}.{field}") or MEANINGS[field]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
