"""Send a run as a Celery message, as ``task.apply_async`` does.

Values that all messages of a batch share are resolved once. Where the application overrides a
method of Celery, that method is called for each run.

A task class may override ``apply_async`` or ``shadow_name``, an application ``send_task``. A
library may replace these methods for all tasks. Beat then calls them with the run id as
``task_id``, the headers of the run and its own ``producer``. The outcomes:

- The call publishes a message with the run id, on any connection of Celery: the run is sent.
- It returns without such a message: the application decided not to send (NotPublishedError).
- It raises: the publisher decides. Beat may call it again for the same run.

If the call drops beat's headers, beat restores them. Without these headers, no worker recognises
the run. The task would then run without the guard, and beat would send the run again.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FunctionType, TracebackType
from typing import Any, NamedTuple, Self

from celery import Celery
from celery.app import amqp as celery_amqp
from celery.app.routes import MapRoute
from celery.app.task import Task
from celery.signals import after_task_publish, before_task_publish, task_sent
from celery.utils.nodenames import anon_nodename
from celery.utils.time import maybe_make_aware
from dateutil.parser import isoparse
from kombu import Producer

from celery_dynbeat.broker import HEADER_SENT_AT, is_reserved, run_headers
from celery_dynbeat.broker.compat import detect_quorum_queues, pipeline_of
from celery_dynbeat.broker.message_copies import MessageCopy, copy_of
from celery_dynbeat.broker.outages import Kind, Scope
from celery_dynbeat.planning.plan import OutgoingRun

#: Seconds. RabbitMQ stores the time to live in 32 bits, in milliseconds (49 days), and refuses a
#: message with a longer one. The sweep resends the run of a message that expired early.
MAX_EXPIRATION = 4_294_967.0
#: The exchange to which ``send_task`` publishes a message that RabbitMQ delays.
DELAYED_EXCHANGE = "celery_delayed_27"
#: Options that belong to the task message. All others are options of the publish.
_MESSAGE_OPTIONS = ("time_limit", "soft_time_limit", "ignore_result", "shadow", "countdown")


def fast_repr(payload: Sequence[Any] | Mapping[str, Any], max_length: int) -> str | None:
    """Return the ``saferepr`` of a payload where ``repr`` gives the same text, else None.

    The two differ for nested, truncated or differently quoted values. ``saferepr`` costs as much
    as all other work for a message.
    """
    if not payload:
        return repr(payload)
    for value in payload.values() if isinstance(payload, Mapping) else payload:
        if isinstance(value, (dict, list)):
            return None
    text = repr(payload)
    is_plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return text if is_plain and len(text) <= max_length else None


class RoutingError(Exception):
    """Celery's router or a function of ``task_routes`` raised. ``__cause__`` is its error."""


class _TaskInfo(NamedTuple):
    """Properties of a task. ``defaults`` are its options, which a schedule may override."""

    defaults: Mapping[str, Any]
    overridden: bool


class _Unreachable(NamedTuple):
    """The first run whose overridden method could not reach a broker."""

    run_id: str
    error: BaseException


class _SendOptions(NamedTuple):
    """The options of a run. ``routed`` holds the options of the publish."""

    message: Mapping[str, Any]
    expires: Any
    routed: Mapping[str, Any]


class MessageSender:
    """Sends the runs of one batch.

    ``now`` is the clock for ``expires_after``. ``driver_type`` comes from the kombu transport.
    """

    def __init__(self, app: Celery, *, now: Callable[[], datetime], driver_type: str) -> None:
        self._app = app
        self._now = now
        self._driver_type = driver_type
        self._amqp = app.amqp
        self._create: Callable[..., Any] = app.amqp.create_task_message
        self._origin = anon_nodename()
        self._send_sent_event: bool = app.conf.task_send_sent_event
        # A function of the application may depend on the arguments and on the clock.
        self._is_route_constant = all(type(route) is MapRoute for route in app.amqp.routes)
        self._options_by_task: dict[str, _SendOptions] = {}
        self._last_route: tuple[OutgoingRun, _SendOptions] | None = None
        self._queues_by_task: dict[str, str | None] = {}
        self._tasks: dict[str, _TaskInfo] = {}
        self._has_quorum_queues: bool | None = None
        #: The ids of runs that overridden methods have published, even if they raised afterwards.
        self.published_by_application: set[str] = set()
        # Tasks whose overridden method could not reach a broker. Each attempt may take seconds.
        self._unreachable: dict[str, _Unreachable] = {}
        # kombu's batch, the tasks that were sent in it, and the copy of a message of each task.
        self._batch: Any = None
        self._batch_sent_at = ""
        self._sent_tasks: set[str] = set()
        self._copies: dict[str, MessageCopy | None] = {}
        self._uses_celerys_messages = (
            is_from(celery_amqp.__name__, self._create)
            and is_from(celery_amqp.__name__, app.amqp.send_task_message)
            and is_from(Producer.__module__, app.amqp.Producer.publish)
        )

    @contextmanager
    def in_batch(self, batch: Any) -> Iterator[None]:
        """Send runs in a batch of kombu, or None if kombu has no batches."""
        # One instant for all messages: kombu sends them together, at the end.
        self._batch, self._batch_sent_at = batch, self._now().isoformat()
        try:
            yield
        finally:
            # Its pipeline is executed only once, so a later command would be lost.
            self._batch, self._batch_sent_at = None, ""

    def send(self, producer: Producer, run: OutgoingRun) -> None:
        """Send one run as ``task.apply_async`` would, without ``backend.on_task_call``.

        The publish signals and the task-sent event are sent as for any task. The guard checks the
        expiry by the database's clock, because Celery's ``expires`` uses the clock of the worker's
        host. Raises NotPublishedError when an overridden method returned without a message.
        """
        if self.is_overridden(run.task):
            self._call_application(producer, run)
        elif run.options and self._is_delayed_by_broker(run):
            self._send_delayed(producer, run)
        else:
            self._send(producer, run)

    def is_overridden(self, task: str) -> bool:
        """Return whether the application overrides a method by which Celery sends the task."""
        return self._task(task).overridden

    def record_unreachable(self, run: OutgoingRun, error: BaseException) -> None:
        """Record that the overridden method reached no broker, so that the batch skips it."""
        self._unreachable.setdefault(run.task, _Unreachable(run.run_id, error))

    def is_first_unreachable(self, run: OutgoingRun) -> bool:
        """Return whether ``run`` is the first whose overridden method reached no broker."""
        first = self._unreachable.get(run.task)
        return first is not None and first.run_id == run.run_id

    def accepts_arguments(self, run: OutgoingRun) -> bool:
        """Return whether the task accepts the arguments of ``run``. True if unknown."""
        return argument_error(self._app.tasks.get(run.task), run.args, run.kwargs) is None

    def _send(self, producer: Producer, run: OutgoingRun) -> None:
        if self._may_be_copied(run):
            self._send_copy(producer, run)
        else:
            self._send_message(producer, run, self._headers(run))

    def _may_be_copied(self, run: OutgoingRun) -> bool:
        return (
            self._batch is not None
            and not run.options
            and run.expires_at is None
            and not run.retries
            and self._is_route_constant
            and self._uses_celerys_messages
            and not self._send_sent_event
            and not before_task_publish.receivers
            and not after_task_publish.receivers
            and not task_sent.receivers
        )

    def _send_copy(self, producer: Producer, run: OutgoingRun) -> None:
        """Send a copy of the second message of the task in this batch, or build a message.

        Copies are not made from the first message, because in a batch of many tasks, most copies
        would not be used.
        """
        pipeline, headers = pipeline_of(self._batch), self._headers(run)
        copy = self._copies.get(run.task)
        # kombu executes a long pipeline before its end, and then it is empty.
        if copy is not None and pipeline is not None and pipeline.command_stack:
            payload = list(run.args), dict(run.kwargs)
            argsrepr, kwargsrepr = self._reprs(run)
            if argsrepr is not None and kwargsrepr is not None:
                reprs = argsrepr, kwargsrepr
                copy.add(pipeline, run.run_id, payload=payload, reprs=reprs, headers=headers)
                return
        start = 0 if pipeline is None else len(pipeline.command_stack)
        body = self._send_message(producer, run, headers)
        pipeline = pipeline_of(self._batch)
        if run.task not in self._sent_tasks:
            self._sent_tasks.add(run.task)
        elif run.task not in self._copies and pipeline is not None:
            self._copies[run.task] = copy_of(
                pipeline, start=start, run_id=run.run_id, body=body, headers=headers
            )

    def _reprs(self, run: OutgoingRun) -> tuple[str | None, str | None]:
        # Celery shows missing arguments as an empty tuple.
        args = fast_repr(run.args or (), self._amqp.argsrepr_maxsize)
        return args, fast_repr(run.kwargs, self._amqp.kwargsrepr_maxsize)

    def _send_message(self, producer: Producer, run: OutgoingRun, headers: dict[str, Any]) -> Any:
        """Send a run through Celery and kombu. Return the body of the message."""
        options = self._resolve_options(run)
        argsrepr, kwargsrepr = self._reprs(run)
        message = self._create(
            run.run_id,
            run.task,
            list(run.args),
            dict(run.kwargs),
            expires=None if run.expires_at else options.expires,
            retries=run.retries,
            reply_to=self._app.thread_oid,
            create_sent_event=self._send_sent_event,
            origin=self._origin,
            argsrepr=argsrepr,
            kwargsrepr=kwargsrepr,
            **options.message,
        )
        routed = dict(options.routed)
        if run.expires_at is not None:
            routed["expiration"] = self._expiration(run.expires_at, self._now())
        elif options.expires is not None:
            routed["expiration"] = self._expiration(options.expires, self._app.now())
        # Receivers of the signal get the queue in ``declare``, as Celery passes it.
        if not before_task_publish.receivers and self._is_declared(producer, routed):
            # kombu would reach the same result, after a copy of the queue and its exchange.
            routed.setdefault("declare", ())
        self._amqp.send_task_message(
            producer,
            run.task,
            message,
            headers=headers,
            retry=False,
            **routed,
        )
        return message.body

    def _headers(self, run: OutgoingRun) -> dict[str, Any]:
        headers = run_headers(run)
        headers[HEADER_SENT_AT] = self._batch_sent_at or self._now().isoformat()
        return headers

    def _call_application(self, producer: Producer, run: OutgoingRun) -> None:
        if run.task in self._unreachable:
            raise self._unreachable[run.task].error
        with PublishWatch(run.run_id, self._headers(run)) as watch:
            try:
                apply_async(
                    self._app, run.task, run.args, run.kwargs, self._call_options(producer, run)
                )
            finally:
                if watch.is_published:
                    self.published_by_application.add(run.run_id)
        watch.check(run.task)

    def _send_delayed(self, producer: Producer, run: OutgoingRun) -> None:
        """Send through ``send_task``, which chooses the delay queue of RabbitMQ."""
        options = {**self._task(run.task).defaults, **self._call_options(producer, run)}
        # The broker counts whole seconds, at least 1.
        options["countdown"] = max(1, options["countdown"])
        registered = self._app.tasks.get(run.task)
        self._app.send_task(
            run.task, list(run.args), dict(run.kwargs), task_type=registered, **options
        )

    def _call_options(self, producer: Producer, run: OutgoingRun) -> dict[str, Any]:
        """Return the options for the call of a Celery method that sends ``run``."""
        options = {
            **run.options,
            "task_id": run.run_id,
            "producer": producer,
            "headers": self._headers(run),
            # Beat itself retries the batch.
            "retry": False,
        }
        if run.retries:
            options["retries"] = run.retries
        if run.expires_at is not None:
            options["expires"] = None
            options["expiration"] = self._expiration(run.expires_at, self._now())
        return options

    def _is_delayed_by_broker(self, run: OutgoingRun) -> bool:
        """Return whether RabbitMQ delays the message until its countdown ends.

        ``send_task`` does this when one of the queues is a quorum queue: a message that a worker
        holds would use up the prefetch count there.
        """
        if not run.options.get("countdown"):
            return False
        if self._has_quorum_queues is None:
            self._has_quorum_queues = detect_quorum_queues(self._app, self._driver_type)[0]
        return self._has_quorum_queues

    @staticmethod
    def _expiration(expires: Any, now: datetime) -> float:
        """Return the seconds after which the broker may drop the message, as send_task does."""
        if isinstance(expires, str):
            expires = isoparse(expires)
        if isinstance(expires, datetime):
            # In UTC: Python subtracts two instants of one time zone by their wall clocks.
            end = maybe_make_aware(expires).astimezone(UTC)
            expires = (end - now.astimezone(UTC)).total_seconds()
        return min(float(max(0, expires)), MAX_EXPIRATION)

    def _resolve_options(self, run: OutgoingRun) -> _SendOptions:
        if run.options or not self._is_route_constant:
            # A router is asked only once for a run: it may name another queue the next time.
            if self._last_route is None or self._last_route[0] is not run:
                self._last_route = run, self._route(run)
            return self._last_route[1]
        if run.task not in self._options_by_task:
            self._options_by_task[run.task] = self._route(run)
        return self._options_by_task[run.task]

    def _route(self, run: OutgoingRun) -> _SendOptions:
        options = {**self._task(run.task).defaults, **run.options}
        options.pop("headers", None)
        message = {key: options.pop(key) for key in _MESSAGE_OPTIONS if key in options}
        expires = options.pop("expires", None)
        registered = self._app.tasks.get(run.task)
        try:
            routed = self._amqp.router.route(options, run.task, run.args, run.kwargs, registered)
        # If the error were not wrapped, an OSError of a router would look like an error of the
        # broker.
        except Exception as error:
            raise RoutingError(f"task {run.task!r} cannot be routed") from error
        return _SendOptions(message, expires, routed)

    def scope(self, run: OutgoingRun) -> Scope:
        """Return the queue or exchange to which ``run`` goes. Raises RoutingError.

        An overridden method may choose another destination. Then the scope is the task, with the
        queue or exchange that Celery would choose as the detail.
        """
        if not self.is_overridden(run.task):
            return self._destination(run)
        try:
            route = " ".join(self._destination(run))
        except RoutingError:
            # The overridden method may choose a route itself.
            route = "unknown"
        return Scope(Kind.TASK, run.task, route)

    def queue(self, run: OutgoingRun) -> str | None:
        """Return the name or the alias of the queue of ``run``. Raises RoutingError.

        The result is None if the queue is not known. An overridden method may choose another queue,
        and the bindings of the broker choose the queues of an exchange. A queue that RabbitMQ
        delays is the queue that finally receives the message.
        """
        if run.options or not self._is_route_constant:
            return self._queue(run)
        if run.task not in self._queues_by_task:
            self._queues_by_task[run.task] = self._queue(run)
        return self._queues_by_task[run.task]

    def _queue(self, run: OutgoingRun) -> str | None:
        if self.is_overridden(run.task) or self._route_scope(run).kind != Kind.QUEUE:
            return None
        queue = self._resolve_options(run).routed.get("queue") or self._amqp.default_queue
        return queue if isinstance(queue, str) else str(queue.alias or queue.name)

    def _destination(self, run: OutgoingRun) -> Scope:
        if run.options and self._is_delayed_by_broker(run):
            # RabbitMQ refuses it until a worker has declared it, for every queue.
            return Scope(Kind.EXCHANGE, DELAYED_EXCHANGE, self._route_scope(run).name)
        return self._route_scope(run)

    def _route_scope(self, run: OutgoingRun) -> Scope:
        routed = self._resolve_options(run).routed
        queue, exchange = (
            getattr(routed.get(option), "name", routed.get(option))
            for option in ("queue", "exchange")
        )
        key = routed.get("routing_key")
        # send_task_message does the same. It ignores the exchange of a queue if there is no routing
        # key.
        if exchange and (key or queue is None):
            return Scope(Kind.EXCHANGE, str(exchange), f"{key} {queue}")
        return Scope(Kind.QUEUE, str(queue or self._amqp.default_queue.name))

    def serializer(self, run: OutgoingRun) -> str | None:
        """Return the name of the serializer of ``run``. Raises RoutingError."""
        name = self._resolve_options(run).routed.get("serializer") or self._app.conf.task_serializer
        return name if name is None else str(name)

    def _is_declared(self, producer: Producer, routed: Mapping[str, Any]) -> bool:
        """Return whether this connection has declared the queue of a message."""
        queue = routed.get("queue")
        if queue is None:
            if routed.get("exchange") is not None:
                return False
            queue = self._amqp.default_queue
        elif isinstance(queue, str):
            queue = self._amqp.queues[queue]
        declared = producer.connection.declared_entities
        return bool(queue.can_cache_declaration and hash(queue) in declared)

    def _task(self, task: str) -> _TaskInfo:
        if task not in self._tasks:
            registered = self._app.tasks.get(task)
            overridden = is_overridden(self._app, registered)
            self._tasks[task] = _TaskInfo(self._defaults(registered), overridden)
        return self._tasks[task]

    @staticmethod
    def _defaults(task: Task | None) -> Mapping[str, Any]:
        """Return the message options in the definition of a task."""
        if task is None:
            # The worker then uses its own definition of the task.
            return {"ignore_result": None}
        options: dict[str, Any] = task._get_exec_options()  # noqa: SLF001 - as apply_async does
        given = {key: value for key, value in options.items() if value is not None}
        return {**given, "ignore_result": task.ignore_result}


class NotPublishedError(Exception):
    """An overridden method returned without a message that has the run id."""


def is_overridden(app: Celery, task: Task | None) -> bool:
    """Return whether the application overrides a method by which Celery sends ``task``.

    ``task`` is None when it is not registered in this process. Then only ``send_task`` counts.
    """
    if not is_from(Celery.__module__, app.send_task):
        return True
    if task is None:
        return False
    return not (
        is_from(Task.__module__, task.apply_async) and is_from(Task.__module__, task.shadow_name)
    )


def is_from(module: str, method: Any) -> bool:
    """Return whether ``module`` defines the function or method, so that none replaces it."""
    # A comparison with the attribute of Celery's class would fail, because a library may have
    # replaced that attribute. ``__module__`` also fails: functools.wraps copies it.
    function = getattr(method, "__func__", method)
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") == module


def apply_async(
    app: Celery, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
) -> None:
    """Send a task, registered or not, as a caller in this process would."""
    task = app.tasks.get(name)
    if task is None:
        app.send_task(name, list(args), dict(kwargs), **options)
    else:
        task.apply_async(list(args), dict(kwargs), **options)


def argument_error(
    task: Task | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TypeError | None:
    """Return the error with which ``task`` refuses the arguments, as Task.apply_async does.

    The result is None if it accepts them, or if this process cannot check them, because the task is
    unknown or has ``typing=False``.
    """
    check = getattr(task, "__header__", None)
    if task is not None and check is not None and task.typing:
        try:
            check(*args, **kwargs)
        except TypeError as error:
            return error
    return None


class PublishWatch:
    """Record the messages that this thread publishes through Celery, on any connection.

    Restores the reserved ones of ``headers`` on the message whose id is ``run_id``.
    """

    def __init__(self, run_id: str, headers: Mapping[str, Any]) -> None:
        self._run_id = run_id
        self._headers = {key: value for key, value in headers.items() if is_reserved(key)}
        self._thread = threading.get_ident()
        self._published: list[str] = []

    def __enter__(self) -> Self:
        before_task_publish.connect(self._restore_headers, weak=False)
        after_task_publish.connect(self._record, weak=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before_task_publish.disconnect(self._restore_headers)
        after_task_publish.disconnect(self._record)

    @property
    def is_published(self) -> bool:
        """Whether a message with the run id was published."""
        return self._run_id in self._published

    def check(self, task: str) -> None:
        """Raise NotPublishedError when no message with the run id was published."""
        if self.is_published:
            return
        reason = f"the application's own apply_async or send_task published no message of {task!r}"
        if self._published:
            others = ", ".join(self._published[:3])
            reason += (
                f" with the run id, but {len(self._published)} with other ids ({others}):"
                " pass task_id and **options on to Celery's method, so that the run is recorded"
            )
        raise NotPublishedError(reason)

    def _restore_headers(self, body: Any, headers: dict[str, Any], **_: Any) -> None:
        if threading.get_ident() == self._thread and _id_of(body, headers) == self._run_id:
            headers.update(self._headers)

    def _record(self, body: Any, headers: dict[str, Any], **_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._published.append(_id_of(body, headers))


def _id_of(body: Any, headers: Mapping[str, Any]) -> str:
    # Celery's protocol 1 keeps the id in the body.
    return str(body.get("id") if isinstance(body, dict) else headers.get("id"))


class TaskQueues:
    """The queues to which beat sends tasks. Imports the tasks: a queue can be in a definition."""

    def __init__(self, app: Celery, *, now: datetime) -> None:
        app.loader.import_default_modules()
        self._sender = MessageSender(app, now=lambda: now, driver_type="")
        self._now = now

    def of(
        self,
        task: str,
        options: object,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Return the queue of a task with these options, or None if it is not known.

        Beat reports why such a task cannot be published. Manual SQL can store any JSON as options.
        """
        if not isinstance(options, Mapping):
            return None
        run = OutgoingRun(
            run_id="",
            schedule_id=0,
            owner="",
            name="",
            version=0,
            task=task,
            args=args,
            kwargs=kwargs or {},
            options=options,
            fire_at=self._now,
        )
        try:
            return self._sender.queue(run)
        except RoutingError:
            return None
