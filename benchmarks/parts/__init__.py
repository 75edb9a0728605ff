"""The parts of the benchmarks, by name."""

from collections.abc import Mapping
from importlib import import_module

from benchmarks.bench import Part

#: In running order. Each is a module of this package with a function ``run(bench)``.
NAMES = (
    "burst",
    "memory",
    "lag",
    "start_lag",
    "idle",
    "start",
    "change",
    "worker",
    "create",
    "growth",
    "fairness",
    "flower",
    "long_run",
)
#: Parts that also run on services other than the reference.
ON_ALL_SERVICES = frozenset({"burst", "lag", "worker", "create"})


def select_parts(names: tuple[str, ...]) -> Mapping[str, Part]:
    """Return the named parts; without names, all except ``long_run``, which takes half an hour."""
    wanted = names or tuple(name for name in NAMES if name != "long_run")
    return {name: import_module(f"benchmarks.parts.{name}").run for name in wanted}
