"""What the API returns for an edit of many schedules."""

from collections.abc import Sequence
from dataclasses import dataclass

from celery_dynbeat.api.results.base import Info

#: Failures that a result names.
MAX_FAILURES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFailure(Info):
    """A schedule that an edit of many did not change, and the error."""

    owner: str
    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult(Info):
    """The numbers of schedules of an edit of many: ``matched`` is the sum of the others.

    - ``changed``: the edit changed or deleted them.
    - ``unchanged``: they were as the edit wants them.
    - ``failed``: an error refused the edit. ``failures`` are the first 100 of them.
    """

    matched: int = 0
    changed: int = 0
    unchanged: int = 0
    failed: int = 0
    failures: Sequence[BulkFailure] = ()

    def plus(self, other: "BulkResult") -> "BulkResult":
        """Return the result of both edits."""
        return BulkResult(
            matched=self.matched + other.matched,
            changed=self.changed + other.changed,
            unchanged=self.unchanged + other.unchanged,
            failed=self.failed + other.failed,
            failures=(*self.failures, *other.failures)[:MAX_FAILURES],
        )
