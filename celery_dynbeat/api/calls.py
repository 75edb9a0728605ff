"""The common parts of all calls of the API: their scope, filters and audit."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from datetime import datetime
from typing import Any, Self, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import acting_as
from celery_dynbeat.common.text import suggestion
from celery_dynbeat.process.context import Context

T = TypeVar("T")
#: Called with the number of rows that are done so far.
Progress = Callable[[int], object]


class Calls:
    """Calls on the rows of one owner, or of all owners. Each is defined once.

    They can be bound to a session, an actor and a reason.
    """

    def __init__(self, context: Context, owner: str | None) -> None:
        self._context = context
        #: None means all owners.
        self._owner = owner
        self._session: Session | None = None
        self._actor: str | None = None
        self._reason: str | None = None

    def bound(
        self,
        *,
        session: Session | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Self:
        """Return the same calls in a transaction, and in the name of an actor.

        - Calls with a ``session`` join its transaction and do not commit. A rollback by the caller
          undoes them. Beat is notified when the caller commits.
        - ``actor`` and ``reason`` are recorded in the audit of each change. ``actor`` has at most
          255 characters, such as the name of a user. ``reason`` has at most 1,024.

        An argument that is None keeps what these calls are bound to. Without an actor or a reason,
        the calls take those of ``Dynbeat.acting``. Raises InvalidScheduleError for an invalid actor
        or reason.
        """
        if actor is not None:
            checks.check_name("actor", actor, empty=True)
        if reason is not None:
            checks.check_text("reason", reason)
        calls = copy(self)
        given = {"_session": session, "_actor": actor, "_reason": reason}
        vars(calls).update({name: value for name, value in given.items() if value is not None})
        return calls

    def _acting(self, reason: str | None = None) -> AbstractContextManager[None]:
        """Do the edits of a block in the name of the actor. ``reason`` replaces the bound one."""
        return acting_as(actor=self._actor, reason=self._reason if reason is None else reason)

    def _write(self, work: Callable[[Session], T], *, reason: str | None = None) -> T:
        """Do ``work`` in the bound transaction or in a new one, in the name of the actor."""
        with self._acting(reason):
            return self._context.write(self._session, work)

    def _read(self, work: Callable[[Session], T]) -> T:
        return self._context.read(self._session, work)

    def _read_many(self, work: Callable[[Session], T]) -> T:
        return self._context.read_many(self._session, work)

    def _now(self) -> datetime:
        return self._context.now(self._session)

    def _in_scope(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the filter with each key of the TypedDict ``kind``, within the scope.

        Raises InvalidScheduleError for another key, and for an owner outside the scope.
        """
        names = kind.__annotations__
        for name in given.keys() - names.keys():
            rule = f"there is no such filter; {checks.BINDING.get(name) or suggestion(name, names)}"
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
