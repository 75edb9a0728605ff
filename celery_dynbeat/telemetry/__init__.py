"""What happens, as typed events, and everything that listens: logs, metrics, spans.

    transition --emit--> this module --+--> logs           one log record
                                       +--> metrics        counters
                                       +--> ...
                                       +--> celery_dynbeat.signals   receivers of the application

The code of a transition imports ``events`` and this module only. It knows no listener. This module
delivers events to their listeners: at once, or with the transaction that they report.

    emit(event)                       the listeners are called now
    emit_on_commit(session, *events)  they are called after the commit, and never after a rollback
    call_on_commit(session, *calls)   the same for any function

A caller builds an event only if ``has_listeners`` of its type is true. If there are no listeners,
an event costs one look-up. An error of a listener is logged and affects neither the caller nor
other listeners.

Listeners belong to the process. A forked process inherits them.
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

from sqlalchemy import event as orm_event
from sqlalchemy.orm import Session, SessionTransaction

from celery_dynbeat.db.engine import in_use

logger = logging.getLogger(__name__)

#: Takes an event of the type that it subscribed to.
Listener: TypeAlias = Callable[[Any], None]

_PENDING, _COMMITTED = "dynbeat_pending", "dynbeat_committed"
#: By type and key. An inner dict is replaced, never changed: another thread may iterate over it.
_listeners: dict[type, dict[Hashable, Listener]] = {}
#: Those that must be called in the context of the task that an event is about.
_context_listeners: dict[type, dict[Hashable, Listener]] = {}
_NONE: Mapping[Hashable, Listener] = {}
_lock = Lock()


def has_listeners(event_type: type) -> bool:
    """Return whether an event of this type is delivered to any listener."""
    return event_type in _listeners


def needs_context(event_type: type) -> bool:
    """Return whether a listener must be called while the task of an event is current."""
    return event_type in _context_listeners


def subscribe(
    listener: Listener, *event_types: type, key: Hashable = None, in_context: bool = False
) -> None:
    """Call ``listener`` with each event of these types.

    ``key`` identifies it. None means the listener itself. If the key has a listener already, as in
    a forked process, nothing changes. ``in_context`` is true if the listener runs code of the
    application, which may ask for the current task, or a library that adds the context of the
    current task.
    """
    _add(_listeners, listener, event_types, key=key)
    if in_context:
        _add(_context_listeners, listener, event_types, key=key)


def unsubscribe(key: Hashable, *event_types: type) -> None:
    """Stop calling the listener with this key for these types."""
    _remove(_listeners, key, event_types)
    _remove(_context_listeners, key, event_types)


def _add(
    listeners: dict[type, dict[Hashable, Listener]],
    listener: Listener,
    event_types: Sequence[type],
    *,
    key: Hashable,
) -> None:
    with _lock:
        for event_type in event_types:
            present = listeners.get(event_type, {})
            added = {listener if key is None else key: listener}
            listeners[event_type] = {**present, **added, **present}


def _remove(
    listeners: dict[type, dict[Hashable, Listener]], key: Hashable, event_types: Sequence[type]
) -> None:
    with _lock:
        for event_type in event_types:
            present = listeners.get(event_type, {})
            left = {each: listener for each, listener in present.items() if each != key}
            if left:
                listeners[event_type] = left
            else:
                listeners.pop(event_type, None)


def emit(event: object) -> None:
    """Call the listeners of ``event`` now."""
    for listener in _listeners.get(type(event), _NONE).values():
        try:
            listener(event)
        # An error of a listener must not fail the transition.
        except Exception:
            logger.exception("a listener failed for the event %s", type(event).__name__)


def emit_on_commit(session: Session, *events: object) -> None:
    """Call the listeners after the commit of ``session``, and never after a rollback."""
    heard = [partial(emit, event) for event in events if type(event) in _listeners]
    if heard:
        call_on_commit(session, *heard)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call that is made if ``transaction`` and those around it commit."""

    transaction: SessionTransaction | None
    call: Callable[[], None]


def call_on_commit(session: Session, *calls: Callable[[], None]) -> None:
    """Make ``calls`` after the commit of ``session``, each once, even if it is given several times.

    After the commit the session has returned its connection to the pool, so a call may use the API.
    After a rollback, even of a savepoint, it is not made. A call must not raise.
    """
    if _PENDING not in session.info:
        session.info[_PENDING] = []
        orm_event.listen(session, "after_commit", _after_commit)
        orm_event.listen(session, "after_transaction_end", _after_end)
        orm_event.listen(session, "after_soft_rollback", _after_rollback)
    innermost = session.get_nested_transaction() or session.get_transaction()
    session.info[_PENDING] += [_Pending(innermost, call) for call in calls]


def _after_commit(session: Session) -> None:
    # The release of a savepoint also calls this hook. Only the outermost commit counts.
    if session.in_nested_transaction():
        return
    committed = session.get_transaction()
    pending, session.info[_PENDING] = session.info[_PENDING], []
    # Session.close() ends a transaction without a commit and without a hook. A call without a
    # transaction was requested before the first statement of this transaction.
    session.info[_COMMITTED] = dict.fromkeys(
        each.call
        for each in pending
        if committed is None or each.transaction is None or _is_within(each.transaction, committed)
    )


def _after_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        with in_use(None):
            for call in session.info.pop(_COMMITTED, ()):
                call()


def _after_rollback(session: Session, ended: SessionTransaction) -> None:
    session.info[_PENDING] = [
        each for each in session.info[_PENDING] if not _is_within(each.transaction, ended)
    ]


def _is_within(transaction: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while transaction is not None:
        if transaction is outer:
            return True
        transaction = transaction.parent
    return False
