"""dynbeat_traces: off by default, and OpenTelemetry is then neither imported nor needed."""

import subprocess
import sys
import textwrap

from celery import Celery

from celery_dynbeat import Dynbeat

BLOCKED = """
    import sys
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "opentelemetry":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Blocker())
    from celery import Celery
    from celery_dynbeat import ConfigurationError, Dynbeat
    from celery_dynbeat.beat.runtime import BeatRuntime
    from celery_dynbeat.worker.bootsteps import DynbeatStep
"""


def python(code):
    script = textwrap.dedent(BLOCKED) + textwrap.dedent(code)
    ran = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True)
    return ran.stdout.strip()


def test_traces_are_off_by_default():
    assert Dynbeat(Celery("t", set_as_current=False)).context.tracer is None


def test_without_opentelemetry_runs_are_sent_untraced():
    code = """
        from datetime import timedelta
        from celery_dynbeat import Once
        from celery_dynbeat.testing import ManualBeat
        app = Celery("t", broker="memory://", set_as_current=True)
        app.conf.dynbeat_database_url = "sqlite://"
        ended = []

        @app.task(name="t")
        def t():
            ended.append("ran")

        dynbeat = Dynbeat(app)
        mine = dynbeat.schedules.for_owner("")
        mine.create("n", task="t", trigger=Once.after(timedelta(days=1)))
        mine.run_now("n")
        ManualBeat(dynbeat, run_tasks=True).run_until_idle()
        dynbeat.context.database.dispose()
        print(ended, dynbeat.context.tracer, "opentelemetry" in sys.modules)
    """
    assert python(code) == "['ran'] None False"


def test_the_setting_without_opentelemetry_names_the_fix():
    code = """
        app = Celery("t", broker="memory://")
        app.conf.update(dynbeat_database_url="sqlite://", dynbeat_traces=True)
        try:
            Dynbeat(app).context.tracer
        except ConfigurationError as error:
            print(error)
    """
    assert "pip install 'celery-dynbeat[traces]'" in python(code)
