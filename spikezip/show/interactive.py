"""Charts with plotly, for the report. Colours of text and grid are left to the page, which is light or dark."""

from typing import Any

from spikezip.show.chart import HEAT, Chart, Heat, Series, colour_of
from spikezip.show.need import need

_DASH = {"line": "solid", "dashed": "dash"}


def draw(chart: Chart) -> Any:
    """A chart as a plotly figure.

    Example:
        >>> figure = draw(Chart("a", "A", "step", "share", (Series("one", (1, 2), (0.5, 1)),), percent=True))
        >>> figure.layout.yaxis.tickformat, figure.data[0].name
        ('.0%', 'one')
    """
    objects = need("plotly.graph_objects")
    figure = objects.Figure(layout=_layout(chart.x_label, chart.y_label))
    for number, series in enumerate(chart.series):
        figure.add_trace(_trace(objects, series, colour_of(series, number), chart))
    figure.update_layout(showlegend=len(chart.series) > 1, barmode="stack" if chart.stacked else "group")
    if len(chart.series) > 4:  # a long legend stands below the plot, and the plot keeps its height
        figure.update_layout(height=440, legend={"y": -0.24, "yanchor": "top"})
    if chart.ticks:
        places, names = zip(*chart.ticks, strict=True)
        upright = {} if chart.wide else {"tickangle": 0}
        shown = names if chart.wide else [name.replace(" ", "<br>") for name in names]
        figure.update_xaxes(tickvals=list(places), ticktext=list(shown), **upright)
    if chart.from_zero:
        figure.update_yaxes(rangemode="tozero")
    if chart.percent:
        figure.update_yaxes(tickformat=".0%")
    for line in chart.lines:
        figure.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=line.at,
            y1=line.at,
            line={"dash": "dot", "width": 1, "color": "#8a8a8a"},
        )
        place = {"xref": "paper", "x": 1, "y": line.at, "xanchor": "right", "yanchor": "top"}
        figure.add_annotation(text=line.name, showarrow=False, font={"size": 11}, **place)
    return figure


def draw_heat(heat: Heat) -> Any:
    """A table of colours as a plotly figure."""
    objects = need("plotly.graph_objects")
    scale = [[number / (len(HEAT) - 1), colour] for number, colour in enumerate(HEAT)]
    trace = objects.Heatmap(
        x=list(heat.columns),
        y=list(heat.rows),
        z=[list(row) for row in heat.values],
        zmin=0,
        colorscale=scale,
        colorbar={
            "title": {"text": heat.unit, "side": "top"},
            "orientation": "h",
            "thickness": 10,
            "y": 1,
            "yanchor": "bottom",
        },
        hovertemplate=f"%{{y}}<br>{heat.x_label} %{{x}}: %{{z:.3g}} {heat.unit}<extra></extra>",
    )
    figure = objects.Figure([trace], layout=_layout(heat.x_label, heat.y_label))
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(showgrid=False, title={"standoff": 36})
    if heat.ticks:
        rows, names = zip(*heat.ticks, strict=True)
        figure.update_yaxes(tickvals=[heat.rows[row] for row in rows], ticktext=list(names))
    figure.update_layout(height=max(320, (8 if heat.ticks else 13) * len(heat.rows) + 130), margin={"b": 60})
    return figure


def _trace(objects: Any, series: Series, colour: str, chart: Chart) -> Any:
    value = "%{y:.2%}" if chart.percent else "%{y:.4g}"
    shared = {
        "name": series.name,
        "x": list(series.x),
        "y": list(series.y),
        "hovertemplate": f"%{{hovertext}}: {value}" if series.names else f"{chart.x_label} %{{x:.4g}}: {value}",
        "hovertext": list(series.names) or None,
    }
    if series.style == "bars":
        return objects.Bar(marker={"color": colour}, **shared)
    if series.style == "points":
        return objects.Scatter(mode="markers", marker={"color": colour, "size": 7}, **shared)
    mode = "lines+markers" if len(series.x) <= 40 else "lines"
    line = {"color": colour, "width": 2, "dash": _DASH[series.style]}
    return objects.Scatter(mode=mode, line=line, marker={"size": 5}, **shared)


def _layout(x_label: str, y_label: str) -> dict[str, Any]:
    axis = {"zeroline": False, "automargin": True, "ticks": "outside"}
    return {
        "xaxis": {"title": {"text": x_label}, **axis},
        "yaxis": {"title": {"text": y_label, "standoff": 12}, **axis},
        "height": 320,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "legend": {"orientation": "h", "traceorder": "normal", "y": 1.02, "yanchor": "bottom", "x": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "template": "none",
    }
