"""The admins of django-celery-beat and of this project open in each step of a switch."""

import json
import os
import subprocess
import sys

import pytest

PROJECT = """
import json, sys
from celery import Celery
from django.urls import path
from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session
from tests.support.django_project import configure

app = Celery("project", broker="memory://")
app.conf.update(dynbeat_database_url="django://default", beat_scheduler=sys.argv[1])
dynbeat = Dynbeat(app, current_session=current_session)
admin_apps = ["admin", "auth", "contenttypes", "sessions", "messages"]
configure(
    f"sqlite:///{sys.argv[2]}",
    use_tz=True,
    ALLOWED_HOSTS=["testserver"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        *(f"django.contrib.{name}" for name in admin_apps),
        "django_celery_beat",
        "celery_dynbeat.django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    ROOT_URLCONF="__main__",
    SECRET_KEY="test",
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }],
)

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

urlpatterns = [path("admin/", admin.site.urls)]
call_command("migrate", verbosity=0)
client = Client()
client.force_login(User.objects.create_superuser("admin"))
lists = ["django_celery_beat/periodictask", "dynbeat/schedule", "dynbeat/run"]
json.dump([client.get(f"/admin/{each}/").status_code for each in lists], sys.stdout)
"""

OLD = "django_celery_beat.schedulers:DatabaseScheduler"


@pytest.mark.parametrize("scheduler", [OLD, "celery_dynbeat:DatabaseScheduler", "dynbeat"])
def test_both_admins_open_in_each_step_of_a_switch(tmp_path, scheduler):
    # Models of django-celery-beat emit deprecation warnings.
    command = [sys.executable, "-W", "ignore", "-c", PROJECT, scheduler, tmp_path / "db.sqlite3"]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environment
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [200] * 3
