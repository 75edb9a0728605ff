"""The content of a notice to an owner.

It is for end users, so it contains no errors, tasks, hosts or ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.common.alert_kinds import NoticeKind, Severity
from celery_dynbeat.common.text import escape

#: Notices that the text of a message shows.
MAX_SHOWN = 20
_ONE = {
    NoticeKind.FAILING: "fails",
    NoticeKind.PAUSED: "was paused",
    NoticeKind.CANNOT_RUN: "cannot run",
    NoticeKind.WORKS_AGAIN: "works again",
    NoticeKind.CAN_RUN_AGAIN: "can run again",
}
_SEVERAL = {
    NoticeKind.FAILING: "fail",
    NoticeKind.PAUSED: "were paused",
    NoticeKind.CANNOT_RUN: "cannot run",
    NoticeKind.WORKS_AGAIN: "work again",
    NoticeKind.CAN_RUN_AGAIN: "can run again",
}
_ENDED = (NoticeKind.WORKS_AGAIN, NoticeKind.CAN_RUN_AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The event that a notice reports about one schedule. Instants are in ISO format, in UTC.

    ``until`` is when it recovered. ``failures`` is the number of failures in a row that paused it.
    ``time_zone`` is the zone of the owner.
    """

    owner: str
    schedule: str
    kind: NoticeKind
    since: str
    until: str | None
    next_run: str | None
    time_zone: str
    failures: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeContent:
    """The notices of one message, all for one owner."""

    notices: Sequence[Notice]

    @property
    def severity(self) -> Severity:
        """The severity of the message."""
        ended = all(each.kind in _ENDED or each.until for each in self.notices)
        return Severity.INFO if ended else Severity.ERROR

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"notices": [asdict(each) for each in self.notices]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "NoticeContent":
        """Return the content of ``to_json``."""
        notices = [
            Notice(**{**each, "kind": NoticeKind(each["kind"])})
            for each in stored.get("notices", ())
        ]
        return cls(notices=notices)


def as_kwargs(notice: Notice) -> dict[str, Any]:
    """Return the keyword arguments of a task, which a JSON webhook also gets."""
    name = escape(" ".join(notice.schedule.split()))
    return {
        "owner": notice.owner,
        "schedule": notice.schedule,
        "kind": notice.kind.value,
        "since": notice.since,
        "until": notice.until,
        "next_run": notice.next_run,
        "time_zone": notice.time_zone,
        "text": f"{name} {sentence(notice)}",
    }


def verb(notice: Notice) -> str:
    """Return the verb for a schedule."""
    return "failed" if notice.until is not None else _ONE[notice.kind]


def summary(notices: Sequence[Notice]) -> str:
    """Return what several schedules do, in the order of the notices."""
    parts = []
    for kind in dict.fromkeys(each.kind for each in notices):
        number = sum(each.kind is kind for each in notices)
        words = f"schedule {_ONE[kind]}" if number == 1 else f"schedules {_SEVERAL[kind]}"
        parts.append(f"{number:,} {words}")
    return ", ".join(parts)


def sentence(notice: Notice) -> str:
    """Return what follows the name of the schedule, in the time zone of its owner."""
    since = _local(notice.since, notice.time_zone)
    if notice.until is not None:
        until = _local(notice.until, notice.time_zone)
        text = f"{_past(notice)} at {since} and has worked again since {until}."
    else:
        text = _present(notice, since)
    if notice.next_run is None:
        return text
    return f"{text} Next run: {_local(notice.next_run, notice.time_zone)}."


def _past(notice: Notice) -> str:
    words = {NoticeKind.FAILING: "failed", NoticeKind.PAUSED: "was paused"}
    return words.get(notice.kind, "could not run")


def _present(notice: Notice, since: str) -> str:
    if notice.kind is NoticeKind.PAUSED:
        times = notice.failures
        why = "it failed" if times in (None, 1) else f"it failed {times} times in a row"
        return f"was paused at {since}, because {why}. It does not run until you resume it."
    if notice.kind is NoticeKind.CANNOT_RUN:
        stopped = f"has not been able to run since {since}."
        return f"{stopped} It does not run until it is changed or resumed."
    if notice.kind is NoticeKind.FAILING:
        return f"has been failing since {since}."
    if notice.kind is NoticeKind.WORKS_AGAIN:
        return f"has worked again since {since}."
    return f"has been able to run again since {since}."


def _local(instant: str, zone: str) -> str:
    at = datetime.fromisoformat(instant)
    try:
        local = at.astimezone(ZoneInfo(zone))
    # Only manual SQL writes such a zone.
    except (KeyError, ValueError, OSError):
        local, zone = at.astimezone(UTC), "UTC"
    return f"{local:%Y-%m-%d %H:%M} ({zone})"
