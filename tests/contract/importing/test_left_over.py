"""The schedules of earlier imports that the source no longer has: keys only, in bounded pages."""

from celery_dynbeat import Every
from celery_dynbeat.importing.foreign import Converted, ForeignEntry
from celery_dynbeat.importing.writing import Importer
from celery_dynbeat.store.schedules import imports
from tests.support.applications import MINUTELY
from tests.support.suites import each_database

ROWS, LIMIT, OWNERS = 900, 100, 7


def found(number):
    converted = Converted(task="t", trigger=Every(300))
    return ForeignEntry(
        name=f"n{number:04}", described="", row={"number": number}, converted=converted
    )


def owner_of(each):
    return f"user:{each.row['number'] % OWNERS}" if each.row["number"] % OWNERS else ""


def importer_of(dynbeat, package="redbeat"):
    return Importer(dynbeat.context, package, owner_of, dry_run=False)


@each_database
def test_each_schedule_is_named_once_in_the_order_of_owner_and_name(dynbeat, mine, monkeypatch):
    importer_of(dynbeat).write([found(number) for number in range(60)])
    importer_of(dynbeat, "django-celery-beat").write([found(number) for number in range(100, 160)])
    mine.create("own", task="t", trigger=MINUTELY, tags=["import:redbeat2"])
    again = importer_of(dynbeat)
    again.write([found(number) for number in range(0, 60, 2)])
    # 121 schedules: the last page is full.
    monkeypatch.setattr(imports, "PAGE_SIZE", 11)

    left = list(again.left_over())

    assert left == sorted((owner_of(found(n)), f"n{n:04}") for n in range(1, 60, 2))
