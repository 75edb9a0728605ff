"""A run to a Celery message, and the message to a producer: what ``app.send_task`` does for a task.

Whatever is the same for all messages of a batch is looked up once.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import before_task_publish
from celery.utils.nodenames import anon_nodename
from kombu import Producer

from celery_dynbeat.headers import (
    HEADER_ATTEMPT,
    HEADER_EXPIRES_AT,
    HEADER_OVERLAP,
    HEADER_OWNER,
    HEADER_RUN_ID,
    HEADER_SCHEDULE,
    HEADER_SCHEDULED_FOR,
    is_reserved,
)
from celery_dynbeat.outages import Kind, Scope

#: RabbitMQ takes a time to live of 32 bits, in milliseconds: 49 days. It refuses a message with a
#: longer one. A message that is dropped then is sent again by the sweep.
LONGEST_EXPIRATION = 4_294_967.0
#: Options that belong into the task message; all others say how it travels.
_MESSAGE_OPTIONS = ("time_limit", "soft_time_limit", "ignore_result", "shadow", "countdown")


class Outgoing(NamedTuple):
    """A run on its way to the broker, and the ``version`` of its schedule when it was read.

    ``expires_at`` None: it may start at any time. ``attempt`` and ``retries`` are those that the
    run has behind it. ``waiting_since`` is when it was first sent, where nobody has begun it since.
    """

    run_id: str
    schedule_id: int
    owner: str
    name: str
    version: int
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    scheduled_for: datetime
    expires_at: datetime | None = None
    overlap: str = "allow"
    attempt: int = 0
    retries: int = 0
    waiting_since: datetime | None = None

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that tell a task which run it is."""
        given: Mapping[str, Any] = self.options.get("headers", {})
        return {
            # The API refuses what is reserved; a row that was typed by hand may hold it.
            **{key: value for key, value in given.items() if not is_reserved(key)},
            HEADER_RUN_ID: self.run_id,
            HEADER_SCHEDULE: self.name,
            HEADER_OWNER: self.owner,
            HEADER_SCHEDULED_FOR: self.scheduled_for.isoformat(),
            HEADER_ATTEMPT: self.attempt,
            **({HEADER_EXPIRES_AT: self.expires_at.isoformat()} if self.expires_at else {}),
            **({HEADER_OVERLAP: self.overlap} if self.overlap == "buffer_one" else {}),
            # What other tools know a scheduled task by.
            "celery_beat_task": True,
            "periodic_task_name": self.name,
        }


def shown(payload: Sequence[Any] | Mapping[str, Any], longest: int) -> str | None:
    """Return what ``saferepr`` says of a payload; None where that takes more than ``repr``.

    It differs in what is nested, cut, or quoted otherwise; and costs as much as all else in a
    message.
    """
    values = payload.values() if isinstance(payload, Mapping) else payload
    if any(isinstance(value, (dict, list)) for value in values):
        return None
    text = repr(payload)
    is_plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return text if is_plain and len(text) <= longest else None


class RoutingError(Exception):
    """Celery's router, or a function of ``task_routes``, raised for a run: the ``__cause__``."""


class _Way(NamedTuple):
    """How runs with the same options travel. ``own`` goes into the message, and ``expires``."""

    own: Mapping[str, Any]
    expires: Any
    routed: Mapping[str, Any]


class Messages:
    """Sends the runs of one batch. ``now`` is the clock by which they expire."""

    def __init__(self, app: Celery, *, now: Callable[[], datetime]) -> None:
        self._app = app
        self._now = now
        self._amqp = app.amqp
        self._create: Callable[..., Any] = app.amqp.create_task_message
        self._origin = anon_nodename()
        self._tells: bool = app.conf.task_send_sent_event
        # A router may look at the arguments, and at the clock.
        self._routes_alike = not app.amqp.routes
        self._plain: dict[str, _Way] = {}

    def send(self, producer: Producer, run: Outgoing) -> None:
        """Send one run as ``app.send_task`` would, without asking the result backend to listen.

        The publish signals and the task-sent event go out as for any task. When the run expires is
        for the guard to judge, by the database's clock: Celery's own ``expires`` counts by the
        clock of the worker's host.
        """
        way = self._way(run)
        message = self._create(
            run.run_id,
            run.task,
            list(run.args),
            dict(run.kwargs),
            expires=None if run.expires_at else way.expires,
            retries=run.retries,
            reply_to=self._app.thread_oid,
            create_sent_event=self._tells,
            origin=self._origin,
            # No arguments are an empty tuple to Celery.
            argsrepr=shown(run.args or (), self._amqp.argsrepr_maxsize),
            kwargsrepr=shown(run.kwargs, self._amqp.kwargsrepr_maxsize),
            **way.own,
        )
        routed = dict(way.routed)
        if run.expires_at is not None:
            # As send_task does: the broker may drop what no worker will start any more.
            left = (run.expires_at - self._now()).total_seconds()
            routed["expiration"] = min(max(0.0, left), LONGEST_EXPIRATION)
        # Whoever listens in is shown the queue, as always.
        if not before_task_publish.receivers and self._is_declared(producer, routed):
            # As kombu would find out, after it has copied the queue and its exchange to ask.
            routed.setdefault("declare", ())
        self._amqp.send_task_message(
            producer,
            run.task,
            message,
            headers=run.headers,
            retry=False,
            **routed,
        )

    def _way(self, run: Outgoing) -> _Way:
        if run.options or not self._routes_alike:
            return self._found(run)
        if run.task not in self._plain:
            self._plain[run.task] = self._found(run)
        return self._plain[run.task]

    def _found(self, run: Outgoing) -> _Way:
        app = self._app
        options = {**self._execution_options(run.task), **run.options}
        options.pop("headers", None)
        own = {key: options.pop(key) for key in _MESSAGE_OPTIONS if key in options}
        expires = options.pop("expires", None)
        registered = app.tasks.get(run.task)
        try:
            routed = self._amqp.router.route(options, run.task, run.args, run.kwargs, registered)
        # An OSError of a router is not the broker's.
        except Exception as error:
            raise RoutingError(f"task {run.task!r} cannot be routed") from error
        return _Way(own, expires, routed)

    def scope(self, run: Outgoing) -> Scope:
        """Return the queue or exchange that ``run`` goes to. Raises RoutingError."""
        routed = self._way(run).routed
        queue, exchange = (
            getattr(routed.get(option), "name", routed.get(option))
            for option in ("queue", "exchange")
        )
        key = routed.get("routing_key")
        # As send_task_message decides: without a routing key the exchange of a queue is not used.
        if exchange and (key or queue is None):
            return Scope(Kind.EXCHANGE, str(exchange), f"{key} {queue}")
        return Scope(Kind.QUEUE, str(queue or self._amqp.default_queue.name))

    def serializer(self, run: Outgoing) -> str | None:
        """Return the name of the serializer of ``run``. Raises RoutingError."""
        chosen = self._way(run).routed.get("serializer") or self._app.conf.task_serializer
        return chosen if chosen is None else str(chosen)

    def _is_declared(self, producer: Producer, routed: Mapping[str, Any]) -> bool:
        """Return whether the queue of a message was declared on this very connection."""
        queue = routed.get("queue")
        if queue is None:
            if routed.get("exchange") is not None:
                return False
            queue = self._amqp.default_queue
        elif isinstance(queue, str):
            queue = self._amqp.queues[queue]
        declared = producer.connection.declared_entities
        return bool(queue.can_cache_declaration and hash(queue) in declared)

    def _execution_options(self, task: str) -> dict[str, Any]:
        registered = self._app.tasks.get(task)
        if registered is None:
            return {}
        options: dict[str, Any] = registered._get_exec_options()  # noqa: SLF001 - as send_task does
        return {key: value for key, value in options.items() if value is not None}
