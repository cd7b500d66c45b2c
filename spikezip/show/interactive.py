"""Charts for plotly. The report draws them with the script it carries; the Python package is needed for figures only.

Colours of text and grid are left to the page, which is light or dark.
"""

import math
from collections.abc import Iterable
from typing import Any

from spikezip.show.chart import HEAT, Chart, Heat, Series, colour_of
from spikezip.show.need import need

_DASH = {"line": "solid", "dashed": "dash"}


def describe(chart: Chart | Heat) -> dict[str, Any]:
    """Traces and layout as plotly's script takes them: plain data, fit for JSON.

    Example:
        >>> one = describe(Chart("a", "A", "step", "share", (Series("one", (1, 2), (0.5, 1)),), percent=True))
        >>> one["layout"]["yaxis"]["tickformat"], one["data"][0]["y"]
        ('.0%', [0.5, 1])
    """
    return _describe_heat(chart) if isinstance(chart, Heat) else _describe_chart(chart)


def draw(chart: Chart | Heat) -> Any:
    """A chart as a figure of the plotly package.

    Example:
        >>> figure = draw(Chart("a", "A", "step", "share", (Series("one", (1, 2), (0.5, 1)),), percent=True))
        >>> figure.layout.yaxis.tickformat, figure.data[0].name
        ('.0%', 'one')
    """
    figure = need("plotly.graph_objects").Figure(describe(chart))
    return figure.update_layout(template="none")  # the package has a default of its own


def _describe_chart(chart: Chart) -> dict[str, Any]:
    layout = _layout(chart.x_label, chart.y_label)
    layout |= {"showlegend": len(chart.series) > 1, "barmode": "stack" if chart.stacked else "group"}
    if len(chart.series) > 1:
        layout["margin"]["t"] = 48
    if len(chart.series) > 4:  # a long legend stands below the plot, and the plot keeps its height
        layout["height"] = 440
        layout["legend"] |= {"y": -0.24, "yanchor": "top"}
        layout["margin"] |= {"t": 20, "b": 164}
    if chart.ticks:
        places, names = zip(*chart.ticks, strict=True)
        shown = names if chart.wide else [name.replace(" ", "<br>") for name in names]
        layout["xaxis"] |= {"tickvals": list(places), "ticktext": list(shown)}
        if not chart.wide:
            layout["xaxis"]["tickangle"] = 0
    if chart.from_zero:
        layout["yaxis"]["rangemode"] = "tozero"
    if chart.percent:
        layout["yaxis"]["tickformat"] = ".0%"
        layout["margin"]["l"] = 78
    if chart.lines:
        across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1}
        stroke = {"dash": "dot", "width": 1, "color": "#8a8a8a"}
        place = {
            "xref": "paper",
            "x": 1,
            "xanchor": "right",
            "yanchor": "top",
            "showarrow": False,
            "font": {"size": 11},
        }
        layout["shapes"] = [{**across, "y0": line.at, "y1": line.at, "line": stroke} for line in chart.lines]
        layout["annotations"] = [{**place, "y": line.at, "text": line.name} for line in chart.lines]
    traces = [_trace(series, colour_of(series, number), chart) for number, series in enumerate(chart.series)]
    return {"data": traces, "layout": layout}


def _describe_heat(heat: Heat) -> dict[str, Any]:
    layout = _layout(heat.x_label, heat.y_label)
    layout["yaxis"] |= {"autorange": "reversed", "type": "category", "showgrid": False}
    layout["xaxis"] |= {"showgrid": False}
    layout["xaxis"]["title"] |= {"standoff": 36}
    if heat.ticks:
        rows, names = zip(*heat.ticks, strict=True)
        layout["yaxis"] |= {"tickvals": [heat.rows[row] for row in rows], "ticktext": list(names)}
    layout["height"] = max(320, (8 if heat.ticks else 13) * len(heat.rows) + 130)
    layout["margin"] |= {"l": 120, "t": 106, "b": 84}
    trace = {
        "type": "heatmap",
        "x": list(heat.columns),
        "y": list(heat.rows),
        "z": [_numbers(row) for row in heat.values],
        "zmin": 0,
        "colorscale": [[number / (len(HEAT) - 1), colour] for number, colour in enumerate(HEAT)],
        "colorbar": {
            "title": {"text": heat.unit, "side": "top"},
            "orientation": "h",
            "thickness": 10,
            "y": 1,
            "yanchor": "bottom",
        },
        "hovertemplate": f"%{{y}}<br>{heat.x_label} %{{x}}: %{{z:.3g}} {heat.unit}<extra></extra>",
    }
    return {"data": [trace], "layout": layout}


def _trace(series: Series, colour: str, chart: Chart) -> dict[str, Any]:
    value = "%{y:.2%}" if chart.percent else "%{y:.4g}"
    trace: dict[str, Any] = {"name": series.name, "x": _numbers(series.x), "y": _numbers(series.y)}
    if series.names:
        trace |= {"hovertext": list(series.names), "hovertemplate": f"%{{hovertext}}: {value}"}
    else:
        trace["hovertemplate"] = f"{chart.x_label} %{{x:.4g}}: {value}"
    if series.style == "bars":
        return {**trace, "type": "bar", "marker": {"color": colour}}
    if series.style == "points":
        return {**trace, "type": "scatter", "mode": "markers", "marker": {"color": colour, "size": 7}}
    mode = "lines+markers" if len(series.x) <= 40 else "lines"
    line = {"color": colour, "width": 2, "dash": _DASH[series.style]}
    return {**trace, "type": "scatter", "mode": mode, "line": line, "marker": {"size": 5}}


def _numbers(values: Iterable[float]) -> list[float | None]:
    """What is no number leaves a gap; JSON has no word for it."""
    return [value if math.isfinite(value) else None for value in values]


def _layout(x_label: str, y_label: str) -> dict[str, Any]:
    axis = {"zeroline": False, "automargin": True, "ticks": "outside"}
    return {
        "xaxis": {"title": {"text": x_label}, **axis},
        "yaxis": {"title": {"text": y_label, "standoff": 12}, **axis},
        "height": 320,
        # Wide enough for most labels: where one needs more, plotly makes room, and draws the chart a second time.
        "margin": {"l": 68, "r": 16, "t": 20, "b": 52},
        "legend": {"orientation": "h", "traceorder": "normal", "y": 1.02, "yanchor": "bottom", "x": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
    }
