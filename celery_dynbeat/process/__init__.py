"""Apply ``dynbeat_log_format`` when Celery configures the logging of a process."""

import logging
from typing import Any

from celery import Celery, signals

from celery_dynbeat.common.events import set_node_name


class LogFormat:
    """The log format of one application, as receivers of Celery's signals.

    The signals do not name the application. If a process has several, one that asks for JSON is
    enough: they share the handlers.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app

    def connect(self) -> None:
        """Connect the receivers. The signals hold them weakly."""
        signals.celeryd_init.connect(self.on_worker_init)
        signals.after_setup_logger.connect(self.on_setup_logger)
        signals.after_setup_task_logger.connect(self.on_setup_logger)

    def on_worker_init(self, sender: Any = None, **_: Any) -> None:
        """Receive celeryd_init, which a worker sends before it configures its logging."""
        if isinstance(sender, str):
            set_node_name(sender)

    def on_setup_logger(self, logger: logging.Logger, **_: Any) -> None:
        """Receive after_setup_logger and after_setup_task_logger."""
        # Celery reads the configuration of its application before. That of another application is
        # not loaded here. The first use of the settings reports an invalid value.
        if not self._app.configured or self._app.conf.get("dynbeat_log_format") != "json":
            return
        # A late import: most processes log text.
        from celery_dynbeat.process.logs.install import install  # noqa: PLC0415

        install(logger)
