"""The ports on which processes may export metrics."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Overrides dynbeat_metrics_port for one process.
VARIABLE = "DYNBEAT_METRICS_PORT"
MAX_PORT = 65_535
#: Ports in a range. A process tries them in order.
MAX_RANGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPorts:
    """The ports that a beat and a worker try, in order; () exports no metrics, 0 is any free port.

    False if no port is set.
    """

    beat: tuple[int, ...] = ()
    worker: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.beat or self.worker)


def metrics_ports(value: object) -> MetricsPorts:
    """Return the ports of dynbeat_metrics_port. Raises ValueError for an invalid value."""
    if not isinstance(value, Mapping):
        ports = parse_ports(value)
        return MetricsPorts(beat=ports, worker=ports)
    given: dict[str, Any] = {name: parse_ports(each) for name, each in value.items()}
    if not given or not given.keys() <= {"beat", "worker"}:
        msg = 'must have the keys "beat", "worker", or both'
        raise ValueError(msg)
    return MetricsPorts(**given)


def parse_ports(value: object) -> tuple[int, ...]:
    """Return the ports of ``9808``, ``"9808"`` or ``"9808-9819"``. Raises ValueError."""
    match = None if isinstance(value, bool) else re.fullmatch(r"(\d+)(?:-(\d+))?", str(value))
    msg = 'must be a port (0: any free port), a range such as "9808-9819", or a dict of them'
    if match is None or not isinstance(value, (int, str)):
        raise ValueError(msg)
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last <= MAX_PORT or last - first >= MAX_RANGE:
        raise ValueError(msg)
    return tuple(range(first, last + 1))
