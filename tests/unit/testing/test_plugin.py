"""The fixtures, in a project that uses only the package and pytest."""

import subprocess
import sys

PROJ = """
from datetime import timedelta
from celery import Celery
from celery_dynbeat import Dynbeat, Every

app = Celery("proj", broker="memory://")
app.conf.dynbeat_database_url = "postgresql+psycopg://nowhere.invalid/app"
dynbeat = Dynbeat(app)
sent = []

@app.task(name="mail.remind", bind=True)
def remind(self, user_id):
    sent.append((user_id, self.request.dynbeat_fire_at))

def remind_daily(user_id):
    mine = dynbeat.schedules.for_owner(f"user:{user_id}")
    mine.upsert(
        "reminder", task="mail.remind", args=[user_id], trigger=Every(timedelta(days=1))
    )
"""
CONFTEST = """
import pytest

@pytest.fixture
def dynbeat_instance():
    from proj import dynbeat
    return dynbeat
"""
TEST = """
import proj

def test_a_reminder_goes_out_each_day(dynbeat_beat, dynbeat_clock):
    proj.remind_daily(42)
    dynbeat_clock.advance(86_400)
    dynbeat_beat.run_until_idle()
    assert proj.sent == [(42, "2026-01-06T09:00:00+00:00")]
"""


def run_pytest(folder):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_fixtures_run_beat_and_tasks_of_a_module_level_dynbeat(tmp_path):
    (tmp_path / "proj.py").write_text(PROJ)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)

    result = run_pytest(tmp_path)

    assert "1 passed" in result.stdout, result.stdout


def test_without_the_dynbeat_of_the_application_the_fixture_names_the_fix(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(dynbeat_beat): pass\n")

    result = run_pytest(tmp_path)

    assert "define a fixture `dynbeat_instance` in conftest.py" in result.stdout


def test_a_project_that_does_not_use_the_fixtures_imports_no_celery(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it(): assert not {'celery', 'sqlalchemy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:celery", str(tmp_path)]

    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "1 passed" in result.stdout, result.stdout
