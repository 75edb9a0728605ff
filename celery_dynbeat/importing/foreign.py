"""A schedule of another scheduler, and what the import does with it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from celery_dynbeat.api.edits import SourceProgress
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.triggers import Trigger


@dataclass(frozen=True, slots=True)
class Note:
    """A difference in meaning. ``topic`` groups the notes of a report."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A foreign schedule as arguments of ``create()``, and its progress."""

    task: str
    trigger: Trigger
    fields: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    progress: SourceProgress = field(default_factory=SourceProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignEntry:
    """One schedule of the source.

    - ``described`` is the schedule in the words of the source.
    - ``row`` is what ``--owner-from`` receives.
    - ``converted`` is None if the schedule is not imported: ``refused`` describes the part that
      cannot be expressed. ``ended`` is the reason why the source would not run it again either.
    """

    name: str
    described: str
    row: Mapping[str, Any] = field(repr=False)
    converted: Converted | None = None
    refused: str | None = None
    ended: str | None = None
    notes: tuple[Note, ...] = ()


def with_conversion(
    entry: ForeignEntry, convert: Callable[[], tuple[Converted, Iterable[Note]]]
) -> ForeignEntry:
    """Return the entry with the schedule that ``convert`` returns, or with why there is none."""
    try:
        converted, notes = convert()
    except Inexpressible as reason:
        return replace(entry, refused=str(reason))
    except Ended as reason:
        return replace(entry, ended=str(reason))
    return replace(entry, converted=converted, notes=tuple(notes))


class ImportOutcome(StrEnum):
    """The action of the import for one schedule."""

    CREATE = "create"
    UPDATE = "update"
    ADVANCE = "advance"
    PAUSE = "pause"
    KEEP = "keep"
    SKIP = "skip"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The action of the import for ``entry``, which a dry run only reports.

    ``trigger`` is the new trigger in words. ``reason`` says why the schedule is skipped, refused or
    created paused, or what changes.
    """

    entry: ForeignEntry
    owner: str
    outcome: ImportOutcome
    trigger: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "outcome": str(self.outcome),
            "owner": self.owner,
            "name": self.entry.name,
            "before": self.entry.described,
            "after": self.trigger,
            "reason": self.reason,
            "notes": [{"topic": note.topic, "text": note.text} for note in self.entry.notes],
        }


class Source(Protocol):
    """A store of schedules. It is only read."""

    @property
    def package(self) -> str:
        """The name of the scheduler, such as ``django-celery-beat``."""

    def count(self) -> int | None:
        """Return the number of schedules, or None if the source does not know it."""

    def pages(self) -> Iterator[list[ForeignEntry]]:
        """Yield all schedules, a page at a time. Raises SourceError."""


class SourceError(DynbeatError):
    """The store of the other scheduler cannot be read. The message has no password."""


class Inexpressible(Exception):  # noqa: N818 - a refusal of one schedule, not a failure
    """A schedule has no equal here. The text is the reason."""


class Ended(Exception):  # noqa: N818 - as above
    """The source would not run the schedule again. The text is the reason."""
