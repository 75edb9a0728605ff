"""Draw the plots of the results, one SVG file for each."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.figures import Results

# Open no window, and write identical files for identical points.
mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "benchmarks", "figure.constrained_layout.use": True})

#: Inches of one panel.
WIDTH, HEIGHT = 6.4, 4.0
DYNBEAT_COLOR, BASELINE_COLOR = "tab:blue", "tab:gray"
MIB = 2**20

#: All series of one combination of services, by name.
Series = Mapping[str, Any]
Panel = Callable[[Axes, Series], None]


def draw(results: Results, folder: Path) -> Sequence[Path]:
    """Write an SVG for each plot that has series; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    for services in dict.fromkeys(name.partition("/")[0] for name in results.series):
        series = {
            name.partition("/")[2]: points
            for name, points in results.series.items()
            if name.startswith(f"{services}/")
        }
        drawn += _draw(series, folder, services)
    return drawn


def _draw(series: Series, folder: Path, services: str) -> Sequence[Path]:
    drawn: list[Path] = []
    for name, panels in PLOTS.items():
        available = [panel for needed, panel in panels if needed in series]
        if not available:
            continue
        figure, axes = plt.subplots(
            1, len(available), figsize=(WIDTH * len(available), HEIGHT), squeeze=False
        )
        for panel, axis in zip(available, axes[0], strict=True):
            panel(axis, series)
            axis.grid(visible=True, alpha=0.3)
        figure.suptitle(f"{name.replace('-', ' ')} ({services})")
        path = folder / f"{name}-{services}.svg"
        # Without a date the file stays the same.
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def _idle(axis: Axes, series: Series) -> None:
    points = series["idle"]
    counts = [point["schedules"] for point in points]
    for key, label in (("cpu", "beat"), ("database_cpu", "its database connections")):
        used = [point[f"{key}_seconds_a_minute"] / 60 * 1_000 for point in points]
        axis.plot(counts, used, marker="o", label=label)
    axis.set(xscale="log", yscale="log", xlabel="schedules, none due", ylabel="CPU, ms a second")
    # Show several powers of ten, so that a flat line looks flat.
    axis.set_ylim(bottom=0.01, top=1_000)
    axis.legend()


def _start(axis: Axes, series: Series) -> None:
    points, stock = series["start"]["dynbeat"], series["start"]["stock beat"]
    counts = [point["schedules"] for point in points]
    seconds = [point["seconds"] for point in points]
    axis.plot(counts, seconds, marker="o", color=DYNBEAT_COLOR, label="this project")
    axis.axhline(stock, color=BASELINE_COLOR, linestyle="--", label="stock beat, one entry")
    axis.set(xscale="log", yscale="log", xlabel="schedules", ylabel="start to first message, s")
    axis.set_ylim(bottom=0.1, top=100)
    axis.legend()


def _beat_memory(axis: Axes, series: Series) -> None:
    points = series["idle"]
    counts = [point["schedules"] for point in points]
    rss = [point["rss_bytes"] / MIB for point in points]
    axis.plot(counts, rss, marker="o", color=DYNBEAT_COLOR)
    axis.set(xscale="log", xlabel="schedules, none due", ylabel="RSS of beat, MiB")
    axis.set_ylim(bottom=0, top=1.2 * max(rss))


def _histogram(axis: Axes, found: Mapping[str, Sequence[Sequence[float]] | None]) -> None:
    """Draw the share of each bucket of milliseconds."""
    for label, buckets in found.items():
        if not buckets:
            continue
        total = sum(count for _, count in buckets)
        bounds = [bound for bound, _ in buckets]
        axis.step(bounds, [count / total * 100 for _, count in buckets], label=label)
    axis.set(xscale="log", xlabel="ms", ylabel="share, %")
    axis.set_ylim(bottom=0)
    axis.legend()


def _lag(axis: Axes, series: Series) -> None:
    _histogram(axis, series["lag histogram"])
    axis.set_xlabel("sent - fire_at, ms")


def _change(axis: Axes, series: Series) -> None:
    found = series["change histogram"]
    labels = {
        "edits": "commit of an edit to message",
        "trips": "NOTIFY to LISTEN and back",
        "publishing": "one publish",
    }
    _histogram(axis, {label: found[key] for key, label in labels.items()})


def _burst(axis: Axes, series: Series) -> None:
    found = series["burst timeline"]
    for label in ("one beat", "two beats"):
        points = found[label]
        axis.plot([at for at, _ in points], [count for _, count in points], label=label)
    if found["serial bound"]:
        seconds = found["count"] / found["serial bound"]
        axis.plot(
            [0, seconds], [0, found["count"]], color=BASELINE_COLOR, linestyle="--", label="F1 + F2"
        )
    axis.set(xlabel="seconds since all were due", ylabel="messages in the queue")
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    axis.legend()


def _memory(axis: Axes, series: Series) -> None:
    found = series["memory"]
    rss = [found["idle"], *found["dynbeat"]]
    axis.plot(range(len(rss)), rss, marker="o", color=DYNBEAT_COLOR, label="this project")
    axis.axhline(
        found["baseline"], color=BASELINE_COLOR, linestyle="--", label="stock beat, one entry"
    )
    axis.set(xlabel="bursts so far", ylabel="RSS of beat, MB")
    axis.set_ylim(bottom=0, top=1.2 * max(rss))
    axis.legend()


def _prune(axis: Axes, series: Series) -> None:
    seconds, lags, deleted = zip(*series["prune"], strict=True)
    axis.plot(seconds, lags, color=DYNBEAT_COLOR)
    axis.set(yscale="log", xlabel="seconds", ylabel="p99 of sent - fire_at, ms")
    other = axis.twinx()
    other.plot(seconds, deleted, color=BASELINE_COLOR, linestyle="--")
    other.set_ylabel("rows deleted (dashed)")


def _long_lag(axis: Axes, series: Series) -> None:
    found = series["long run"]
    seconds, medians, p99s = zip(*found["lag"], strict=True)
    minutes = [second / 60 for second in seconds]
    axis.plot(minutes, medians, label="p50")
    axis.plot(minutes, p99s, label="p99")
    axis.set(yscale="log", xlabel="minutes", ylabel="sent - fire_at, ms")
    _mark_beat_memory(axis, found)
    axis.legend()


def _long_dead(axis: Axes, series: Series) -> None:
    _draw_tables(axis, series["long run"], lambda row: {row["table"]: row["dead"]})
    axis.set_ylabel("dead rows")


def _long_indexes(axis: Axes, series: Series) -> None:
    def sizes(row: Mapping[str, Any]) -> Mapping[str, float]:
        return {name: size / MIB for name, size in row["indexes"].items()}

    _draw_tables(axis, series["long run"], sizes)
    axis.set(yscale="log", ylabel="size of indexes, MiB")


def _draw_tables(
    axis: Axes, found: Series, values: Callable[[Mapping[str, Any]], Mapping[str, float]]
) -> None:
    """Draw what ``values`` returns for each sample of a table, over the minutes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in found["tables"]:
        for name, value in values(row).items():
            lines.setdefault(name, []).append((row["at"] / 60, value))
    for name, points in lines.items():
        axis.plot([at for at, _ in points], [value for _, value in points], label=name)
    axis.set_xlabel("minutes")
    _mark_beat_memory(axis, found)
    axis.legend(fontsize="x-small")


def _mark_beat_memory(axis: Axes, found: Series) -> None:
    begin, end = (second / 60 for second in found["open transaction"])
    axis.axvspan(begin, end, color=BASELINE_COLOR, alpha=0.2, label="a transaction is open")


#: The panels of each file, each with the series that it needs.
PLOTS: Mapping[str, Sequence[tuple[str, Panel]]] = {
    "cost-against-schedules": (("idle", _idle), ("start", _start), ("idle", _beat_memory)),
    "lag-histogram": (("lag histogram", _lag),),
    "burst-timeline": (("burst timeline", _burst),),
    "change-histogram": (("change histogram", _change),),
    "memory": (("memory", _memory),),
    "prune": (("prune", _prune),),
    "long-run": (
        ("long run", _long_lag),
        ("long run", _long_dead),
        ("long run", _long_indexes),
    ),
}
