"""The results of edits of many schedules."""

from collections.abc import Sequence
from dataclasses import dataclass

from celery_dynbeat.api.results.base import Info

#: Failures that a result names.
MAX_FAILURES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFailure(Info):
    """A schedule that a bulk edit did not change, and the error."""

    owner: str
    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult(Info):
    """The numbers of schedules in a bulk edit. ``matched`` is the sum of the other numbers.

    - ``changed`` schedules were changed or deleted.
    - ``unchanged`` schedules were already in the requested state.
    - ``failed`` schedules caused an error. ``failures`` has the first 100 of them.
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
