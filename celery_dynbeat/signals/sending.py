"""Send a signal: at once, or after the commit of a session."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from celery_dynbeat.db.engine import in_use

_PENDING, _COMMITTED = "dynbeat_signals", "dynbeat_committed_signals"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A signal that is sent if ``transaction`` and those around it commit."""

    transaction: SessionTransaction | None
    signal: Any
    payload: Any


def send(signal: Any, payload: Any) -> None:
    """Send ``payload`` to the receivers of ``signal``. Its ``task``, if any, is the sender."""
    signal.send(sender=getattr(payload, "task", None), event=payload)


def send_after_commit(session: Session, signal: Any, payload: Any) -> None:
    """Send ``payload`` after the commit of ``session``; never after a rollback.

    The session has returned its connection to the pool, so a receiver may call the API.

    A caller builds ``payload`` only if ``signal.receivers`` is not empty.
    """
    if _PENDING not in session.info:
        session.info[_PENDING] = []
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_transaction_end", _after_end)
        event.listen(session, "after_soft_rollback", _after_rollback)
    innermost = session.get_nested_transaction() or session.get_transaction()
    session.info[_PENDING].append(_Pending(innermost, signal, payload))


def _after_commit(session: Session) -> None:
    # The release of a savepoint calls this hook, too. Only the outermost commit counts.
    if session.in_nested_transaction():
        return
    committed = session.get_transaction()
    pending, session.info[_PENDING] = session.info[_PENDING], []
    # Session.close() ends a transaction without a commit and without a hook. A signal without a
    # transaction was reported before the first statement of this one.
    session.info[_COMMITTED] = [
        each
        for each in pending
        if committed is None or each.transaction is None or _is_within(each.transaction, committed)
    ]


def _after_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        with in_use(None):
            for each in session.info.pop(_COMMITTED, ()):
                send(each.signal, each.payload)


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
