"""A run to a Celery message, and the message to a producer: what ``task.apply_async`` does.

Whatever is the same for all messages of a batch is looked up once. Where the application replaces
a part of Celery's way, that part is called, one run at a time: ``celery_dynbeat.broker.overrides``.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.app.task import Task
from celery.signals import before_task_publish
from celery.utils.nodenames import anon_nodename
from celery.utils.quorum_queues import detect_quorum_queues
from celery.utils.time import subtract_datetimes
from dateutil.parser import isoparse
from kombu import Producer

from celery_dynbeat.broker.headers import (
    run_headers,
)
from celery_dynbeat.broker.outages import Kind, Scope
from celery_dynbeat.broker.overrides import Watch, apply_async, is_overridden, takes
from celery_dynbeat.planning.outgoing_run import OutgoingRun

#: RabbitMQ takes a time to live of 32 bits, in milliseconds: 49 days. It refuses a message with a
#: longer one. A message that is dropped then is sent again by the sweep.
LONGEST_EXPIRATION = 4_294_967.0
#: Where Celery's ``send_task`` publishes what RabbitMQ is to hold back.
DELAYING_EXCHANGE = "celery_delayed_27"
#: Options that belong into the task message; all others say how it travels.
_MESSAGE_OPTIONS = ("time_limit", "soft_time_limit", "ignore_result", "shadow", "countdown")


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


class _Known(NamedTuple):
    """What this process knows of a task. ``defaults`` are options that a schedule may override."""

    defaults: Mapping[str, Any]
    overridden: bool


class _Unreachable(NamedTuple):
    """The first run for which a method of the application reached no broker."""

    run_id: str
    error: BaseException


class _Way(NamedTuple):
    """How runs with the same options travel. ``own`` goes into the message, and ``expires``."""

    own: Mapping[str, Any]
    expires: Any
    routed: Mapping[str, Any]


class Messages:
    """Sends the runs of one batch. ``now`` is the clock by which they expire.

    ``driver_type`` is that of the broker's transport in kombu.
    """

    def __init__(self, app: Celery, *, now: Callable[[], datetime], driver_type: str) -> None:
        self._app = app
        self._now = now
        self._driver_type = driver_type
        self._amqp = app.amqp
        self._create: Callable[..., Any] = app.amqp.create_task_message
        self._origin = anon_nodename()
        self._tells: bool = app.conf.task_send_sent_event
        # A router may look at the arguments, and at the clock.
        self._routes_alike = not app.amqp.routes
        self._plain: dict[str, _Way] = {}
        self._known: dict[str, _Known] = {}
        self._has_quorum_queues: bool | None = None
        #: The ids of the runs that the application's own methods have published, also where they
        #: raised afterwards.
        self.published_by_application: set[str] = set()
        # Tasks whose own method has failed to reach a broker: it may take seconds each time.
        self._unreachable: dict[str, _Unreachable] = {}

    def send(self, producer: Producer, run: OutgoingRun) -> None:
        """Send one run as ``task.apply_async`` would, without asking the result backend to listen.

        The publish signals and the task-sent event go out as for any task. When the run expires is
        for the guard to judge, by the database's clock: Celery's own ``expires`` counts by the
        clock of the worker's host. Raises NotPublishedError when a method of the application
        returned without a message.
        """
        if self.is_overridden(run.task):
            self._call_application(producer, run)
        elif run.options and self._is_delayed_by_broker(run):
            self._send_delayed(producer, run)
        else:
            self._send(producer, run)

    def is_overridden(self, task: str) -> bool:
        """Return whether the application replaces a part of how Celery sends the task."""
        return self._know(task).overridden

    def note_unreachable(self, run: OutgoingRun, error: BaseException) -> None:
        """Note that the task's own method reached no broker: it is not called again for a batch."""
        self._unreachable.setdefault(run.task, _Unreachable(run.run_id, error))

    def is_first_unreachable(self, run: OutgoingRun) -> bool:
        """Return whether ``run`` is the one for which the method reached no broker."""
        found = self._unreachable.get(run.task)
        return found is not None and found.run_id == run.run_id

    def takes_arguments(self, run: OutgoingRun) -> bool:
        """Return whether the arguments of ``run`` fit its task, as far as this process knows it."""
        return takes(self._app.tasks.get(run.task), run.args, run.kwargs)

    def _send(self, producer: Producer, run: OutgoingRun) -> None:
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
            routed["expiration"] = self._expiration(run.expires_at, self._now())
        elif way.expires is not None:
            routed["expiration"] = self._expiration(way.expires, self._app.now())
        # Whoever listens in is shown the queue, as always.
        if not before_task_publish.receivers and self._is_declared(producer, routed):
            # As kombu would find out, after it has copied the queue and its exchange to ask.
            routed.setdefault("declare", ())
        self._amqp.send_task_message(
            producer,
            run.task,
            message,
            headers=run_headers(run),
            retry=False,
            **routed,
        )

    def _call_application(self, producer: Producer, run: OutgoingRun) -> None:
        if run.task in self._unreachable:
            raise self._unreachable[run.task].error
        with Watch(run.run_id, run_headers(run)) as watch:
            try:
                apply_async(
                    self._app, run.task, run.args, run.kwargs, self._call_options(producer, run)
                )
            finally:
                if watch.has_seen_run:
                    self.published_by_application.add(run.run_id)
        watch.check(run.task)

    def _send_delayed(self, producer: Producer, run: OutgoingRun) -> None:
        """Let Celery choose the queue in which RabbitMQ holds the message back."""
        options = {**self._know(run.task).defaults, **self._call_options(producer, run)}
        # The broker counts whole seconds, from 1 on.
        options["countdown"] = max(1, options["countdown"])
        registered = self._app.tasks.get(run.task)
        self._app.send_task(
            run.task, list(run.args), dict(run.kwargs), task_type=registered, **options
        )

    def _call_options(self, producer: Producer, run: OutgoingRun) -> dict[str, Any]:
        """Return the options for a method of Celery that sends ``run``."""
        options = {
            **run.options,
            "task_id": run.run_id,
            "producer": producer,
            "headers": run_headers(run),
            # Beat retries the batch.
            "retry": False,
        }
        if run.retries:
            options["retries"] = run.retries
        if run.expires_at is not None:
            options["expires"] = None
            options["expiration"] = self._expiration(run.expires_at, self._now())
        return options

    def _is_delayed_by_broker(self, run: OutgoingRun) -> bool:
        """Return whether Celery lets RabbitMQ hold the message back until its countdown ends.

        It does so in ``send_task``, where one of the queues is a quorum queue: held by a worker, a
        message takes the place of another there.
        """
        if not run.options.get("countdown"):
            return False
        if self._has_quorum_queues is None:
            self._has_quorum_queues = detect_quorum_queues(self._app, self._driver_type)[0]
        return self._has_quorum_queues

    @staticmethod
    def _expiration(expires: Any, now: datetime) -> float:
        """Return after how many seconds the broker may drop the message, as send_task does."""
        if isinstance(expires, str):
            expires = isoparse(expires)
        if isinstance(expires, datetime):
            expires = subtract_datetimes(expires, now).total_seconds()
        return min(float(max(0, expires)), LONGEST_EXPIRATION)

    def _way(self, run: OutgoingRun) -> _Way:
        if run.options or not self._routes_alike:
            return self._found(run)
        if run.task not in self._plain:
            self._plain[run.task] = self._found(run)
        return self._plain[run.task]

    def _found(self, run: OutgoingRun) -> _Way:
        options = {**self._know(run.task).defaults, **run.options}
        options.pop("headers", None)
        own = {key: options.pop(key) for key in _MESSAGE_OPTIONS if key in options}
        expires = options.pop("expires", None)
        registered = self._app.tasks.get(run.task)
        try:
            routed = self._amqp.router.route(options, run.task, run.args, run.kwargs, registered)
        # An OSError of a router is not the broker's.
        except Exception as error:
            raise RoutingError(f"task {run.task!r} cannot be routed") from error
        return _Way(own, expires, routed)

    def scope(self, run: OutgoingRun) -> Scope:
        """Return the queue or exchange that ``run`` goes to. Raises RoutingError.

        Where a method of the application sends it, that method may choose another one: then the
        scope is the task, apart for each queue or exchange that Celery would choose.
        """
        if not self.is_overridden(run.task):
            return self._destination(run)
        try:
            route = " ".join(self._destination(run))
        except RoutingError:
            # The method may give the router what it needs.
            route = "unknown"
        return Scope(Kind.TASK, run.task, route)

    def _destination(self, run: OutgoingRun) -> Scope:
        if run.options and self._is_delayed_by_broker(run):
            # Refused for as long as no worker has declared it, whatever the queue behind it.
            return Scope(Kind.EXCHANGE, DELAYING_EXCHANGE, self._directly(run).name)
        return self._directly(run)

    def _directly(self, run: OutgoingRun) -> Scope:
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

    def serializer(self, run: OutgoingRun) -> str | None:
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

    def _know(self, task: str) -> _Known:
        if task not in self._known:
            registered = self._app.tasks.get(task)
            overridden = is_overridden(self._app, registered)
            self._known[task] = _Known(self._defaults(registered), overridden)
        return self._known[task]

    @staticmethod
    def _defaults(task: Task | None) -> Mapping[str, Any]:
        """Return the options that the definition of a task gives to its messages."""
        if task is None:
            # The worker then goes by its own definition of the task.
            return {"ignore_result": None}
        options: dict[str, Any] = task._get_exec_options()  # noqa: SLF001 - as apply_async does
        given = {key: value for key, value in options.items() if value is not None}
        return {**given, "ignore_result": task.ignore_result}
