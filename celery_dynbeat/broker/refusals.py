"""Why a run was not taken, and whether its own row is at fault.

Only what is provably the row's own is refused for good, and only that quarantines its schedule. A
queue or exchange may come back, a router may work again, and a receiver of ``before_task_publish``
may have spoiled the message of a good row.
"""

import re
import sys
from enum import Enum, auto
from typing import NamedTuple

from celery.exceptions import QueueNotFound
from kombu.exceptions import ChannelError, SerializationError, SerializerNotInstalled
from kombu.serialization import dumps

from celery_dynbeat.broker.outages import Kind, Scope
from celery_dynbeat.broker.task_message import Messages, RoutingError
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.planning.outgoing_run import OutgoingRun

NOT_FOUND = 404
PRECONDITION_FAILED = 406
BASIC_PUBLISH = (60, 40)
#: How RabbitMQ ("message size 9 is larger than max size 5"), SQS ("must be shorter than") and
#: others refuse a large message.
TOO_LARGE = re.compile(
    r"message.*(larger than|too large|must be shorter|maximum size)", re.IGNORECASE
)


class Own(Enum):
    """Whether the row of a run that is refused is itself at fault."""

    NO = auto()
    #: An error that may be the row's: it is, if other runs pass while this one is refused.
    IF_OTHERS_PASS = auto()
    #: The row names a queue or an exchange that is missing: it is, after ``outages.LAST_TRY``.
    IF_IT_LASTS = auto()
    #: The row names a serializer that fails, or holds what no broker of this size takes.
    YES = auto()


class Refusal(NamedTuple):
    """Why a run was not taken. ``exact``: the broker named the queue or exchange of ``scope``."""

    scope: Scope
    error: BaseException
    own: Own = Own.NO
    exact: bool = False


def of_message(run: OutgoingRun, error: Exception, messages: Messages) -> Refusal:
    """Return what an error says that is neither the broker's nor about its connection."""
    task = Scope(Kind.TASK, run.task)
    if isinstance(error, RoutingError):
        return misrouted(run, error)
    if isinstance(error, (SerializationError, SerializerNotInstalled)):
        own = Own.YES if _has_own_flaw(run, messages) else Own.IF_OTHERS_PASS
        return Refusal(task, error, own)
    if messages.is_overridden(run.task):
        return _of_override(run, error, messages)
    if TOO_LARGE.search(str(error)):
        return Refusal(task, error, Own.YES)
    # Python's own errors are about a value; others are a driver's, such as that of SQS.
    is_of_value = type(error).__module__.partition(".")[0] in sys.stdlib_module_names
    scope = task if is_of_value else scope_of(run, messages)
    return Refusal(scope, error, Own.IF_OTHERS_PASS)


def _of_override(run: OutgoingRun, error: Exception, messages: Messages) -> Refusal:
    """Return what a method of the application says that raises: as a rule nothing of the row.

    It may be right to raise for this row alone, for as long as another message of it is queued.
    """
    own = Own.NO
    if isinstance(error, TypeError) and not messages.takes_arguments(run):
        own = Own.YES
    elif isinstance(error, QueueNotFound) and run.options.get("queue") is not None:
        own = Own.IF_IT_LASTS
    return Refusal(Scope(Kind.TASK, run.task), error, own)


def is_of_override(run: OutgoingRun, refusal: Refusal, messages: Messages) -> bool:
    """Return whether a method of the application raised, for a reason that is not the row's."""
    is_free = refusal.own is Own.NO and not refusal.exact
    return is_free and messages.is_overridden(run.task)


def scope_of(run: OutgoingRun, messages: Messages) -> Scope:
    """Return where ``run`` goes; its task, if the router raises."""
    try:
        return messages.scope(run)
    except RoutingError:
        return Scope(Kind.TASK, run.task)


def misrouted(run: OutgoingRun, error: RoutingError) -> Refusal:
    """Return what a router's error says: it belongs to the application."""
    cause = error.__cause__ or error
    named = run.options.get("queue")
    if named is not None and isinstance(cause, QueueNotFound):
        return Refusal(Scope(Kind.QUEUE, str(named)), cause, Own.IF_IT_LASTS)
    return Refusal(Scope(Kind.TASK, run.task), cause)


def by_broker(run: OutgoingRun, scope: Scope, error: BaseException) -> Refusal:
    """Return what it says when the broker refuses the queue or exchange of ``scope``."""
    named = run.options.get("exchange")
    is_missing = getattr(error, "reply_code", None) == NOT_FOUND
    own = Own.IF_IT_LASTS if is_missing and f"no exchange '{named}'" in str(error) else Own.NO
    return Refusal(scope, error, own, exact=True)


def of_single(run: OutgoingRun, error: BaseException, messages: Messages) -> Refusal:
    """Return what it says when RabbitMQ refuses one message."""
    # A method of the application may have made it too large.
    is_rows_own = TOO_LARGE.search(str(error)) and not messages.is_overridden(run.task)
    own = Own.YES if is_rows_own else Own.IF_OTHERS_PASS
    return Refusal(Scope(Kind.TASK, run.task), error, own)


def is_of_message(error: ChannelError) -> bool:
    """Return whether RabbitMQ refused one message: too large, or with a property out of range.

    403 and 404 for a publish concern its exchange; all codes for a declaration concern its queue.
    """
    return bool(error.reply_code == PRECONDITION_FAILED and error.method_sig == BASIC_PUBLISH)


def names_queue(error: BaseException | None) -> bool:
    """Return whether a broker that is not AMQP refused one queue: kombu's own 404, or Redis."""
    if isinstance(error, ChannelError):
        return True
    # By name: the driver of Redis need not be installed.
    return type(error).__name__ == "NoPermissionError" or "WRONGTYPE" in str(error)


def _has_own_flaw(run: OutgoingRun, messages: Messages) -> bool:
    """Return whether the row is what cannot be serialized: its serializer, or its arguments."""
    try:
        serializer = messages.serializer(run)
    except RoutingError:
        # A method of the application routed it otherwise.
        return False
    if _serializes((run.args, run.kwargs, {}), serializer):
        return False
    return "serializer" in run.options or _serializes(((), {}, {}), serializer)


def _serializes(body: object, serializer: str | None) -> bool:
    try:
        dumps(body, serializer=serializer)
    # A serializer may raise anything.
    except Exception:  # noqa: BLE001
        return False
    return True


def said(error: BaseException) -> str:
    """Return the type of an error and the first line of its text."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def dispatch_error(run: OutgoingRun, error: BaseException) -> DispatchError:
    """Return the error that a run, and its schedule, are left with."""
    return DispatchError(f"run {run.run_id} of {run.name!r} cannot be sent: {said(error)}")
