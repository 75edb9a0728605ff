"""The database of a Django project: ``django://default`` is ``settings.DATABASES["default"]``.

Django's test runner gives an alias another database during the tests. The address is therefore read
from the alias at each use, and ``Database`` connects again when it has changed. A test without a
test database would write to the real database. It is therefore refused, as Django refuses its own
queries.

Source of the keys: Django's "Databases" and "Settings: DATABASES".
"""

import asyncio
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy import URL
from sqlalchemy.pool import NullPool

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db import DEFAULT_ALIAS, DJANGO_SCHEME

_POSTGRESQL = "postgresql+psycopg"
_MYSQL = "mysql+pymysql"
#: Django's ENGINE -> the scheme of the URL.
_SCHEMES: Mapping[str, str] = {
    "django.db.backends.postgresql": _POSTGRESQL,
    "django.contrib.gis.db.backends.postgis": _POSTGRESQL,
    "django.db.backends.mysql": _MYSQL,
    "django.contrib.gis.db.backends.mysql": _MYSQL,
    "django.db.backends.sqlite3": "sqlite",
    "django.contrib.gis.db.backends.spatialite": "sqlite",
}
#: Django's name of a database -> the scheme of the URL.
_SCHEMES_OF_VENDORS: Mapping[str, str] = {
    "postgresql": _POSTGRESQL,
    "mysql": _MYSQL,
    "sqlite": "sqlite",
}
#: OPTIONS that Django does not pass to its driver. The package sets its own isolation level.
_OF_DJANGO = frozenset(
    {
        *("pool", "isolation_level", "server_side_binding", "assume_role", "transaction_mode"),
        *("init_command", "factory", "detect_types", "check_same_thread", "uri", "cursor_factory"),
    }
)
#: OPTIONS of PostgreSQL that a URL can also have.
_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "options")


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a database. ``connect_args`` are arguments of its driver that the URL lacks.

    ``is_tested`` is true while Django's ``setup_test_environment()`` is in force.
    """

    url: URL
    connect_args: Mapping[str, Any] = field(default_factory=dict)
    is_tested: bool = False

    @property
    def engine_options(self) -> dict[str, Any]:
        """The options of an engine for this address, without ``connect_args``."""
        # Django copies and drops a test database, which must have no other connection.
        return {"poolclass": NullPool} if self.is_tested else {}


def address_of(alias: str) -> DatabaseAddress:
    """Return where the database ``alias`` is now.

    Raises ConfigurationError without Django or its settings, for an unknown alias or engine.
    """
    databases = _databases()
    if alias not in databases:
        known = " or ".join(f"{DJANGO_SCHEME}{each}" for each in sorted(databases))
        raise ConfigurationError(
            f"{DJANGO_SCHEME}{alias}: DATABASES has no alias {alias!r}; write {known}, or add"
            " the alias"
        )
    return replace(address_in(databases[alias], alias=alias), is_tested=_is_tested())


def check_access(alias: str) -> None:
    """Raise the error of Django or pytest-django in a test that may not use ``alias``."""
    from django.core.exceptions import SynchronousOnlyOperation  # noqa: PLC0415 - an extra
    from django.db import connections  # noqa: PLC0415

    connection = connections[alias]
    was_open = connection.connection is not None
    # An event loop cannot use Django's connection. There Django's own refusal comes first.
    with suppress(SynchronousOnlyOperation):
        # pytest-django replaces this method.
        connection.ensure_connection()
    with suppress(SynchronousOnlyOperation), connection.cursor():
        pass
    if not was_open and connection.connection is not None:
        connection.close()


def check_own_connection(alias: str) -> None:
    """Raise an error in a test that must not use another connection to ``alias`` than Django's.

    Raises the errors of ``check_access``. Raises ConfigurationError in a TestCase, because another
    connection would not see its rows, and would leave rows for later tests.
    """
    from django.db import connections  # noqa: PLC0415 - an extra

    check_access(alias)
    if is_in_testcase(connections[alias]):
        raise ConfigurationError(
            f"this TestCase rolls back its transaction on Django's connection of {alias!r}, which"
            " AsyncDynbeat, ManualBeat and a Dynbeat without current_session do not join: use a"
            " TransactionTestCase, or @pytest.mark.django_db(transaction=True), and at its end"
            " celery_dynbeat.testing.delete_rows(dynbeat)"
        )


async def check_own_connection_of_loop(alias: str) -> None:
    """Do the same in an event loop, whose thread may differ from the test's thread."""
    from asgiref.sync import sync_to_async  # noqa: PLC0415 - of Django

    # While a loop runs, Django has other connections than the thread has without a loop.
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # noqa: SLF001 - documented for event loops
    try:
        check_own_connection(alias)
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001
    # async_to_sync() runs the loop in another thread, and this function in the thread of the test.
    await sync_to_async(check_own_connection)(alias)


def is_in_testcase(connection: Any) -> bool:
    """Return whether a TestCase of Django rolls back what ``connection`` changes."""
    return any(each._from_testcase for each in connection.atomic_blocks)  # noqa: SLF001


def is_in_transaction(alias: str) -> bool:
    """Return whether Django has a transaction of ``alias`` in this thread."""
    from django.db import connections  # noqa: PLC0415 - an extra

    connection = connections[alias]
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not connection.autocommit


def mysql_scheme() -> str:
    """Return the scheme of the driver that Django uses: PyMySQL can replace mysqlclient."""
    try:
        driver = import_module("MySQLdb").__name__
    except ModuleNotFoundError:
        return _MYSQL
    return _MYSQL if driver == "pymysql" else "mysql+mysqldb"


def _databases() -> Mapping[str, Mapping[str, Any]]:
    """Return the databases of Django. Its test runner changes these dicts."""
    try:
        from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415 - an extra
        from django.db import connections  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"dynbeat_database_url = {DJANGO_SCHEME}...: Django is not installed; install"
            " celery-dynbeat[django], or write the URL of the database"
        ) from error
    try:
        databases: Mapping[str, Mapping[str, Any]] = connections.settings
    except ImproperlyConfigured as error:
        raise ConfigurationError(
            f"dynbeat_database_url = {DJANGO_SCHEME}...: Django has no settings here; set"
            " DJANGO_SETTINGS_MODULE before the Celery application is created"
        ) from error
    return databases


def address_in(database: Mapping[str, Any], *, alias: str = DEFAULT_ALIAS) -> DatabaseAddress:
    """Return the address of one entry of DATABASES. Raises ConfigurationError for its engine."""
    engine = str(database.get("ENGINE") or "")
    scheme = _scheme_of(engine)
    if scheme is None:
        known = ", ".join(_SCHEMES)
        raise ConfigurationError(
            f"DATABASES[{alias!r}] has the ENGINE {engine!r}, which is not supported: use one of"
            f" {known}; or write another alias or a URL into dynbeat_database_url"
        )
    if scheme == "sqlite":
        return DatabaseAddress(_sqlite_url(str(database.get("NAME") or "")))
    options = dict(database.get("OPTIONS") or {})
    host = str(database.get("HOST") or "")
    if scheme == _MYSQL and host.startswith("/"):
        options["unix_socket"], host = host, ""
    if scheme == _POSTGRESQL and options.get("assume_role"):
        options["options"] = _assuming(str(options["assume_role"]), options.get("options"))
    in_url = _LIBPQ if scheme == _POSTGRESQL else ()
    url = URL.create(
        mysql_scheme() if scheme == _MYSQL else scheme,
        username=database.get("USER") or None,
        password=database.get("PASSWORD") or None,
        host=host or None,
        port=int(database["PORT"]) if database.get("PORT") else None,
        database=str(database.get("NAME") or "") or None,
        query={key: str(options.pop(key)) for key in in_url if key in options},
    )
    return DatabaseAddress(url, {key: options[key] for key in options.keys() - _OF_DJANGO})


@cache
def _scheme_of(engine: str) -> str | None:
    """Return the scheme for an ENGINE or None. The backend may extend one of Django's backends."""
    if engine in _SCHEMES:
        return _SCHEMES[engine]
    try:
        vendor = import_module(f"{engine}.base").DatabaseWrapper.vendor
    # A backend whose driver is not installed raises errors of Django.
    except Exception:  # noqa: BLE001
        return None
    return _SCHEMES_OF_VENDORS.get(vendor)


def _assuming(role: str, options: object) -> str:
    """Return the options of libpq with which a connection has ``role``, as Django's options do."""
    escaped = re.sub(r"([\\\s])", r"\\\1", role)
    return f"{options or ''} -c role={escaped}".strip()


def _sqlite_url(name: str) -> URL:
    """Return the URL of a file, or of a database in memory that the test runner names by a URI."""
    if not name.startswith("file:"):
        return URL.create("sqlite", database=name)
    file, _, query = name.partition("?")
    pairs = dict(pair.split("=", 1) for pair in query.split("&") if "=" in pair)
    return URL.create("sqlite", database=file, query={**pairs, "uri": "true"})


def _is_tested() -> bool:
    """Return whether Django's ``setup_test_environment()`` is in force."""
    utils = sys.modules.get("django.test.utils")
    return hasattr(getattr(utils, "_TestState", None), "saved_data")
