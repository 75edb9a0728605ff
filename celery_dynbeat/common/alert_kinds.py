"""The kinds of alerts, and what messages and pages say about each of them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

#: The ``schedule_id`` of the alerts about beats and workers. No schedule has it.
NO_SCHEDULE = 0


class AlertKind(StrEnum):
    """The kind of an alert. Programs filter by it: a name does not change."""

    #: Without a schedule: a beat cannot send.
    STOPPED = "stopped"
    BEATS_MISSING = "beats_missing"
    WORKERS_MISSING = "workers_missing"
    SILENT = "silent"
    FAILING = "failing"
    LATE = "late"


class Report(StrEnum):
    """The part of an alert that no message has reported yet."""

    OPENED = "opened"
    RECOVERED = "recovered"


class Words(NamedTuple):
    """What an alert says: while it lasts, after it ended unreported, and after its report.

    Each has the verb for one schedule and for several. ``next_step`` is what to do.
    """

    lasts: tuple[str, str]
    over: tuple[str, str]
    ended: tuple[str, str]
    next_step: str


WORDS: Mapping[AlertKind, Words] = {
    AlertKind.STOPPED: Words(
        ("is stopped", "are stopped"),
        ("was stopped", "were stopped"),
        ("is no longer stopped", "are no longer stopped"),
        "correct the cause, then resume or update the schedule",
    ),
    AlertKind.SILENT: Words(
        ("does not run", "do not run"),
        ("did not run", "did not run"),
        ("runs again", "run again"),
        "see with `show --why` why its fire times have no run",
    ),
    AlertKind.FAILING: Words(
        ("is failing", "are failing"),
        ("failed", "failed"),
        ("no longer fails", "no longer fail"),
        "read the error and the traceback of the run",
    ),
    AlertKind.LATE: Words(
        ("is late", "are late"),
        ("was late", "were late"),
        ("is no longer late", "are no longer late"),
        "start more workers if runs wait, or make the task faster if it takes too long",
    ),
}
#: The same for alerts without a schedule.
INSTALLATION_WORDS: Mapping[AlertKind, Words] = {
    AlertKind.STOPPED: Words(
        ("a beat cannot send runs",) * 2,
        ("a beat could not send runs",) * 2,
        ("beats send runs again",) * 2,
        "check the broker; beat sends the waiting runs when it accepts them",
    ),
    AlertKind.BEATS_MISSING: Words(
        ("beats are missing",) * 2,
        ("beats were missing",) * 2,
        ("no beat is missing any more",) * 2,
        "start the missing beats; the log or the host of each one shows why it ended",
    ),
    AlertKind.WORKERS_MISSING: Words(
        ("workers are missing",) * 2,
        ("workers were missing",) * 2,
        ("no worker is missing any more",) * 2,
        "start the missing workers; the log or the host of each one shows why it ended",
    ),
}


def words_of(kind: str, *, schedule_id: int) -> Words:
    """Return the words for an alert."""
    words = (WORDS, INSTALLATION_WORDS)
    first, other = words if schedule_id != NO_SCHEDULE else reversed(words)
    # A row that hand-written SQL has changed may have a kind of the other table.
    return {**other, **first}[AlertKind(kind)]
