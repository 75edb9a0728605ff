"""The values that a source yields for each of its schedules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from celery_dynbeat.api.edit.source_progress import SourceProgress
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.triggers import Trigger


@dataclass(frozen=True, slots=True)
class Note:
    """A difference in meaning. ``topic`` groups the notes of a report."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A schedule of the source as arguments of ``create()``, and its progress."""

    task: str
    trigger: Trigger
    fields: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    progress: SourceProgress = field(default_factory=SourceProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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


class Source(Protocol):
    """A store of schedules. It is only read."""

    @property
    def package(self) -> str:
        """The name of the scheduler, such as ``django-celery-beat``."""

    def count(self) -> int | None:
        """Return the number of schedules, or None if the source does not know it."""

    def pages(self) -> Iterator[list[Found]]:
        """Yield all schedules, a page at a time. Raises SourceError."""


class SourceError(DynbeatError):
    """The store of the other scheduler cannot be read. The message has no password."""


class Inexpressible(Exception):  # noqa: N818 - a refusal of one schedule, not a failure
    """A schedule has no equal here. The text is the reason."""


class Ended(Exception):  # noqa: N818 - as above
    """The source would not run the schedule again. The text is the reason."""
