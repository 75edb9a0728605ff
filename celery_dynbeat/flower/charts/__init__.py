"""Charts as SVG, drawn on the server by pure functions.

The pages that show them link ``charts.css`` and ``charts.js``. The text that a function returns is
escaped: put it into a template with ``{% raw %}``.
"""

from celery_dynbeat.flower.charts.heat_map import CalendarCell, heat_map
from celery_dynbeat.flower.charts.histogram import HistogramBin, histogram
from celery_dynbeat.flower.charts.legend import timeline_legend
from celery_dynbeat.flower.charts.line_chart import LineDot, LinePoint, line_chart
from celery_dynbeat.flower.charts.run_strip import StripBar, run_strip
from celery_dynbeat.flower.charts.sparkline import sparkline
from celery_dynbeat.flower.charts.timeline import TimelineBar, TimelineRow, TimelineTick, timeline

__all__ = [
    "CalendarCell",
    "HistogramBin",
    "LineDot",
    "LinePoint",
    "StripBar",
    "TimelineBar",
    "TimelineRow",
    "TimelineTick",
    "heat_map",
    "histogram",
    "line_chart",
    "run_strip",
    "sparkline",
    "timeline",
    "timeline_legend",
]
