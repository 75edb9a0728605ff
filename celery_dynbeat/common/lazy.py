"""Names of a package that are imported when somebody asks for them (PEP 562).

A beat that has cron rules alone needs no recurrence rules of calendars, and a web process no beat;
what is not imported takes no memory, and no time at the start.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of ``package``.

    ``names`` are those of each of its modules. The modules can be asked for, too.
    """
    modules = {name: module for module, held in names.items() for name in held}
    children = {module.partition(".")[0]: module for module in names}

    def get(name: str) -> Any:
        if name in children:
            import_module(f"{package}.{children[name]}")
            return sys.modules[f"{package}.{name}"]
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{modules[name]}"), name)
        # Once: from now on it is there.
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *children, *modules})

    return get, listed
