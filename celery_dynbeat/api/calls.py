"""The common parts of all calls of the API: their scope, filters and audit."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import acting_as
from celery_dynbeat.common.text import suggestion
from celery_dynbeat.process.context import Context

T = TypeVar("T")
#: Called with the number of rows that are done so far.
Progress = Callable[[int], object]


class Calls:
    """Calls on the rows of one owner, or of all owners. Each is defined once."""

    def __init__(self, context: Context, owner: str | None) -> None:
        self._context = context
        #: None means all owners.
        self._owner = owner

    def _write(
        self,
        session: Session | None,
        work: Callable[[Session], T],
        *,
        actor: str | None,
        reason: str | None,
    ) -> T:
        """Do ``work`` in the caller's transaction or in a new one, in the name of ``actor``.

        None takes the actor and the reason of ``acting()``.
        """
        with acting_as(actor=actor, reason=reason):
            return self._context.write(session, work)

    def _in_scope(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the filter with each key of the TypedDict ``kind``, within the scope.

        Raises InvalidScheduleError for another key, and for an owner outside the scope.
        """
        names = kind.__annotations__
        for name in given.keys() - names.keys():
            rule = f"there is no such filter; {suggestion(name, names)}"
            raise checks.invalid(name, given[name], rule)
        matching = {**dict.fromkeys(names), **given}
        owner = matching["owner"]
        if owner is not None:
            checks.check_owner(owner)
        if self._owner is not None and owner not in {None, self._owner}:
            whose = f"owner {self._owner!r}"
            rule = f"is outside the scope of these calls, {whose}: call for_owner() with it"
            raise checks.invalid("owner", owner, rule)
        return {**matching, "owner": self._owner if owner is None else owner}
