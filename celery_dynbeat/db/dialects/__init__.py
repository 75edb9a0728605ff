"""The differences between the databases, as capabilities. Only this package knows their names.

A process uses one database, so it imports only that database's dialect.
"""

from functools import cache
from importlib import import_module

from sqlalchemy import Dialect

from celery_dynbeat.db.dialects.base import Capabilities

_EMBEDDED = "sqlite"
#: SQLAlchemy's name of a dialect -> module in this folder, and its class.
_KNOWN = {
    "postgresql": ("postgresql", "PostgreSql"),
    "mysql": ("mysql", "MySql"),
    "mariadb": ("mysql", "MySql"),
    _EMBEDDED: ("sqlite", "Sqlite"),
}


def capabilities_of(dialect: Dialect) -> Capabilities:
    """Return the capabilities of the database of ``dialect``.

    Raises NotImplementedError for a database that this package does not support.
    """
    check_supported(dialect.name)
    return _capabilities(*_KNOWN[dialect.name])


def check_supported(name: str) -> None:
    """Raise NotImplementedError if this package does not support the database ``name``."""
    if name not in _KNOWN:
        supported = ", ".join(sorted(_KNOWN))
        msg = f"database {name!r} is not supported; use one of: {supported}"
        raise NotImplementedError(msg)


@cache
def _capabilities(module: str, name: str) -> Capabilities:
    made: Capabilities = getattr(import_module(f"{__name__}.{module}"), name)()
    return made


def is_embedded(name: str) -> bool:
    """Return whether the dialect ``name`` stores its database in a local file."""
    return name == _EMBEDDED


__all__ = ["Capabilities", "capabilities_of", "check_supported", "is_embedded"]
