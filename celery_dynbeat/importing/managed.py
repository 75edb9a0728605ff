"""The entries of ``beat_schedule``, which beat keeps as schedules itself.

Other schedulers copy them into their stores. An import gives such a row the definition that beat
would write, and the progress of the source, so that beat treats the row as one that it has written.
"""

from collections.abc import Mapping

from celery_dynbeat.beat import config_sync
from celery_dynbeat.importing.found import Converted
from celery_dynbeat.process.context import Context


def entries(context: Context) -> Mapping[str, Converted]:
    """Return the valid entries by name, without progress."""
    found = context.beat_schedule.items()
    converted = {name: config_sync.convert(context, entry) for name, entry in found if entry}
    return {
        str(name): Converted(
            task=fields["task"],
            trigger=fields["trigger"],
            fields={key: fields[key] for key in fields.keys() - {"task", "trigger"}},
        )
        for name, fields in converted.items()
        if isinstance(fields, Mapping)
    }
