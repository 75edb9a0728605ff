"""Why a run was refused, and whether its own row is at fault.

Only a fault that is provably in the row refuses the run permanently and quarantines its schedule. A
missing queue or exchange may return, a router may recover, and a receiver of
``before_task_publish`` may have corrupted the message of a valid row.
"""

import re
import sys
from enum import Enum, auto
from typing import NamedTuple

from celery.exceptions import QueueNotFound
from kombu.exceptions import ChannelError, SerializationError, SerializerNotInstalled
from kombu.serialization import dumps

from celery_dynbeat.broker.outages import Kind, Scope
from celery_dynbeat.broker.task_message import MessageSender, RoutingError
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.planning.plan import OutgoingRun

NOT_FOUND = 404
PRECONDITION_FAILED = 406
BASIC_PUBLISH = (60, 40)
#: Matches the refusal of a large message by RabbitMQ ("message size 9 is larger than max size 5"),
#: SQS ("must be shorter than") and others.
TOO_LARGE = re.compile(
    r"message.*(larger than|too large|must be shorter|maximum size)", re.IGNORECASE
)


class RowFault(Enum):
    """Whether the row of a refused run is at fault."""

    NO = auto()
    #: Yes, if other runs of the scope are accepted while this run is refused.
    IF_OTHERS_ACCEPTED = auto()
    #: The row is the cause after ``outages.MAX_TRIES``. It names a queue or an exchange that is
    #: missing.
    IF_PERSISTENT = auto()
    #: The row names a serializer that fails, or holds a payload that the broker cannot accept.
    YES = auto()


class Refusal(NamedTuple):
    """Why a run was refused. ``exact`` is true if the broker named the queue or exchange."""

    scope: Scope
    error: BaseException
    fault: RowFault = RowFault.NO
    exact: bool = False


def from_exception(run: OutgoingRun, error: Exception, sender: MessageSender) -> Refusal:
    """Classify an error that comes neither from the broker nor from its connection."""
    task = Scope(Kind.TASK, run.task)
    if isinstance(error, RoutingError):
        return from_router(run, error)
    if isinstance(error, (SerializationError, SerializerNotInstalled)):
        is_at_fault = _is_unserializable(run, sender)
        fault = RowFault.YES if is_at_fault else RowFault.IF_OTHERS_ACCEPTED
        return Refusal(task, error, fault)
    if sender.is_overridden(run.task):
        return _from_override(run, error, sender)
    if TOO_LARGE.search(str(error)):
        return Refusal(task, error, RowFault.YES)
    # Built-in exceptions concern a value. Others come from a driver, such as the SQS driver.
    concerns_value = type(error).__module__.partition(".")[0] in sys.stdlib_module_names
    scope = task if concerns_value else scope_of(run, sender)
    return Refusal(scope, error, RowFault.IF_OTHERS_ACCEPTED)


def _from_override(run: OutgoingRun, error: Exception, sender: MessageSender) -> Refusal:
    """Classify an exception of a method that the application overrides.

    Usually the row is not the cause. However, the method may raise an exception for this row only,
    for example while another message of it is queued.
    """
    fault = RowFault.NO
    if isinstance(error, TypeError) and not sender.accepts_arguments(run):
        fault = RowFault.YES
    elif isinstance(error, QueueNotFound) and run.options.get("queue") is not None:
        fault = RowFault.IF_PERSISTENT
    return Refusal(Scope(Kind.TASK, run.task), error, fault)


def is_from_override(run: OutgoingRun, refusal: Refusal, sender: MessageSender) -> bool:
    """Return whether an overridden method raised for a reason outside the row."""
    is_outside_row = refusal.fault is RowFault.NO and not refusal.exact
    return is_outside_row and sender.is_overridden(run.task)


def scope_of(run: OutgoingRun, sender: MessageSender) -> Scope:
    """Return the destination of ``run``, or its task when the router raises."""
    try:
        return sender.scope(run)
    except RoutingError:
        return Scope(Kind.TASK, run.task)


def from_router(run: OutgoingRun, error: RoutingError) -> Refusal:
    """Classify an error of the router, which belongs to the application."""
    cause = error.__cause__ or error
    named = run.options.get("queue")
    if named is not None and isinstance(cause, QueueNotFound):
        return Refusal(Scope(Kind.QUEUE, str(named)), cause, RowFault.IF_PERSISTENT)
    return Refusal(Scope(Kind.TASK, run.task), cause)


def from_broker(run: OutgoingRun, scope: Scope, error: BaseException) -> Refusal:
    """Classify the refusal of the queue or exchange of ``scope`` by the broker."""
    named = run.options.get("exchange")
    is_missing = getattr(error, "reply_code", None) == NOT_FOUND
    names_it = is_missing and f"no exchange '{named}'" in str(error)
    fault = RowFault.IF_PERSISTENT if names_it else RowFault.NO
    return Refusal(scope, error, fault, exact=True)


def from_single_message(run: OutgoingRun, error: BaseException, sender: MessageSender) -> Refusal:
    """Classify the refusal of one message by RabbitMQ."""
    # An overridden method may have made the message too large.
    is_at_fault = TOO_LARGE.search(str(error)) and not sender.is_overridden(run.task)
    fault = RowFault.YES if is_at_fault else RowFault.IF_OTHERS_ACCEPTED
    return Refusal(Scope(Kind.TASK, run.task), error, fault)


def concerns_one_message(error: ChannelError) -> bool:
    """Return whether RabbitMQ refused one message: too large, or a property out of range.

    403 and 404 for a publish concern its exchange. All codes for a declaration concern its queue.
    """
    return bool(error.reply_code == PRECONDITION_FAILED and error.method_sig == BASIC_PUBLISH)


def names_queue(error: BaseException | None) -> bool:
    """Return whether a broker without AMQP refused one queue: kombu's own 404, or Redis."""
    if isinstance(error, ChannelError):
        return True
    # Compared by name, because the Redis driver may not be installed.
    return type(error).__name__ == "NoPermissionError" or "WRONGTYPE" in str(error)


def _is_unserializable(run: OutgoingRun, sender: MessageSender) -> bool:
    """Return whether the serializer or the arguments of the row cannot be serialized."""
    try:
        serializer = sender.serializer(run)
    except RoutingError:
        # An overridden method chose another route.
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


def error_summary(error: BaseException) -> str:
    """Return the type of an error and the first line of its text.

    SQLAlchemy appends the statement in further lines.
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def dispatch_error(run: OutgoingRun, error: BaseException) -> DispatchError:
    """Return the error to store on the run and its schedule."""
    return DispatchError(f"run {run.run_id} of {run.name!r} cannot be sent: {error_summary(error)}")
