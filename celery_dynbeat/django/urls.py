"""The database of a Django project as a SQLAlchemy URL, for a project's own SQLAlchemy code.

dynbeat itself needs no URL: ``dynbeat_database_url = "django://default"`` names the alias.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL

from celery_dynbeat.db import DEFAULT_ALIAS
from celery_dynbeat.db.django_databases import address_in, address_of


def database_url(alias: str = DEFAULT_ALIAS) -> str:
    """Return the present URL of ``settings.DATABASES[alias]``, with its password.

    Raises ConfigurationError for an unknown alias or engine.
    """
    return address_of(alias).url.render_as_string(hide_password=False)


def url_of(database: Mapping[str, Any]) -> URL:
    """Return the URL of one entry of DATABASES. Raises ConfigurationError for its engine.

    OPTIONS that a URL cannot have are not in it.
    """
    return address_in(database).url
