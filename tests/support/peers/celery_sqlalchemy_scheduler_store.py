"""Write periodic tasks into the tables of celery-sqlalchemy-scheduler; rows of JSON are on stdin.

Its listeners do not work with SQLAlchemy 2. So the rows are inserted into the tables of its models.
"""

import json
import sys
from typing import Any

from celery_sqlalchemy_scheduler import models
from sqlalchemy import Connection, create_engine

from tests.support.peers.instants import with_instants

KINDS = {
    "interval": models.IntervalSchedule,
    "crontab": models.CrontabSchedule,
    "solar": models.SolarSchedule,
}


def _insert(connection: Connection, model: Any, fields: dict[str, Any]) -> int:
    result: Any = connection.execute(model.__table__.insert(), fields)
    return int(result.inserted_primary_key[0])


def main(url: str) -> None:
    """Create the tables in the database ``url``, and write the rows."""
    engine = create_engine(url)
    models.ModelBase.metadata.create_all(engine)
    with engine.begin() as connection:
        for row in json.load(sys.stdin):
            fields = with_instants(row)
            for kind in KINDS.keys() & fields.keys():
                fields[f"{kind}_id"] = _insert(connection, KINDS[kind], fields.pop(kind))
            _insert(connection, models.PeriodicTask, fields)


if __name__ == "__main__":
    main(*sys.argv[1:])
