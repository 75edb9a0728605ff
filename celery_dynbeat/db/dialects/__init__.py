"""What differs between the databases, as capabilities. The only place that knows their names.

A process talks to one database; what the others need is not imported there.
"""

from functools import cache
from importlib import import_module

from sqlalchemy import Dialect

from celery_dynbeat.db.dialects.base import Capabilities

_EMBEDDED = "sqlite"
#: SQLAlchemy's names of the dialects; the module here, and its class.
_KNOWN = {
    "postgresql": ("postgresql", "PostgreSql"),
    "mysql": ("mysql", "MySql"),
    "mariadb": ("mysql", "MySql"),
    _EMBEDDED: ("sqlite", "Sqlite"),
}


def capabilities_of(dialect: Dialect) -> Capabilities:
    """Return what the database behind ``dialect`` can do.

    Raises NotImplementedError for a database that this package was not built for.
    """
    if dialect.name not in _KNOWN:
        supported = ", ".join(sorted(_KNOWN))
        msg = f"database {dialect.name!r} is not supported; use one of: {supported}"
        raise NotImplementedError(msg)
    return _capabilities(*_KNOWN[dialect.name])


@cache
def _capabilities(module: str, name: str) -> Capabilities:
    made: Capabilities = getattr(import_module(f"{__name__}.{module}"), name)()
    return made


def is_embedded(name: str) -> bool:
    """Return whether the database that SQLAlchemy calls ``name`` is a file of this machine."""
    return name == _EMBEDDED


__all__ = ["Capabilities", "capabilities_of", "is_embedded"]
