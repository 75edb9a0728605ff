"""``delete_schedules_with`` deletes each schedule that belongs to a deleted row."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.empty_database

PROJECT = """
import json, sys
from celery import Celery
from django.core.management import call_command
from celery_dynbeat import ConfigurationError, Dynbeat
from celery_dynbeat.db import schema
from celery_dynbeat.django import current_session, delete_schedules_with
from tests.support.django_project import configure

app = Celery("project", broker="memory://")
app.conf.dynbeat_database_url = sys.argv[2]
dynbeat = Dynbeat(app, current_session=current_session if "join" in sys.argv else None)
installed = ["django.contrib.contenttypes", "django.contrib.auth", "celery_dynbeat.django"]
configure(sys.argv[1], use_tz=True, INSTALLED_APPS=installed)
call_command("migrate", verbosity=0)
schema.upgrade(dynbeat.context.database)
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType

class Staff(User):
    class Meta:
        proxy = True
        app_label = "auth"

delete_schedules_with(ContentType, owner=lambda row: "")
delete_schedules_with(User, owner=lambda user: f"user:{user.username}")
for kind in ("daily", "weekly"):
    named = lambda group, kind=kind: f"{kind}-{group.name}"
    delete_schedules_with(Group, owner=lambda group: "groups", name=named)

def create(owner, name):
    dynbeat.schedules.for_owner(owner).create(name, task="t", trigger="PT1H")

def left(owner):
    return [each.name for each in dynbeat.schedules.for_owner(owner).list()]

seen = {}
for model in (User, Staff):
    User.objects.create(username="ann")
    create("user:ann", "a")
    try:
        model.objects.get(username="ann").delete()
    except ConfigurationError as error:
        json.dump([str(error), User.objects.count(), left("user:ann")], sys.stdout)
        sys.exit()
    seen[model.__name__] = left("user:ann")
group = Group.objects.create(name="x")
for name in ("daily-x", "weekly-x", "daily-y"):
    create("groups", name)
group.delete()
seen["Group"] = left("groups")
create("", "own")
try:
    ContentType.objects.create(app_label="a", model="b").delete()
except ConfigurationError as error:
    seen["ContentType"] = str(error).partition(":")[0], left("")
json.dump(seen, sys.stdout)
"""


def left(*arguments):
    command = [sys.executable, "-c", PROJECT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("by_alias", [True, False], ids=["alias", "url"])
def test_a_deleted_row_takes_its_schedules_along_also_by_a_proxy_and_for_each_name(
    sqlite_url, by_alias
):
    seen = left(sqlite_url, "django://default" if by_alias else sqlite_url, "join")

    refused = "delete_schedules_with(ContentType)"
    assert seen == {
        "User": [], "Staff": [], "Group": ["daily-y"], "ContentType": [refused, ["own"]]
    }  # fmt: skip


def test_a_row_stays_if_its_schedules_are_in_another_database(sqlite_url):
    error, users, names = left(sqlite_url, f"{sqlite_url}_elsewhere")

    assert "set dynbeat_database_url = 'django://default'" in error
    assert (users, names) == (1, ["a"])
