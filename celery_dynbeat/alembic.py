"""Support for an application whose Alembic migrations run on a database with our tables.

``alembic revision --autogenerate`` proposes to drop each table that the application's metadata
does not contain. Write in the application's ``env.py``:

    from celery_dynbeat.alembic import include_name

    context.configure(..., include_name=include_name)

If you use ``dynbeat_table_prefix``, pass the prefix: ``include_name=excluding(prefix="billing_")``.
"""

from collections.abc import Callable, Mapping

#: The prefix of the tables of all versions, newer versions included.
PREFIX = "dynbeat_"


def excluding(prefix: str) -> Callable[[str | None, str, Mapping[str, str | None]], bool]:
    """Return a function like ``include_name`` for tables with this ``dynbeat_table_prefix``.

    All tables whose name begins with the prefix are excluded. Do not use it for other tables.
    """

    def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
        del parent_names
        return not (type_ == "table" and name is not None and name.startswith(prefix))

    return include_name


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for the tables of celery_dynbeat, which has its own migrations.

    The signature is the same as for Alembic's ``include_name``. Alembic calls it with each name in
    the database before it reflects the object. To add your own condition, combine both functions
    with ``and``.
    """
    return excluding(PREFIX)(name, type_, parent_names)
