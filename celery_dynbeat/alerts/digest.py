"""What a message says about alerts: a title, a text, and the fields of a webhook."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from celery_dynbeat.alerts.text import shown
from celery_dynbeat.common.alert_kinds import NO_SCHEDULE, AlertKind, Report, words_of
from celery_dynbeat.common.text import counted, error_cause
from celery_dynbeat.db.statements import Row

#: Alerts of one error, and groups of one kind, that a message shows; alerts in its fields.
MAX_EXAMPLES, MAX_CAUSES, MAX_FIELDS = 5, 10, 100
TITLE_LENGTH = 200
_ORDER = {kind.value: number for number, kind in enumerate(AlertKind)}


class Digest(NamedTuple):
    """A message. ``type`` is Apprise's type of notifications."""

    title: str
    body: str
    type: str
    fields: Mapping[str, Any]


def digest_of(
    rows: Sequence[Row],
    *,
    still_open: Mapping[str, int],
    application: str | None,
    flower_url: str | None,
) -> Digest:
    """Return the message about unreported alerts.

    ``still_open`` is the number of open alerts by kind.
    """
    groups = _grouped(rows, key=lambda row: (_state(row), _ORDER[row.kind], row.schedule_id == 0))
    titles, parts = [], []
    for members in groups:
        title = _title(members)
        titles.append(title)
        heading = [f"{title[:1].upper()}{title[1:]}:"]
        causes = _grouped(members, key=lambda row: (row.task, error_cause(row.cause)))
        links = {"application": application, "flower_url": flower_url}
        for cause in causes[:MAX_CAUSES]:
            heading += _cause(cause, **links)
        if len(causes) > MAX_CAUSES:
            heading.append(f"... and {counted(len(causes) - MAX_CAUSES, 'other cause')}")
        parts.append("\n".join(heading))
    ended = any(row.unreported == Report.RECOVERED for row in rows)
    left = ", ".join(f"{number} {kind}" for kind, number in sorted(still_open.items()))
    if ended:
        parts.append(f"Still open: {left}." if left else "No alert is open.")
    prefix = f"[{shown(application)}] " if application else ""
    is_good = all(_state(row) for row in rows)
    fields = [fields_of(row, flower_url=flower_url) for row in rows[:MAX_FIELDS]]
    return Digest(
        title=f"{prefix}{', '.join(titles)}"[:TITLE_LENGTH],
        body="\n\n".join(parts),
        type="info" if is_good else "failure",
        fields={"application": application, "total": len(rows), "alerts": fields},
    )


def fields_of(row: Row, *, flower_url: str | None) -> dict[str, Any]:
    """Return an alert as JSON values."""
    return {
        "kind": row.kind,
        "state": ("open", "over", "recovered")[_state(row)],
        "owner": row.owner,
        "schedule": row.name,
        "task": row.task,
        "cause": row.cause,
        "run_id": row.run_id,
        "opened_at": f"{row.opened_at:%Y-%m-%dT%H:%M:%SZ}",
        "recovered_at": row.recovered_at and f"{row.recovered_at:%Y-%m-%dT%H:%M:%SZ}",
        "link": link(row, flower_url=flower_url),
    }


def _grouped(rows: Iterable[Row], *, key: Any) -> Sequence[Sequence[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    ordered = sorted(groups.items(), key=lambda each: str(each[0]))
    return [members for _, members in ordered]


def _state(row: Row) -> int:
    """Return 0 while the alert is open, 1 if it ended before its report, 2 if it was reported."""
    if row.unreported == Report.RECOVERED:
        return 2
    return 0 if row.recovered_at is None else 1


def _title(rows: Sequence[Row]) -> str:
    first = rows[0]
    words = words_of(first.kind, schedule_id=first.schedule_id)
    verbs = (words.lasts, words.over, words.ended)[_state(first)]
    if first.schedule_id == NO_SCHEDULE:
        return verbs[0]
    if len(rows) == 1:
        return f"{_name(first)} {verbs[0]}"
    return f"{counted(len(rows), 'schedule')} {verbs[1]}"


def _name(row: Row) -> str:
    return shown(row.name) + (f" of {shown(row.owner)}" if row.owner else "")


def _cause(rows: Sequence[Row], *, application: str | None, flower_url: str | None) -> list[str]:
    """Return the lines about alerts of one task and cause."""
    first, state = rows[0], _state(rows[0])
    lines = []
    # A cause in a message about what has recovered would read as if it lasted.
    if state < 2:  # noqa: PLR2004
        about = f"task {shown(first.task)}: " if first.task else ""
        number = f"{counted(len(rows), 'schedule')}, " if len(rows) > 1 else ""
        lines.append(f"  {number}{about}{shown(first.cause)}")
    for row in rows[:MAX_EXAMPLES]:
        since = f"since {row.opened_at:%Y-%m-%d %H:%M:%SZ}"
        if row.recovered_at is not None:
            since = f"from {row.opened_at:%Y-%m-%d %H:%M:%SZ} to {row.recovered_at:%H:%M:%SZ}"
        named = f"{_name(row)} " if row.name else ""
        lines.append(f"- {named}{since}")
        if (url := link(row, flower_url=flower_url)) is not None:
            lines.append(f"  {url}")
    if len(rows) > MAX_EXAMPLES:
        lines.append(f"- ... and {len(rows) - MAX_EXAMPLES:,} more")
    if state == 0:
        step = words_of(first.kind, schedule_id=first.schedule_id).next_step
        lines.append(f"  Next: {step}. {_command(first, application)}")
    return lines


def link(row: Row, *, flower_url: str | None) -> str | None:
    """Return the page of Flower about an alert, or None if its address is not known."""
    if flower_url is None:
        return None
    if row.schedule_id == NO_SCHEDULE:
        return f"{flower_url}/dynbeat/nodes"
    if row.run_id is not None:
        return f"{flower_url}/dynbeat/run/{row.run_id}"
    return f"{flower_url}/dynbeat/schedule?{urlencode({'owner': row.owner, 'name': row.name})}"


def _command(row: Row, application: str | None) -> str:
    dynbeat = f"celery -A {shlex.quote(application or 'your_app')} dynbeat"
    if row.schedule_id == NO_SCHEDULE:
        return f"{dynbeat} status"
    owner = f" --owner={shlex.quote(row.owner)}" if row.owner else ""
    command = f"{dynbeat} show --why{owner} -- {shlex.quote(row.name)}"
    # A name with markup or control characters cannot be shown as it is.
    return command if shown(command) == command else f"{dynbeat} alerts"
