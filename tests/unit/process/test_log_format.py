"""``dynbeat_log_format`` changes Celery's own handlers, and no handler of the application."""

import json
import logging
import logging.config

import pytest
from celery import Celery, signals
from celery.app.log import Logging
from celery.utils.log import get_multiprocessing_logger, get_task_logger
from kombu.utils.encoding import set_default_encoding_file

from celery_dynbeat import ConfigurationError, Dynbeat
from celery_dynbeat.common.settings import Settings

LOGGERS = (None, "celery", "celery.task", "celery.redirected", "multiprocessing")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Restore the logging of this process at the end."""
    # Celery writes them. monkeypatch restores them.
    for name in ("LEVEL", "FILE", "FORMAT"):
        monkeypatch.setenv(f"_MP_FORK_LOG{name}_", "")
    monkeypatch.setattr(Logging, "_setup", False)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    saved = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    logging.root.handlers = []
    yield
    for logger, handlers, level, propagate in saved:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.handlers, logger.level, logger.propagate = handlers, level, propagate
    set_default_encoding_file(None)


@pytest.fixture
def log(tmp_path):
    """Return a function that configures the logging of an application and returns its lines."""

    def log(**settings):
        app = Celery("proj", broker="memory://", set_as_current=False)
        app.conf.update(settings)
        Dynbeat(app)
        app.log.setup_logging_subsystem(loglevel="INFO", logfile=str(tmp_path / "log"))
        logging.getLogger("proj").info("a\nb")
        logging.getLogger("celery.worker").info("a\nb")
        get_task_logger("proj.tasks").info("a\nb")
        get_multiprocessing_logger().error("a\nb")
        return (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []

    return log


def names(lines):
    return [json.loads(line)["logger"] for line in lines]


ALL = ["proj", "celery.worker", "proj.tasks", "multiprocessing"]


@pytest.mark.parametrize("settings", [{}, {"dynbeat_log_format": "text"}], ids=["unset", "text"])
def test_text_is_the_default_and_changes_nothing(log, settings):
    lines = log(**settings)

    assert [line for line in lines if line.startswith("{")] == []
    assert len(lines) == 2 * len(ALL)
    assert lines[0].endswith("INFO/MainProcess] a")


def test_json_formats_each_record_of_the_process(log):
    assert names(log(dynbeat_log_format="json")) == ALL


def test_json_replaces_the_formats_of_celery(log):
    formats = {"worker_log_format": "%(message)s", "worker_task_log_format": "%(message)s"}

    assert names(log(dynbeat_log_format="json", **formats)) == ALL


def test_a_handler_of_the_application_keeps_its_format(log, capsys):
    # A subclass of Celery's own class counts as the application's, too.
    own = logging.StreamHandler()
    own.setFormatter(logging.Formatter("own: %(message)r"))
    logging.root.addHandler(own)

    lines = log(dynbeat_log_format="json", worker_hijack_root_logger=False)

    assert names(lines) == ["proj.tasks", "multiprocessing"]
    assert capsys.readouterr().err.splitlines() == ["own: 'a\\nb'"] * 2


def test_a_receiver_of_setup_logging_configures_the_process_itself(log):
    def receiver(**_):
        logging.root.addHandler(logging.NullHandler())

    signals.setup_logging.connect(receiver)
    try:
        assert log(dynbeat_log_format="json") == []
    finally:
        signals.setup_logging.disconnect(receiver)


def test_a_formatter_that_an_earlier_receiver_set_stays(log):
    def receiver(logger, **_):
        logger.handlers[0].setFormatter(logging.Formatter("mine %(name)s"))

    signals.after_setup_logger.connect(receiver)
    try:
        lines = log(dynbeat_log_format="json")
    finally:
        signals.after_setup_logger.disconnect(receiver)

    assert lines[:2] == ["mine proj", "mine celery.worker"]
    assert names(lines[2:]) == ALL[2:]


def test_the_formatter_fits_a_logging_configuration(tmp_path):
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"class": "celery_dynbeat.JsonFormatter"}},
            "handlers": {
                "file": {
                    "class": "logging.FileHandler",
                    "filename": tmp_path / "log",
                    "formatter": "json",
                }
            },
            "root": {"handlers": ["file"], "level": "INFO"},
        }
    )
    logging.getLogger("proj").info("a\nb")

    assert names((tmp_path / "log").read_text().splitlines()) == ["proj"]


def test_an_unknown_format_is_an_error():
    app = Celery("proj", set_as_current=False)
    app.conf.dynbeat_log_format = "xml"

    with pytest.raises(ConfigurationError, match="'text', 'json'"):
        Settings.read(app.conf, timezone="UTC")
