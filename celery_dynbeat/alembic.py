"""Support for an application whose Alembic migrations run on a database with our tables.

``alembic revision --autogenerate`` proposes to drop each table that the application's metadata
does not contain. Write in the application's ``env.py``:

    from celery_dynbeat.alembic import include_name

    context.configure(..., include_name=include_name)
"""

from collections.abc import Mapping

#: The prefix of the tables of all versions, newer versions included.
PREFIX = "dynbeat_"


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for the tables of celery_dynbeat, which has its own migrations.

    The signature is that of Alembic's ``include_name``. Alembic calls it with each name in the
    database before it reflects the object. Combine it with your own function by ``and``.
    """
    del parent_names
    return not (type_ == "table" and name is not None and name.startswith(PREFIX))
