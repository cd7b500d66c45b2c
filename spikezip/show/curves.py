"""Charts of measurements: answers, activity, latency and energy over time; one measurement, or several side by side."""

from collections.abc import Sequence

from spikezip.errors import InputError
from spikezip.measure.document import Measurement
from spikezip.show.chart import Chart, Heat, Line, Series
from spikezip.show.names import agreement_name, layer_name, percent

STEP = "step T"


def accuracy(*measurements: Measurement) -> Chart:
    """Accuracy and agreement with the quantized network at every step; of several measurements, accuracy alone.

    Where nothing is known of accuracy (data without labels), agreement is shown.
    """
    _some(measurements)
    if len(measurements) > 1:
        return _side_by_side(measurements)
    (one,) = measurements
    curves = (
        ("SNN accuracy", one.over_time.accuracy),
        (agreement_name(one), one.over_time.agreement),
        ("SNN top-5 accuracy", one.over_time.top5),
    )
    found = tuple(
        Series(name, _steps(one), values, colour=number)
        for number, (name, values) in enumerate(curves)
        if values is not None
    )
    if not found:
        raise InputError(f"{one.name}: neither accuracy nor agreement was measured: the output is no choice of a class")
    reference = one.qann.accuracy if one.qann is not None else None
    lines = () if reference is None else (Line(f"QANN {percent(reference)}", reference),)
    return Chart("accuracy", "Accuracy over time", STEP, "share of samples", found, lines, percent=True)


def firing(*measurements: Measurement) -> Chart:
    """Spikes per neuron in every step."""
    _some(measurements)
    found = tuple(Series(one.name, _steps(one), one.over_time.firing_rate) for one in measurements)
    return Chart("firing", "Firing rate over time", STEP, "spikes per neuron and step", found)


def spikes(*measurements: Measurement) -> Chart:
    """Spikes per neuron up to every step."""
    _some(measurements)
    found = tuple(Series(one.name, _steps(one), one.over_time.spikes_per_neuron) for one in measurements)
    return Chart("spikes", "Spikes per neuron so far", STEP, "spikes per neuron", found)


def equilibrium(*measurements: Measurement) -> Chart:
    """How many samples fired their last spike at which step (T_eq)."""
    _some(measurements)
    found = []
    for one in measurements:
        counts = {int(step): count for step, count in one.latency.t_eq.counts.items()}
        if counts:
            steps = range(min(counts), max(counts) + 1)
            heights = tuple(float(counts.get(step, 0)) for step in steps)
            found.append(Series(one.name, tuple(map(float, steps)), heights, "bars"))
    if not found:
        raise InputError("no sample had settled: there is no T_eq to show; measure with steps='equilibrium'")
    unsettled = sum(one.latency.unsettled for one in measurements)
    note = f"{unsettled:,} samples had not settled and are not shown." if unsettled else ""
    title = "Steps to equilibrium"
    if len(measurements) == 1:
        t_eq = measurements[0].latency.t_eq
        title += f": median {t_eq.median}, 99 % {t_eq.p99}, maximum {t_eq.max}"
    return Chart("t_eq", title, "T_eq, step of the last spike", "samples", tuple(found), note=note)


def levels(measurements: Sequence[Measurement]) -> Chart:
    """The ablation over quantization levels: accuracy over time, one curve for each number of levels."""
    _some(measurements)
    ordered = sorted(measurements, key=lambda one: one.model.levels)
    found = []
    for one in ordered:
        values = one.over_time.accuracy
        if values is None:
            raise InputError(f"{one.name}: accuracy was not measured: the data has no labels")
        found.append(Series(f"{one.model.levels} levels", _steps(one), values))
    return Chart("levels", "Quantization levels", STEP, "SNN accuracy", tuple(found), percent=True)


def sites_over_time(one: Measurement) -> Heat:
    """The firing rate of every site at every step."""
    return Heat(
        "sites",
        "Where and when it fires",
        STEP,
        "",
        tuple(site.name for site in one.sites),
        _steps(one),
        tuple(site.rate for site in one.sites),
        "spikes per neuron and step",
        ticks=_layers(one),
    )


def waste(one: Measurement) -> Chart:
    """Spikes per neuron of every site, up and down, against the fewest that could have led to the same codes."""
    places = tuple(float(number) for number in range(len(one.sites)))
    names = tuple(site.name for site in one.sites)
    up = tuple(site.positive / site.neurons for site in one.sites)
    down = tuple(site.negative / site.neurons for site in one.sites)
    net = tuple(site.net / site.neurons for site in one.sites)
    found = (
        Series("spikes up", places, up, "bars", 0, names),
        Series("spikes down", places, down, "bars", 1, names),
        Series("needed: |S| of the final codes", places, net, "points", 2, names),
    )
    title, label = "Spikes fired and spikes needed", "sites, in the order of execution"
    layers = _layers(one)
    few = layers[:: -(-len(layers) // 8)]  # more names would not fit
    return Chart("waste", title, label, "spikes per neuron", found, stacked=True, ticks=few, wide=True)


def _side_by_side(measurements: Sequence[Measurement]) -> Chart:
    by_accuracy = all(one.over_time.accuracy is not None for one in measurements)
    found = []
    for one in measurements:
        values = one.over_time.accuracy if by_accuracy else one.over_time.agreement
        if values is None:
            raise InputError(f"{one.name}: neither accuracy nor agreement was measured")
        found.append(Series(one.name, _steps(one), values))
    title = "Accuracy over time" if by_accuracy else "Agreement over time"
    return Chart("accuracy", title, STEP, "share of samples", tuple(found), percent=True)


def _layers(one: Measurement) -> tuple[tuple[int, str], ...]:
    """The place of the middle of each layer, with its name."""
    places: dict[str, list[int]] = {}
    for place, site in enumerate(one.sites):
        places.setdefault(layer_name(site.name), []).append(place)
    return tuple((found[len(found) // 2], name) for name, found in places.items())


def _steps(one: Measurement) -> tuple[float, ...]:
    return tuple(float(step) for step in one.over_time.step)


def _some(measurements: Sequence[Measurement]) -> None:
    if not measurements:
        raise InputError("there is no measurement to draw")
