"""The search above the schedules: ``owner:user:42 task:report.digest tag:vip name:dig``. PURE."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from celery_dynbeat.flower.base.search_text import parse_terms, search_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSearch:
    """The search for the schedules of a list. None means any.

    ``owner``, ``task`` and ``tag`` are exact, ``owner_prefix`` and ``name`` are prefixes, and
    ``text`` is a part of the owner or of the name. The owner "" is the application itself.
    """

    owner: str | None = None
    owner_prefix: str | None = None
    task: str | None = None
    tag: str | None = None
    name: str | None = None
    text: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ScheduleSearch":
        """Return the search of a text.

        A word without a key is a name prefix. A word with an unknown key is a ``text``. Raises
        SearchError.
        """
        return cls(**parse_terms(text, keys=KEYS, default="name"))

    def arguments(self) -> Mapping[str, str | None]:
        """Return the search as arguments of a URL."""
        return asdict(self)

    def __str__(self) -> str:
        return search_text(self.arguments())


KEYS = tuple(field.name for field in fields(ScheduleSearch))
