"""``django://ALIAS`` is the source and the target of an import in a Django project."""

import subprocess
import sys

from tests.support.peers import write_store

SETTINGS = """
import os
CELERY_BROKER_URL = "memory://"
CELERY_DYNBEAT_DATABASE_URL = "django://default"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["STORE"]},
}
SECRET_KEY = "of a test"
USE_TZ = True
"""
PROJECT = """
import os
from celery import Celery
from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session
os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
dynbeat = Dynbeat(app, current_session=current_session)
"""


def test_the_alias_of_a_project_is_source_and_target(tmp_path, monkeypatch):
    (tmp_path / "project_settings.py").write_text(SETTINGS)
    (tmp_path / "project_app.py").write_text(PROJECT)
    store = tmp_path / "store.sqlite3"
    row = {"name": "digest", "task": "t", "interval": {"every": 5, "period": "minutes"}}
    write_store("django-celery-beat", [row], f"sqlite:///{store}")
    monkeypatch.setenv("STORE", str(store))

    def run(*arguments):
        command = [sys.executable, "-m", "celery", "-A", "project_app", "dynbeat", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )

    imported = run("import", "django-celery-beat", "django://default", "--apply")
    unknown = run("import", "django-celery-beat", "django://other")
    listed = run("list")

    assert imported.returncode == 0, imported.stderr
    assert "digest" in listed.stdout
    assert unknown.returncode == 1
    assert "DATABASES has no alias 'other'; write django://default" in unknown.stderr
    # The tables are in the store of the old scheduler.
    assert "store.sqlite3" in run("schema", "check").stdout
