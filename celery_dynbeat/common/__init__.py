"""Names of a package that are imported at their first use (PEP 562).

A beat with cron triggers only does not need recurrence rules, and a web process does not need beat.
A module that is not imported costs no memory and no start-up time.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of ``package``.

    ``names`` maps each module of the package to its exported names. The modules are also
    attributes.
    """
    modules = {name: module for module, exported in names.items() for name in exported}
    children = {module.partition(".")[0]: module for module in names}

    def get(name: str) -> Any:
        if name in children:
            import_module(f"{package}.{children[name]}")
            return sys.modules[f"{package}.{name}"]
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        # Python calls __getattr__ only for names that are not set.
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *children, *modules})

    return get, list_names
