"""The parts, by the names under which each can be run alone."""

from collections.abc import Mapping
from importlib import import_module

from benchmarks.bench import Part

#: In the order in which they are run. Each is a module here with a function ``run(bench)``.
NAMES = (
    "burst",
    "memory",
    "lag",
    "idle",
    "start",
    "change",
    "worker",
    "create",
    "growth",
    "fairness",
    "long_run",
)
#: Those that say something about other services than the reference ones.
EVERYWHERE = frozenset({"burst", "lag", "worker", "create"})


def chosen(names: tuple[str, ...]) -> Mapping[str, Part]:
    """Return the parts of these names; none given are all but the half hour of ``long_run``."""
    wanted = names or tuple(name for name in NAMES if name != "long_run")
    return {name: import_module(f"benchmarks.parts.{name}").run for name in wanted}
