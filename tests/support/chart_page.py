"""A page with all charts, served with a strict Content-Security-Policy. It needs no Flower."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from zoneinfo import ZoneInfo

from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.states import Status
from celery_dynbeat.flower.charts import heat_map, histogram, lines, run_strip, timeline
from celery_dynbeat.insights.charts import CalendarDay
from celery_dynbeat.insights.history import RecentRun
from celery_dynbeat.insights.timeline import Bin

#: The clock of Berlin went back in the night before.
NOW = datetime(2026, 10, 25, 14, 20, tzinfo=ZoneInfo("Europe/Berlin"))
HOSTILE = "\"><script>document.title = 'attacked'</script>\u202e"
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
_STATUSES = list(Status)
#: The path, type and bytes of each file.
_Files = Mapping[str, tuple[str, bytes]]


@contextmanager
def chart_page(*, theme: str) -> Iterator[str]:
    """Serve the page and yield its URL. ``theme`` is that of Flower: ``light`` or ``dark``."""
    css, script = "text/css", "text/javascript"
    files = {
        "/": ("text/html; charset=utf-8", _page(theme).encode()),
        "/favicon.ico": ("image/x-icon", b""),
        "/charts.css": (css, _static("celery_dynbeat.flower", "charts.css")),
        "/page.css": (css, _static("celery_dynbeat.flower", "page.css")),
        "/charts.js": (script, _static("celery_dynbeat.flower", "charts.js")),
        "/bootstrap.css": (css, _static("flower", "css/bootstrap.min.css")),
        "/flower.css": (css, _static("flower", "css/flower.css")),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, files))
    thread = Thread(target=server.serve_forever, name="charts")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, files: _Files, *arguments: object) -> None:
        self._files = files
        super().__init__(*arguments)  # type: ignore[arg-type] # passed on as received

    def do_GET(self) -> None:
        """Answer with a file. Nothing outside this server and nothing inline may run."""
        kind, body = self._files[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'self'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _static(package: str, name: str) -> bytes:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "static" / name).read_bytes()


def _page(theme: str) -> str:
    drawings = {
        "strip": _strip(),
        "sparkline": lines.sparkline([1, 2, None, 5, 3], label="Lag p99"),
        "lines": _lines(),
        "calendar": _calendar(),
        "timeline": f'<div class="db-timeline-chart">{_timeline()}</div>'
        + timeline.timeline_legend(),
        "histogram": _histogram(),
    }
    cards = "".join(
        f'<section class="db-card" id="{name}"><h2>{name}</h2>{drawing}</section>'
        for name, drawing in drawings.items()
    )
    links = "".join(
        f'<link rel="stylesheet" href="/{name}.css">'
        for name in ("bootstrap", "flower", "page", "charts")
    )
    return (
        f'<!doctype html><html lang="en" data-bs-theme="{theme}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>Charts</title>{links}</head>'
        f'<body class="app-body"><main class="p-3"><h1>Charts</h1>{cards}</main>'
        '<script src="/charts.js"></script></body></html>'
    )


def _strip() -> str:
    runs = [
        RecentRun(
            id=f"{n}",
            status=_STATUSES[n % len(_STATUSES)],
            attempt=1,
            origin="schedule",
            fire_at=NOW,
            fire_count=1,
            lag=None,
            queue_time=None,
            duration=timedelta(seconds=1 + n % 7),
            error=None,
        )
        for n in range(25)
    ]
    return run_strip.run_strip(
        runs,
        title=lambda run: f"run {run.id} {HOSTILE if run.id == '0' else ''}",
        href=lambda run: f"#run-{run.id}",
        label="Last runs",
    )


def _lines() -> str:
    start = NOW - 30 * DAY
    points = [
        lines.LinePoint(
            start_at=start + n * DAY,
            end_at=start + (n + 1) * DAY,
            p50=None if n in {11, 12} else 0.03 + n % 5 / 200,
            max=None if n in {11, 12} else 0.06 + n % 7 / 50,
            title=f"day {n}",
        )
        for n in range(30)
    ]
    dots = [lines.LineDot(at=NOW - 9 * DAY, seconds=0.1, title="failed", href="#failed")]
    return lines.line_chart(points, dots=dots, start_at=start, end_at=NOW, label="Lag, 30 days")


def _calendar() -> str:
    first = NOW - 180 * DAY
    days = [
        CalendarDay(
            day=(first + n * DAY).date(),
            start_at=first + n * DAY,
            end_at=first + (n + 1) * DAY,
            total=BoundedCount(count=0 if n > 180 else n % 60, exact=True),
            failed=0 if n > 180 else n % 60 if n % 23 == 0 else int(n % 17 == 0 and n % 60 > 0),
            skipped=0,
            planned=int(n >= 180),
            planned_exact=True,
        )
        for n in range(200)
    ]
    return heat_map.heat_map(
        days,
        title=lambda day: f"day {(day.start_at - first).days}",
        href=lambda day: f"#day-{(day.start_at - first).days}",
        today=NOW.date(),
        label="Runs by day",
    )


def _timeline() -> str:
    start = NOW - 720 * MINUTE
    rows = [
        timeline.TimelineRow(
            label=f"report-with-a-long-name-{n} {HOSTILE if n == 1 else ''}",
            href=f"#row-{n}",
            bars=[
                timeline.TimelineBar(
                    start_at=start + (k * 72 + n) * MINUTE,
                    end_at=start + (k * 72 + n + k % 4 * 9) * MINUTE,
                    status=status,
                    title=f"row {n} run {k}",
                    href=f"#row-{n}-{k}",
                )
                for k, status in enumerate(_STATUSES)
            ],
            ticks=[
                timeline.TimelineTick(at=NOW + (k * 20 + n) * MINUTE, title="planned", href=None)
                for k in range(1, 12)
            ],
        )
        for n in range(6)
    ]
    end = NOW + 240 * MINUTE
    return timeline.timeline(rows, start_at=start, end_at=end, now=NOW, label="Timeline")


def _histogram() -> str:
    start = NOW - 120 * MINUTE
    bins = [
        Bin(
            start_at=start + n * MINUTE,
            end_at=start + (n + 1) * MINUTE,
            past=300 + n % 11 * 20 if n < 120 else 0,
            failed=n if 30 < n < 50 else 0,
            planned=300 + n % 11 * 20 if n >= 120 else 0,
            more=False,
        )
        for n in range(180)
    ]
    return histogram.histogram(
        bins,
        title=lambda each: f"minute {(each.start_at - start) // MINUTE}",
        href=lambda each: f"#minute-{(each.start_at - start) // MINUTE}",
        start_at=start,
        end_at=NOW + 60 * MINUTE,
        now=NOW,
        label="Fires per minute",
    )
