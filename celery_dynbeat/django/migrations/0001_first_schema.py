"""Django's record of the revision of Alembic with this name, which changes the tables."""

from django.db import migrations
from django.db.migrations.state import ModelState

from celery_dynbeat.django.apps import migrate_tables
from celery_dynbeat.django.models import Run, Schedule

# The models are unmanaged: only their present state matters, and makemigrations never changes it.
STATES = [ModelState.from_model(each) for each in (Schedule, Run)]


class Migration(migrations.Migration):
    """The models, and their tables."""

    # The tables are changed on another connection, which would wait for a transaction of this one.
    atomic = False
    operations = (
        *(
            migrations.CreateModel(each.name, [*each.fields.items()], each.options)
            for each in STATES
        ),
        migrations.RunPython(migrate_tables, migrations.RunPython.noop),
    )
