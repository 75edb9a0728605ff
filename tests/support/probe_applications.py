"""Applications whose task "probe" is sent but never executed, at a fixed instant."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu import Exchange, Queue
from kombu.serialization import register, unregister

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)


class _Frozen(Celery):  # type: ignore[misc]
    def now(self) -> datetime:
        return NOW


@contextmanager
def backwards_serializer() -> Iterator[None]:
    """Register a serializer with the name "backwards"."""
    register("backwards", lambda data: repr(data)[::-1], lambda data: data, "application/x-back")
    yield
    unregister("backwards")


def probe_application(
    broker: str,
    configuration: Mapping[str, Any],
    of_task: Mapping[str, Any],
    *,
    queues: Sequence[Queue] = (),
) -> Celery:
    """Return an application with its queues declared: "celery", "other" and ``queues``.

    ``of_task`` are the options of the task.
    """
    app = _Frozen(broker=broker, set_as_current=False)
    names = ("celery", "other")
    direct = [Queue(name, Exchange(name), routing_key=name) for name in names]
    app.conf.update(task_queues=[*direct, *queues])
    app.conf.update(configuration)

    @app.task(name="probe", shared=False, **of_task)  # type: ignore[untyped-decorator]
    def probe(*_args: Any, **_kwargs: Any) -> None:
        pass

    app.finalize()
    with app.connection_for_write() as connection:
        for queue in app.amqp.queues.values():
            queue(connection.default_channel).declare()
    return app
