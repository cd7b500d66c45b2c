"""Charts with matplotlib, for papers: PNG, SVG, PDF."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spikezip.errors import ConfigError
from spikezip.show.chart import HEAT, Chart, Heat, Line, Series, colour_of
from spikezip.show.need import need

FORMATS = (".png", ".svg", ".pdf")
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


@contextmanager
def styled() -> Iterator[None]:
    """Inside the block figures look as ours do; the caller's own settings stay as they are."""
    with need("matplotlib").rc_context(STYLE):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, `[rows, columns]`, without the global state of pyplot."""
    figure = need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def draw(chart: Chart) -> Any:
    """A chart as a figure."""
    with styled():
        figure, axes = new_figure(7.2 if chart.wide else 5.2, 3.2)
        axis = axes[0, 0]
        bars = [series for series in chart.series if series.style == "bars"]
        for number, series in enumerate(chart.series):
            _draw_series(axis, series, colour_of(series, number), bars, chart.stacked)
        if chart.ticks:
            axis.set_xticks(*zip(*chart.ticks, strict=True))
        if chart.percent:
            axis.yaxis.set_major_formatter(need("matplotlib.ticker").PercentFormatter(1.0))
        if chart.from_zero:
            axis.set_ylim(bottom=0)
        for line in chart.lines:
            _draw_line(axis, line)
        axis.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if len(chart.series) > 1:
            axis.legend(loc="best")
        return figure


def draw_heat(heat: Heat) -> Any:
    """A table of colours as a figure."""
    with styled():
        figure, axes = new_figure(6.4, max(2.4, (0.06 if heat.ticks else 0.14) * len(heat.rows) + 1))
        axis = axes[0, 0]
        first, last = heat.columns[0], heat.columns[-1]
        colours = need("matplotlib.colors").LinearSegmentedColormap.from_list("spikes", HEAT)
        extent = (first - 0.5, last + 0.5, len(heat.rows) - 0.5, -0.5)
        image = axis.imshow(heat.values, aspect="auto", cmap=colours, vmin=0, extent=extent, interpolation="nearest")
        named = heat.ticks or tuple(enumerate(heat.rows))
        axis.set_yticks(*zip(*named, strict=True), fontsize=7)
        axis.grid(False)
        axis.set(title=heat.title, xlabel=heat.x_label, ylabel=heat.y_label)
        figure.colorbar(image, ax=axis, label=heat.unit, pad=0.02)
        return figure


def save(chart: Chart | Heat, path: str | Path) -> Path:
    """Write a chart; the ending of the name says how."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*FORMATS, ".html"):
        raise ConfigError(f"{path}: a chart is written as {', '.join(FORMATS)} or .html")
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".html":
        chart.plotly().write_html(path, include_plotlyjs=True)
    else:
        save_figure(chart.figure(), path)
    return path


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure of ours as .png, .svg or .pdf."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: a figure is written as {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        figure.savefig(path)
    return path


def _draw_series(axis: Any, series: Series, colour: str, bars: list[Series], stacked: bool) -> None:
    if series.style == "bars":
        number = bars.index(series)
        if stacked:
            below = [sum(values) for values in zip(*(other.y for other in bars[:number]), strict=True)]
            axis.bar(series.x, series.y, bottom=below or None, color=colour, label=series.name)
        else:
            width = 0.8 / len(bars)
            shifted = [x + (number - (len(bars) - 1) / 2) * width for x in series.x]
            axis.bar(shifted, series.y, width=width, color=colour, label=series.name)
        return
    marker, line = ("o", "") if series.style == "points" else (None, "--" if series.style == "dashed" else "-")
    axis.plot(series.x, series.y, marker=marker, linestyle=line, color=colour, label=series.name, markersize=4)


def _draw_line(axis: Any, line: Line) -> None:
    axis.axhline(line.at, color="#555555", linewidth=0.9, linestyle=":")
    place = {"xy": (1, line.at), "xycoords": ("axes fraction", "data"), "ha": "right", "va": "top"}
    axis.annotate(line.name, fontsize=7, color="#555555", **place)
