"""A chart as plain data: what is drawn, apart from who draws it.

`static` draws it with matplotlib, for papers; `interactive` describes it for plotly, for the report. Both show the same
numbers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spikezip.errors import ConfigError

# Eight colours that people with any colour vision can tell apart (Okabe and Ito 2008), without yellow: it vanishes on
# white. The first three are used most; all are readable on white and on dark grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F", "#8C6D46")
# From no spikes to many: readable in grey, too, and zero is the page itself.
HEAT = ("#ffffff", "#fde3c8", "#f9b27c", "#e8743b", "#b8401f", "#6d1a10")


@dataclass(frozen=True)
class Series:
    """Points `(x, y)` with a name for the legend."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Literal["line", "dashed", "bars", "points"] = "line"
    colour: int | None = None  # a number into COLOURS; None: the next one
    names: tuple[str, ...] = ()  # of the points, where they have any

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ConfigError(f"series {self.name!r} has {len(self.x)} x values and {len(self.y)} y values")


@dataclass(frozen=True)
class Line:
    """A level to compare with: a straight line across the chart at a y value, with its name on it."""

    name: str
    at: float


@dataclass(frozen=True)
class Chart:
    """Curves, bars or points over one pair of axes.

    Example:
        >>> chart = Chart("spikes", "Spikes over time", "step", "spikes", (Series("site", (1, 2), (3, 5)),))
        >>> chart.figure().axes[0].get_xlabel()
        'step'
    """

    name: str  # short, fit for a file name
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()
    note: str = ""
    percent: bool = False  # y values are shares, shown as per cent
    stacked: bool = False  # bars of several series stand on each other
    from_zero: bool = True  # the y axis starts there
    ticks: tuple[tuple[float, str], ...] = ()  # names for places on the x axis
    wide: bool = False  # it has many places along the x axis

    def figure(self) -> Any:
        """A matplotlib figure."""
        from spikezip.show.static import draw

        return draw(self)

    def plotly(self) -> Any:
        """A figure of the plotly package."""
        from spikezip.show.interactive import draw

        return draw(self)

    def save(self, path: str | Path) -> Path:
        """Write it as .png, .svg or .pdf (matplotlib), or as .html (plotly, needs no network)."""
        from spikezip.show.static import save

        return save(self, path)


@dataclass(frozen=True)
class Heat:
    """A table of colours: one row per name, one column per step."""

    name: str
    title: str
    x_label: str
    y_label: str
    rows: tuple[str, ...]
    columns: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    unit: str  # what a colour means
    note: str = ""
    ticks: tuple[tuple[int, str], ...] = ()  # names for some rows; none: every row has its own
    wide: bool = True

    def figure(self) -> Any:
        """A matplotlib figure."""
        from spikezip.show.static import draw_heat

        return draw_heat(self)

    def plotly(self) -> Any:
        """A figure of the plotly package."""
        from spikezip.show.interactive import draw

        return draw(self)

    def save(self, path: str | Path) -> Path:
        """Write it as .png, .svg or .pdf (matplotlib), or as .html (plotly, needs no network)."""
        from spikezip.show.static import save

        return save(self, path)


def colour_of(series: Series, number: int) -> str:
    """The colour of the series with this number in its chart.

    Example:
        >>> colour_of(Series("a", (), ()), 1), colour_of(Series("a", (), (), colour=0), 1)
        ('#D55E00', '#0072B2')
    """
    return COLOURS[(number if series.colour is None else series.colour) % len(COLOURS)]
