"""The columns that a comparison can have: what each reads from a measurement, its heading, how it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

from spikezip.errors import ConfigError
from spikezip.measure.document import Measurement

Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A key, a heading, and a function that reads the value; `shown` says how a number is written in a table.

    `factor` turns a value into the unit of the heading; the CSV has it too.
    """

    key: str
    heading: str
    read: Callable[[Measurement], Value]
    shown: str = "{}"
    factor: float = 1

    def value(self, measurement: Measurement) -> Value:
        found = self.read(measurement)
        return found if found is None or isinstance(found, str) or self.factor == 1 else found * self.factor

    def text(self, measurement: Measurement) -> str:
        value = self.value(measurement)
        return "–" if value is None else value if isinstance(value, str) else self.shown.format(value)


def _share(key: str, heading: str, read: Callable[[Measurement], Value]) -> Column:
    return Column(key, f"{heading} (%)", read, "{:.2f}", 100)


def _answers(which: str, field: str) -> Callable[[Measurement], Value]:
    def read(m: Measurement) -> Value:
        answers = getattr(m, which)
        return None if answers is None else getattr(answers, field)

    return read


def _last(curve: str) -> Callable[[Measurement], Value]:
    return lambda m: m.at(curve, m.steps)


def _joules(network: str) -> Callable[[Measurement], Value]:
    return lambda m: _inside(m.energy, network, "total")


def _inside(group: Any, *keys: str) -> Any:
    for key in keys:
        group = group.get(key) if isinstance(group, dict) else None
    return group


def _per_net(m: Measurement) -> Value:
    net = sum(site.net for site in m.sites)
    return sum(site.spikes for site in m.sites) / net if net else None


def _silent(m: Measurement) -> Value:
    if any(site.silent is None for site in m.sites):
        return None
    return sum((site.silent or 0) * site.neurons for site in m.sites) / sum(site.neurons for site in m.sites)


_PLAIN = (
    Column("name", "name", lambda m: m.name),
    Column("model", "model", lambda m: m.model.class_),
    Column("source", "source", lambda m: m.model.source),
    Column("parameters", "parameters (M)", lambda m: m.model.parameters, "{:.2f}", 1e-6),
    Column("levels", "levels", lambda m: m.model.levels),
    Column("weight_bits", "weight bits", lambda m: m.model.weight_bits or "float"),
    Column("data", "data", lambda m: m.data.name),
    Column("samples", "samples", lambda m: m.data.samples, "{:,}"),
    Column("steps", "steps", lambda m: m.settings.steps),
    Column("engine", "engine", lambda m: m.settings.engine),
    Column("coding", "coding", lambda m: m.settings.coding),
    Column("max_spike", "largest spike", lambda m: m.settings.max_spike),
    Column("stagger", "stagger", lambda m: m.settings.stagger, "{:g}"),
    Column("device", "device", lambda m: m.device),
    _share("float", "float", _answers("float_", "accuracy")),
    _share("qann", "QANN", _answers("qann", "accuracy")),
    _share("snn", "SNN", _last("accuracy")),
    _share("float_top5", "float top-5", _answers("float_", "top5")),
    _share("qann_top5", "QANN top-5", _answers("qann", "top5")),
    _share("top5", "SNN top-5", _last("top5")),
    _share("agreement", "agreement", _last("agreement")),
    Column("T", "T", lambda m: m.steps),
    Column("t_up", "T_up", lambda m: m.latency.t_up),
    Column("within_1", "T to QANN −1", lambda m: m.latency.within.get("1.0")),
    Column("within_0.1", "T to QANN −0.1", lambda m: m.latency.within.get("0.1")),
    Column("within_0", "T to QANN", lambda m: m.latency.within.get("0")),
    Column("t_eq", "T_eq median", lambda m: m.latency.t_eq.median),
    Column("t_eq_p99", "T_eq 99 %", lambda m: m.latency.t_eq.p99),
    Column("t_eq_max", "T_eq max", lambda m: m.latency.t_eq.max),
    Column("unsettled", "not settled", lambda m: m.latency.unsettled, "{:,}"),
    Column("spikes", "spikes per neuron", lambda m: m.spikes_per_neuron, "{:.3f}"),
    Column("per_net", "spikes per net spike", _per_net, "{:.2f}"),
    _share("silent", "silent", _silent),
    Column("power", "power (W)", lambda m: _inside(m.energy, "paper", "power_w"), "{:.4g}"),
    Column("energy", "energy (mJ)", _joules("snn"), "{:.4g}", 1e3),
    Column("energy_integer", "integer SNN (mJ)", _joules("snn_integer"), "{:.4g}", 1e3),
    Column("energy_qann", "QANN (mJ)", _joules("qann"), "{:.4g}", 1e3),
    Column("energy_float", "float (mJ)", _joules("float_model"), "{:.4g}", 1e3),
)
COLUMNS = {column.key: column for column in _PLAIN}
AT_A_STEP = ("snn", "top5", "agreement", "spikes", "energy")
_CURVES = {"snn": "accuracy", "top5": "top5", "agreement": "agreement", "spikes": "spikes_per_neuron"}


def column(key: str) -> Column:
    """A column by its key; `KEY@T` for what it was after T steps.

    Example:
        >>> column("snn@16").heading
        'SNN (%) at T = 16'
        >>> column("acuracy@3")
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: there is no column 'acuracy@3'; choose among name, model, source, ...
    """
    name, at, step = key.partition("@")
    if at and name in AT_A_STEP and step.isdecimal() and int(step) >= 1:
        return _at(COLUMNS[name], int(step))
    if at or key not in COLUMNS:
        close = get_close_matches(name, COLUMNS, n=1)
        hint = f", did you mean {close[0]!r}?" if close and not at else ";"
        raise ConfigError(
            f"there is no column {key!r}{hint} choose among {', '.join(COLUMNS)}; "
            f"{', '.join(AT_A_STEP)} also at a step T, as snn@T"
        )
    return COLUMNS[key]


def _at(plain: Column, step: int) -> Column:
    def spent(m: Measurement) -> Value:
        """Joules up to the step. Past the last one nothing is spent, if everything has settled."""
        by_step = _inside(m.energy, "snn_per_step")
        if by_step is None or (step > m.steps and m.latency.unsettled):
            return None
        return list(accumulate(by_step))[min(step, len(by_step)) - 1]

    read = spent if plain.key == "energy" else (lambda m: m.at(_CURVES[plain.key], step))
    return Column(f"{plain.key}@{step}", f"{plain.heading} at T = {step}", read, plain.shown, plain.factor)
