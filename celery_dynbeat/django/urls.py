"""The database of a Django project as a SQLAlchemy URL."""

from typing import Any

from django.conf import settings
from sqlalchemy import URL

from celery_dynbeat.common.errors import ConfigurationError

#: Django's ENGINE -> the scheme, and the OPTIONS that are parameters of the URL, too.
_SCHEMES = {
    "django.db.backends.postgresql": "postgresql+psycopg",
    "django.contrib.gis.db.backends.postgis": "postgresql+psycopg",
    "django.db.backends.mysql": "mysql+pymysql",
    "django.db.backends.sqlite3": "sqlite",
}
_LIBPQ = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "options"})


def database_url(alias: str = "default") -> str:
    """Return the URL of ``settings.DATABASES[alias]``, for ``dynbeat_database_url``.

    The password is escaped. Django's other OPTIONS belong to ``dynbeat_engine_options``, and a
    libpq service or passfile to the environment. Raises ConfigurationError for an unknown alias or
    engine.
    """
    if alias not in settings.DATABASES:
        known = ", ".join(map(repr, settings.DATABASES))
        raise ConfigurationError(f"DATABASES has no {alias!r}: it has {known}")
    return url_of(settings.DATABASES[alias]).render_as_string(hide_password=False)


def url_of(database: dict[str, Any]) -> URL:
    """Return the URL of one entry of DATABASES. Raises ConfigurationError for its engine."""
    engine = database.get("ENGINE", "")
    if engine not in _SCHEMES:
        known = ", ".join(_SCHEMES)
        raise ConfigurationError(f"ENGINE {engine!r} is not supported: use one of {known}")
    scheme, name = _SCHEMES[engine], str(database.get("NAME") or "")
    if scheme == "sqlite":
        return URL.create(scheme, database=name)
    options = database.get("OPTIONS", {})
    is_libpq = scheme.startswith("postgresql")
    return URL.create(
        scheme,
        username=database.get("USER") or None,
        password=database.get("PASSWORD") or None,
        host=database.get("HOST") or None,
        port=int(database["PORT"]) if database.get("PORT") else None,
        database=name,
        query={key: str(options[key]) for key in _LIBPQ & options.keys()} if is_libpq else {},
    )
