"""Where the tables of this process are: their schema, the prefix of their names, Django's alias.

The models and migrations have the prefix ``dynbeat_``. ``db.models`` changes the tables of the
models once for each process, before its first statement. Statements therefore cost the same as with
the default names, and are correct on each connection, including the application's connections.
"""

import re
import threading
from dataclasses import dataclass

from celery_dynbeat.common.errors import ConfigurationError

#: The prefix in the models and migrations, and of the default names.
PREFIX = "dynbeat_"
#: The table with the revision, in the default names.
VERSION_TABLE = f"{PREFIX}alembic_version"
#: PostgreSQL's limit of an identifier, in bytes; MySQL has 64.
MAX_IDENTIFIER = 63

#: The key in ``Session.info`` of a session whose calls run in savepoints.
SAVEPOINTS = "dynbeat_savepoints"

#: A URL that names a database of a Django project by its alias.
DJANGO_SCHEME = "django://"
DEFAULT_ALIAS = "default"

_NAME = re.compile(rf"\b(?P<kind>ix_|uq_|ck_|fk_|pk_)?{PREFIX}")
#: MySQL and MariaDB have names of indexes per table, and queries name them in hints.
_PER_TABLE = frozenset({"ix_", "uq_"})


@dataclass(frozen=True, slots=True)
class TableNames:
    """The schema of the tables, or None for the connection's own, and the prefix of their names."""

    schema: str | None = None
    prefix: str = PREFIX

    def of(self, table: str) -> str:
        """Return the name of a table, of which ``table`` is the name without a prefix."""
        return f"{self.prefix}{table}"

    @property
    def version_table(self) -> str:
        """The name of the table with the revision."""
        return self.of("alembic_version")

    @property
    def channel(self) -> str:
        """The channel of PostgreSQL's notifications. Other tables have another channel."""
        name = self.of("change")
        return name if self.schema is None else f"{self.schema}.{name}"[-MAX_IDENTIFIER:]

    def rename(self, sql: str, *, backend: str) -> str:
        """Return the SQL of a migration with the prefix in place of ``dynbeat_``.

        ``backend`` is SQLAlchemy's name of the database.
        """
        keeps_indexes = backend in {"mysql", "mariadb"}

        def renamed(match: re.Match[str]) -> str:
            kind = match["kind"] or ""
            return match[0] if keeps_indexes and kind in _PER_TABLE else kind + self.prefix

        if self.prefix == PREFIX:
            return sql
        # The schema of the version table is not changed, although its name may also begin with the
        # prefix.
        version_table = re.compile(rf"(\S*\b{self.version_table}\b)")
        parts = version_table.split(sql)
        parts[::2] = [_NAME.sub(renamed, part) for part in parts[::2]]
        return "".join(parts)


_chosen: TableNames | None = None
_lock = threading.Lock()


def table_names() -> TableNames:
    """Return the names of the tables of this process."""
    return _chosen or TableNames()


def choose(names: TableNames) -> bool:
    """Choose the names of this process. Return whether this is the first choice.

    Raises ConfigurationError if it differs from the first choice: statements use that one.
    """
    global _chosen  # noqa: PLW0603 - the tables of the models belong to the process, too
    with _lock:
        if _chosen is None:
            _chosen = names
            return True
    if _chosen != names:
        raise ConfigurationError(
            f"dynbeat_schema = {names.schema!r} and dynbeat_table_prefix = {names.prefix!r}: this"
            f" process uses {_chosen.schema!r} and {_chosen.prefix!r}; give all applications of a"
            " process the same tables, or use several processes"
        )
    return False


def alias_of(url: str) -> str | None:
    """Return the alias that ``django://ALIAS`` names; None for any other URL."""
    if not url.lower().startswith(DJANGO_SCHEME):
        return None
    return url[len(DJANGO_SCHEME) :].strip("/") or DEFAULT_ALIAS
