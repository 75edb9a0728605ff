"""The calls of AsyncDynbeat, each of which awaits the synchronous call of the same name.

The functions are made here from the methods of ``Schedules`` and ``OwnerSchedules``, with their
docstrings and signatures. ``async_calls.pyi`` has their types; `make docs` writes it.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from functools import wraps
from typing import Any, Self, TypeVar, get_args, get_origin

from celery_dynbeat.api.calendars import Calendars
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.many import ManyCalls
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.api.schedules import Schedules
from celery_dynbeat.process.async_context import AnyAsyncSession, AsyncContext

C = TypeVar("C", bound=type)


def _awaiting(kind: type) -> Callable[[C], C]:
    """Add an asynchronous call for each call of ``kind`` that the class does not have."""

    def add(asynchronous: C) -> C:
        for name, call in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and not hasattr(asynchronous, name):
                setattr(asynchronous, name, _awaited(call))
        return asynchronous

    return add


def _awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the asynchronous function for ``call``.

    If ``call`` returns an iterator, the function yields the same items.
    """
    signature = inspect.signature(call)
    returns = signature.return_annotation

    @wraps(call)
    async def awaited(self: "_AsyncCalls", *args: Any, **given: Any) -> Any:
        return await self._context.call(self._session, self._work(call, args, given))

    @wraps(call)
    def iterated(self: "_AsyncCalls", *args: Any, **given: Any) -> Any:
        return self._context.iterate(self._session, self._work(call, args, given))

    made: Any = awaited
    if get_origin(returns) is Iterator:
        made, returns = iterated, AsyncIterator[get_args(returns)]  # type: ignore[misc]
    made.__signature__ = signature.replace(return_annotation=returns)
    made.__module__ = __name__
    return made  # type: ignore[no-any-return]


class _AsyncCalls:
    def __init__(self, context: AsyncContext, calls: Calls) -> None:
        self._context, self._calls = context, calls
        self._session: AnyAsyncSession | None = None

    def bound(
        self,
        *,
        session: AnyAsyncSession | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Self:
        """Return the same calls in a transaction, and in the name of an actor. It is not awaited.

        ``session`` is an ``AsyncSession``. The rest is as in ``Schedules.bound``.
        """
        calls = copy(self)
        bound = self._calls.bound(actor=actor, reason=reason)
        vars(calls).update(_calls=bound, _session=self._session if session is None else session)
        return calls

    def _work(self, call: Callable[..., Any], args: Any, given: Any) -> Callable[[Any], Any]:
        return lambda session: call(self._calls.bound(session=session), *args, **given)


@_awaiting(ManyCalls)
class AsyncSharedCalls(_AsyncCalls):
    """The asynchronous calls that exist both for one owner and for all owners."""


@_awaiting(OwnerSchedules)
class AsyncOwnerSchedules(AsyncSharedCalls):
    """The calls of ``OwnerSchedules``, awaited."""

    def __init__(self, context: AsyncContext, calls: OwnerSchedules) -> None:
        super().__init__(context, calls)
        self.owner = calls.owner


@_awaiting(Schedules)
class AsyncSchedules(AsyncSharedCalls):
    """The calls of ``Schedules``, awaited."""

    _calls: Schedules

    def __init__(self, context: AsyncContext) -> None:
        super().__init__(context, Schedules(context))

    def for_owner(
        self,
        owner: str,
        *,
        session: AnyAsyncSession | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> AsyncOwnerSchedules:
        """Return the schedules of ``owner``, like ``Schedules.for_owner``. It is not awaited.

        ``session`` is an ``AsyncSession``.
        """
        calls = AsyncOwnerSchedules(self._context, self._calls.for_owner(owner))
        return calls.bound(session=self._session).bound(session=session, actor=actor, reason=reason)


@_awaiting(Calendars)
class AsyncCalendars(_AsyncCalls):
    """The calls of ``Calendars``, awaited."""

    def __init__(self, context: AsyncContext) -> None:
        super().__init__(context, Calendars(context))
