"""Write periodic tasks with the models of django-celery-beat; rows of JSON are on stdin.

Each row has the fields of PeriodicTask, and one of ``interval``, ``crontab``, ``solar`` and
``clocked`` with the fields of its model. ``raw`` are columns that are written past ``save()``.
"""

import json
import os
import sys

from tests.support.peers.instants import with_instants


def main(url: str) -> None:
    """Create the tables in the database ``url``, and write the rows."""
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.support.peers.django_settings"
    import django
    from django.core.management import call_command
    from django.db import transaction

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    from django_celery_beat import models

    kinds = {
        "interval": models.IntervalSchedule,
        "crontab": models.CrontabSchedule,
        "solar": models.SolarSchedule,
        "clocked": models.ClockedSchedule,
    }
    with transaction.atomic():
        for row in json.load(sys.stdin):
            raw = with_instants(row.pop("raw", {}))
            for kind in kinds.keys() & row.keys():
                row[kind] = kinds[kind].objects.get_or_create(**with_instants(row[kind]))[0]
            name = row.pop("name")
            task, _ = models.PeriodicTask.objects.update_or_create(
                name=name, defaults=with_instants(row)
            )
            if raw:
                models.PeriodicTask.objects.filter(pk=task.pk).update(**raw)


if __name__ == "__main__":
    main(*sys.argv[1:])
