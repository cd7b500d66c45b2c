"""What an inference costs, and what a training cost."""

from collections.abc import Callable
from typing import Any

from spikezip.measure.document import Measurement
from spikezip.results.book import Book
from spikezip.results.groups import TITLES, Group, place
from spikezip.results.markdown import Table, link
from spikezip.results.numbers import DASH, decimal, duration, number, si, spread

_TRAININGS = ("finetune", "relu", "qat")


def power(book: Book) -> Table:
    """Measurements: the paper's power of SNN and QANN, and joules per inference of all four networks."""
    head = (
        *("network", "stagger", "accuracy, %", "spikes", "T_eq", "power: SNN", "power: QANN"),
        *("SNN", "SNN, integers", "QANN, integers", "float"),
    )
    rows = []
    for name, one in book.results.measured_with(integers=True).items():
        path = book.results.folder / "measured" / f"{name}.json"
        joules = [_joules(one, kind) for kind in ("snn", "snn_integer", "qann", "float_model")]
        accuracy = one.at("accuracy", one.steps)
        rows.append(
            (
                link(name, book.link(path)),
                number(one.settings.stagger),
                spread([accuracy]),
                decimal(one.spikes_per_neuron),
                DASH if one.latency.t_eq.median is None else str(one.latency.t_eq.median),
                si(one.energy["paper"]["power_w"], "W"),
                si(qann_power(one), "W"),
                *(si(value, "J") for value in joules),
            )
        )
    note = (
        "*Spikes*: per neuron. *T_eq*: median. The last four columns are energies per inference; without *integers*, "
        "those of 32-bit floats."
    )
    return Table(head, tuple(rows), notes=(note,))


def qann_power(one: Measurement) -> float:
    """The QANN in the paper's unit: its multiply–accumulates as 32-bit floats, all in one step of a millisecond."""
    model = one.energy["model"]
    macs = float(one.energy["per_inference"]["MACs without time"])
    return macs * float(model["mac_pj"]) * 1e-12 / float(model["step_s"])


def _joules(one: Measurement, network: str) -> float:
    return float(one.energy[network]["total"])


def training(book: Book) -> Table:
    """All runs, also those once more: seconds of every stage, energy where it was read, the device."""
    head = ("recipe", "data", "device", "float", "ReLU", "quantized", "certificate", "together", "energy", "QANN, %")
    shown = [(group, "") for group in book.groups] + [(group, ", once more") for group in book.again]
    rows = [
        (
            book.recipe_link(group.recipe, group) + again,
            TITLES[group.data],
            ", ".join(dict.fromkeys(run.device for run in group.runs)),
            *(_seconds(group, name) for name in (*_TRAININGS, "snn")),
            _together(group, "seconds", duration),
            _energy(group),
            spread(group.stage("qann")),
        )
        for group, again in sorted(shown, key=lambda one: place(one[0]))
    ]
    notes = [f"{text}." for text in _notes(book)]
    return Table(head, tuple(rows), left=("data", "device"), notes=tuple(notes))


def _seconds(group: Group, stage: str) -> str:
    return spread([run.metrics.get(stage, {}).get("seconds") for run in group.runs], duration)


def _together(group: Group, key: str, shown: Callable[[float], str]) -> str:
    """The sum over the trainings and the certificate, as far as a run has them; a dash, if a training does not say."""
    sums: list[float | None] = []
    for run in group.runs:
        stages = [run.metrics[name] for name in _TRAININGS if name in run.metrics]
        known: list[Any] = [stage.get(key) for stage in stages]
        sums.append(None if None in known else sum(known) + run.metrics["snn"].get(key, 0.0))
    return spread(sums, shown)


def _energy(group: Group) -> str:
    text = _together(group, "joules", lambda joules: si(joules / 3600, "Wh"))
    stages = [stage for run in group.runs for stage in run.metrics.values()]
    sources = dict.fromkeys(stage["power_source"] for stage in stages if stage.get("power_source"))
    return text if text == DASH or not sources else f"{text} ({', '.join(sources)})"


def _notes(book: Book) -> list[str]:
    """What runs say about figures that they do not have."""
    found = (
        (group.recipe, stage["cost_note"])
        for group in (*book.groups, *book.again)
        for run in group.runs
        for stage in run.metrics.values()
        if stage.get("cost_note")
    )
    return [f"{name}: {note}" for name, note in dict.fromkeys(found)]
