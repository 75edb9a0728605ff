"""The queues of a worker: the names that its node row reports, and which one sent a message."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from celery import Celery
from kombu import Queue

#: Characters of a list of names. A longer one is not reported.
MAX_LENGTH = 65_536
#: What RabbitMQ's delayed delivery puts in front of the routing key: 28 bits.
_DELAY = re.compile(r"(?:[01]\.){28}")


class ReportedNames(NamedTuple):
    """JSON arrays of sorted names, None if the list is too long."""

    queues: str | None
    tasks: str | None


def reported_names(app: Celery) -> ReportedNames:
    """Return what the worker of ``app`` consumes and has registered now."""
    return ReportedNames(
        queues=_as_json(map(_shown, consumed_queues(app))),
        # A copy: another thread may add a task.
        tasks=_as_json(list(app.tasks)),
    )


def _as_json(names: Iterable[str]) -> str | None:
    text = json.dumps(sorted(names), separators=(",", ":"))
    return text if len(text) <= MAX_LENGTH else None


def consumed_queues(app: Celery) -> list[Queue]:
    """Return the queues that the worker of ``app`` consumes now."""
    # A copy: remote control adds and cancels queues in another thread.
    return list(app.amqp.queues.consume_from.values())


def _shown(queue: Any) -> str:
    # A broadcast queue has another name in each worker.
    return str(queue.alias or queue.name)


def delivered_queue(delivery_info: Mapping[str, Any], queues: Iterable[Queue]) -> str | None:
    """Return the name of one of ``queues``, which the worker consumes; None if it is not clear.

    Celery passes on the exchange and the routing key of a message, not its queue. A routing key
    such as ``reports.user.42`` has no bound on its values, so it is no label of a metric.
    """
    exchange, key = delivery_info.get("exchange") or "", delivery_info.get("routing_key") or ""
    original = _DELAY.sub("", key, count=1)
    if not key:
        return None
    # The exchange of a delayed message is that of the delayed delivery.
    is_delayed = original != key

    def has_name(queue: Queue) -> bool:
        return (is_delayed or not exchange) and bool(queue.name == original)

    def has_key(queue: Queue) -> bool:
        matching = (
            is_delayed or bound == exchange for bound, key in _bindings(queue) if key == original
        )
        return any(matching)

    def has_exchange(queue: Queue) -> bool:
        return exchange != "" and exchange in {bound for bound, _ in _bindings(queue)}

    consumed = list(queues)
    for is_match in (has_name, has_key, has_exchange):
        if found := [queue for queue in consumed if is_match(queue)]:
            return _shown(found[0]) if len(found) == 1 else None
    return _shown(consumed[0]) if len(consumed) == 1 else None


def _bindings(queue: Queue) -> set[tuple[str, str]]:
    """Return exchange and routing key of each binding."""
    bindings = [(queue.exchange, queue.routing_key)]
    bindings += [(each.exchange, each.routing_key) for each in queue.bindings]
    return {(getattr(exchange, "name", "") or "", key or "") for exchange, key in bindings}
