"""For the migrations of an application whose database also holds the tables of celery_dynbeat.

``alembic revision --autogenerate`` proposes to drop each table that the application's own metadata
does not have. In the application's ``env.py``:

    from celery_dynbeat.alembic import include_name

    context.configure(..., include_name=include_name)
"""

from collections.abc import Mapping

#: The tables of every version begin so, those of newer versions included.
PREFIX = "dynbeat_"


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for the tables of celery_dynbeat, which its own migrations change.

    The signature is that of Alembic's ``include_name``, which is called for what the database has,
    before it is reflected. Combine it with a function of your own by ``and``.
    """
    del parent_names
    return not (type_ == "table" and name is not None and name.startswith(PREFIX))
