"""Charts and tables of what an inference costs."""

from spikezip.errors import InputError
from spikezip.measure.document import Measurement
from spikezip.measure.energy import Energy
from spikezip.show.chart import Chart, Series
from spikezip.show.tables import Table

# Parts of an energy, as they are called in the document and as people read them.
PARTS = {
    "linear": "products with weights",
    "attention": "attention products",
    "neurons": "neurons, quantizers",
    "softmax": "softmax",
    "norms": "LayerNorm",
    "functions": "other functions",
    "additions": "residual sums, biases",
    "input_layer": "input layer",
    "memory": "memory traffic",
}
NETWORKS = {
    "snn": "SNN",
    "snn_integer": "SNN, integer sums",
    "qann": "QANN",
    "float_model": "float model",
}
_UNITS = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ"), (1e-12, "pJ"))


def energy_of(one: Measurement) -> Energy:
    """The energies of a measurement, which may have been read from a file."""
    if not one.energy:
        raise InputError(f"{one.name}: no energy was measured")
    return Energy.from_json(one.energy, "energy")


def unit_for(joules: float) -> tuple[float, str]:
    """What to divide by, and the unit then.

    Example:
        >>> unit_for(2.5e-5)
        (1e-06, 'µJ')
    """
    return next(((size, name) for size, name in _UNITS if joules >= size), _UNITS[-1])


def energy_text(joules: float) -> str:
    """An energy in the unit that suits it.

    Example:
        >>> energy_text(2.534e-5)
        '25.3 µJ'
    """
    size, name = unit_for(joules)
    return f"{joules / size:.3g} {name}"


def against_accuracy(*measurements: Measurement) -> Chart:
    """Accuracy against the energy spent so far; for one measurement the networks without time are points beside it."""
    if not measurements:
        raise InputError("there is no measurement to draw")
    spent = [energy_of(one) for one in measurements]
    size, unit = unit_for(max(energy.snn.total for energy in spent))
    found: list[Series] = []
    for one, energy in zip(measurements, spent, strict=True):
        accuracy = one.over_time.accuracy
        if accuracy is None:
            raise InputError(f"{one.name}: accuracy was not measured: the data has no labels")
        total, sums = 0.0, []
        for joules in energy.snn_per_step:
            total += joules
            sums.append(total / size)
        steps = min(len(sums), len(accuracy))
        name = one.name if len(measurements) > 1 else "SNN, step by step"
        found.append(Series(name, tuple(sums[:steps]), accuracy[:steps]))
    if len(measurements) == 1:
        found += _points(measurements[0], spent[0], size)
    label = f"energy of an inference so far ({unit})"
    note = (
        "Energies of 45 nm CMOS. The SNN is priced with 32-bit float accumulates, as in the paper; “integer sums” is "
        "the whole run with integer accumulates, to compare with the QANN, which is priced with integers of its widths."
    )
    return Chart("energy", "Energy and accuracy", label, "accuracy", tuple(found), (), note, percent=True)


def by_part(one: Measurement) -> Chart:
    """What the energy of an inference is spent on, in each network."""
    spent = energy_of(one)
    size, unit = unit_for(max(getattr(spent, name).total for name in NETWORKS))
    places = tuple(float(number) for number in range(len(NETWORKS)))
    names = tuple(NETWORKS.values())
    found = []
    for number, (part, title) in enumerate(PARTS.items()):
        values = tuple((getattr(getattr(spent, name), part) or 0.0) / size for name in NETWORKS)
        if any(values):
            found.append(Series(title, places, values, "bars", number, names))
    return Chart(
        "energy-parts",
        "What the energy is spent on",
        "",
        f"energy of an inference ({unit})",
        tuple(found),
        stacked=True,
        ticks=tuple(enumerate(names)),
    )


def energy_tables(one: Measurement) -> list[Table]:
    """Energies by part, the paper's figures, and the complexity table; nothing if none was measured."""
    if not one.energy:
        return []
    spent = energy_of(one)
    size, unit = unit_for(max(getattr(spent, name).total for name in NETWORKS))
    rows = []
    for part, title in (*PARTS.items(), ("total", "total")):
        values = [getattr(getattr(spent, name), part) for name in NETWORKS]
        if any(values):
            rows.append((title, *("–" if value is None else f"{value / size:.4g}" for value in values)))
    paper = spent.paper
    figures = (
        ("N_pre, spikes delivered in a step", f"{paper.n_pre:,.0f}"),
        ("N_post, spikes fired in a step", f"{paper.n_post:,.0f}"),
        ("total spikes in a step", f"{paper.total_spikes:,.0f}"),
        ("power P at steps of 1 ms", f"{paper.power_w * 1e3:.4g} mW"),
        (f"energy over {spent.steps} steps", energy_text(paper.energy_j)),
    )
    return [
        Table(
            "energy", f"Energy of an inference ({unit})", ("part", *NETWORKS.values()), tuple(rows), spent.model.source
        ),
        Table("paper", "Spikes and power, as the paper counts them", ("what", "value"), figures),
    ]


def complexity_table(one: Measurement) -> Table:
    """The paper's complexity table, with this network's own numbers."""
    head = {
        "operator": "operator",
        "snn_space": "SNN space",
        "snn_time": "SNN time",
        "qann_space": "QANN space",
        "qann_time": "QANN time",
        "weights": "weights",
        "snn_state": "SNN state",
        "qann_state": "QANN state",
        "snn_bound": "SNN bound",
        "snn_operations": "SNN operations",
        "qann_operations": "QANN operations",
    }
    rows = [
        tuple(f"{row[key]:,.0f}" if isinstance(row[key], int | float) else str(row[key]) or "–" for key in head)
        for row in one.to_json()["complexity"]
    ]
    note = (
        "n tokens, d width, T steps, γ the cost of a multiply–accumulate in accumulates; numbers are of one inference."
    )
    return Table("complexity", "Complexity", tuple(head.values()), tuple(rows), note)


def _points(one: Measurement, spent: Energy, size: float) -> list[Series]:
    places = [
        ("SNN, integer sums", spent.snn_integer.total, one.at("accuracy", one.steps)),
        ("QANN", spent.qann.total, None if one.qann is None else one.qann.accuracy),
        ("float model", spent.float_model.total, None if one.float_ is None else one.float_.accuracy),
    ]
    return [Series(name, (joules / size,), (share,), "points") for name, joules, share in places if share is not None]
