"""How numbers are written on the page: here, and nowhere else."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

from spikezip.errors import ConfigError

DASH = "–"
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))


def share(value: float) -> str:
    """A share in 0 … 1 as per cent, without the sign: for tables that say it in their head.

    Example:
        >>> share(0.9023)
        '90.23'
    """
    return f"{100 * value:.2f}"


def percent(value: float) -> str:
    """A share in 0 … 1, for sentences.

    Example:
        >>> percent(0.9023)
        '90.23 %'
    """
    return f"{share(value)} %"


def number(value: float) -> str:
    """A number as short as it can be, with thousands separated.

    Example:
        >>> number(16328000000), number(200.0), number(0.0015), number(88.76)
        ('16,328,000,000', '200', '0.0015', '88.76')
    """
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.6g}"


def decimal(value: float) -> str:
    """Two digits behind the point.

    Example:
        >>> decimal(5.2114)
        '5.21'
    """
    return f"{value:.2f}"


def millions(value: float) -> str:
    """Parameters.

    Example:
        >>> millions(5300060), millions(355439), millions(125e6), millions(7e9)
        ('5.3 M', '0.355 M', '125 M', '7,000 M')
    """
    return f"{value / 1e6:.3g} M" if value < 1e9 else f"{value / 1e6:,.0f} M"


def si(value: float, unit: str) -> str:
    """Three digits, and the prefix that suits them.

    Example:
        >>> si(0.0079, "W"), si(311.3e-6, "J"), si(0.0009999, "J"), si(0, "J"), si(152, "Wh"), si(1520, "Wh")
        ('7.90 mW', '311 µJ', '1.00 mJ', '0 J', '152 Wh', '1.52 kWh')
    """
    if not value:
        return f"0 {unit}"
    rounded = float(f"{value:.2e}")  # 999.9 is a thousand
    factor, prefix = next((pair for pair in _PREFIXES if abs(rounded) >= pair[0]), _PREFIXES[-1])
    return f"{three_digits(rounded / factor)} {prefix}{unit}"


def three_digits(value: float) -> str:
    """Three digits that count; more only where there are more before the point.

    Example:
        >>> three_digits(7.9), three_digits(62.94), three_digits(311.3), three_digits(1254.0)
        ('7.90', '62.9', '311', '1,254')
    """
    digits = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(0, digits)}f}"


def duration(seconds: float) -> str:
    """Seconds up to ten minutes; then minutes; then hours.

    Example:
        >>> duration(473.7), duration(3599), duration(7200)
        ('474 s', '60 min', '2.00 h')
    """
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{three_digits(seconds / 3600)} h"


def spread(values: Sequence[float | None], shown: Callable[[float], str] = share) -> str:
    """One value; or of several the mean, the standard deviation of a sample, and how many. A dash, if one is missing.

    Example:
        >>> spread([0.9014]), spread([0.90, 0.91, 0.92]), spread([0.9, None])
        ('90.14', '91.00 ± 1.00 (3)', '–')
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return DASH
    if len(known) == 1:
        return shown(known[0])
    return f"{shown(fmean(known))} ± {shown(stdev(known))} ({len(known)})"


FORMATS: dict[str, Callable[[float], str]] = {
    "percent": percent,
    "points": share,
    "number": number,
    "decimal": decimal,
    "millions": millions,
    "short": lambda value: si(value, "").rstrip(),
    "duration": duration,
    "joules": lambda value: si(value, "J"),
    "watts": lambda value: si(value, "W"),
    "watt-hours": lambda value: si(value / 3600, "Wh"),  # from joules
}


def written(value: Any, form: str) -> str:
    """A value in one of the `FORMATS`, or "text": what is text already.

    Example:
        >>> written(0.9023, "percent"), written("cpu", "text")
        ('90.23 %', 'cpu')
        >>> written("cpu", "percent")
        Traceback (most recent call last):
        spikezip.errors.ConfigError: 'cpu' is no number, as percent asks for
        >>> written(0.5, "per cent")
        Traceback (most recent call last):
        spikezip.errors.ConfigError: there is no format 'per cent'; choose among percent, points, number, ..., text
    """
    if form == "text":
        if not isinstance(value, str):
            raise ConfigError(f"{value!r} is no text; choose among {', '.join(FORMATS)}")
        return value
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}; choose among {', '.join(FORMATS)}, text")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{value!r} is no number, as {form} asks for")
    return FORMATS[form](value)
