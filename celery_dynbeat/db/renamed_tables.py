"""Give the tables of the models the schema and the prefix of this process.

Celery names its result tables in the same way (``database_table_schemas``,
``database_table_names``): it sets the attributes of each Table before the first statement.
"""

from celery_dynbeat.db import names
from celery_dynbeat.db.alert_models import Alert  # noqa: F401 - its tables join the metadata
from celery_dynbeat.db.models import Base
from celery_dynbeat.db.names import PREFIX, TableNames


def use(table_names: TableNames) -> None:
    """Choose the names for this process. The first choice counts.

    Raises ConfigurationError if another choice was made before.
    """
    if not names.choose(table_names):
        return
    # The keys of the metadata stay: foreign keys refer to them.
    for key, table in Base.metadata.tables.items():
        table.schema = table_names.schema
        table.name = table_names.of(key.removeprefix(PREFIX))
