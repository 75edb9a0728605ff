"""Write periodic tasks with the models of sqlalchemy-celery-beat; rows of JSON are on stdin.

Each row has the fields of PeriodicTask, and one of ``interval``, ``crontab``, ``solar`` and
``clocked`` with the fields of its model.
"""

import json
import sys

from sqlalchemy_celery_beat import models
from sqlalchemy_celery_beat.session import SessionManager

from tests.support.peers.instants import with_instants

KINDS = {
    "interval": models.IntervalSchedule,
    "crontab": models.CrontabSchedule,
    "solar": models.SolarSchedule,
    "clocked": models.ClockedSchedule,
}


def main(url: str, schema: str | None = None) -> None:
    """Create the tables in the database ``url``, and write the rows."""
    manager = SessionManager()
    engine, make_session = manager.create_session(url, schema=schema)
    manager.prepare_models(engine, schema=schema)
    with make_session() as session:
        for row in json.load(sys.stdin):
            fields = with_instants(row)
            for kind in KINDS.keys() & fields.keys():
                model = KINDS[kind](**with_instants(fields.pop(kind)))
                session.add(model)
                session.flush()
                fields["schedule_model"] = model
            task = session.query(models.PeriodicTask).filter_by(name=row["name"]).first()
            if task is None:
                session.add(models.PeriodicTask(**fields))
            else:
                task.update(**fields)
            session.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
