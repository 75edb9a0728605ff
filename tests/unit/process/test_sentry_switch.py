"""dynbeat_sentry_monitors: off by default, and sentry-sdk is then neither imported nor needed."""

import subprocess
import sys
import textwrap

BLOCKED = """
    import sys
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "sentry_sdk":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Blocker())
    from celery import Celery
    from celery_dynbeat import ConfigurationError, Dynbeat
    from celery_dynbeat.beat.runtime import BeatRuntime
    from celery_dynbeat.process.context import connect_monitors
    from celery_dynbeat.worker.bootsteps import DynbeatStep
    app = Celery("t", broker="memory://")
    app.conf.dynbeat_database_url = "sqlite://"
"""


def python(code):
    script = textwrap.dedent(BLOCKED) + textwrap.dedent(code)
    ran = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True)
    return ran.stdout.strip()


def test_without_the_setting_sentry_is_not_needed():
    assert python("print(connect_monitors(Dynbeat(app).context))") == "None"


def test_the_setting_without_sentry_stops_a_worker_with_the_fix():
    code = """
        app.conf.dynbeat_sentry_monitors = ["*"]
        Dynbeat(app)
        try:
            with app.connection_for_read():
                app.Worker(pool="solo", loglevel="ERROR")
        except ConfigurationError as error:
            print(error)
    """
    assert "pip install sentry-sdk, or remove the setting" in python(code)
