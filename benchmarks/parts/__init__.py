"""The parts of the benchmarks, by name."""

from collections.abc import Mapping
from importlib import import_module

from benchmarks.bench import Part

#: In the order in which they run. Each is a module of this package with a function ``run(bench)``.
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
#: The parts that are also measured on other services than the reference ones.
EVERYWHERE = frozenset({"burst", "lag", "worker", "create"})


def chosen(names: tuple[str, ...]) -> Mapping[str, Part]:
    """Return the parts with these names; without names, all parts but ``long_run``."""
    wanted = names or tuple(name for name in NAMES if name != "long_run")
    return {name: import_module(f"benchmarks.parts.{name}").run for name in wanted}
