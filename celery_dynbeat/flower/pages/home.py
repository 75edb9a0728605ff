"""The address of the pages without a page: it leads to the schedules."""

from celery_dynbeat.flower.base.handler import DynbeatHandler


class HomePage(DynbeatHandler):
    """``/dynbeat`` and ``/dynbeat/``."""

    def get(self) -> None:
        """Redirect to the schedules."""
        self.redirect(self.link("dynbeat_schedules"))
