"""From sums to the document: shares, means, distributions, energies."""

import math
from typing import Any

from spikezip.engines import SpikingNetwork
from spikezip.measure import document
from spikezip.measure.activity import Sums, add_held, held, per_step
from spikezip.measure.answers import Head
from spikezip.measure.energy import EnergyModel, energy
from spikezip.measure.latency import POINTS, distribution, take_off, within
from spikezip.measure.tally import Tally
from spikezip.program.nodes import Weight
from spikezip.program.sizes import bind


def numbers(tally: Tally, head: Head, *, with_qann: bool, with_float: bool) -> dict[str, Any]:
    """The parts `over_time`, `latency`, `sites`, `qann` and `float_` of a measurement."""
    sums, steps = tally.answers, tally.steps
    neurons = sum(site.neurons for site in tally.sites.values())
    spikes: Sums = ()
    for site in tally.sites.values():
        spikes = add_held(spikes, site.spikes)
    settled = not tally.unsettled
    compared = "qann" if with_qann else "equilibrium" if settled else "last step"
    over_time = document.OverTime(
        step=tuple(range(1, steps + 1)),
        accuracy=_curve(sums.correct, sums.labelled, steps),
        top5=_curve(sums.top5, sums.labelled, steps),
        agreement=_curve(sums.agreeing, sums.answers, steps),
        agreement_with=compared if sums.answers else None,
        spikes_per_neuron=tuple(n / neurons for n in spikes),
        firing_rate=tuple(n / neurons for n in per_step(spikes)),
    )
    correct = held(sums.correct, steps) if sums.labelled else ()
    reference = sums.qann if with_qann else correct[-1] if correct and settled else None
    nothing: dict[str, int | None] = dict.fromkeys(POINTS)
    latency = document.Latency(
        t_up=take_off(correct, sums.labelled, head.classes) if head.classes else None,
        within=within(correct, sums.labelled, reference) if correct and reference is not None else nothing,
        t_eq=distribution(tally.t_eq),
        unsettled=tally.unsettled,
    )
    return {
        "over_time": over_time,
        "latency": latency,
        "sites": tuple(site.site(name, tally.samples, steps) for name, site in tally.sites.items()),
        "qann": _answers(head, sums.qann, sums.qann_top5, sums.labelled) if with_qann else None,
        "float_": _answers(head, sums.float_, sums.float_top5, sums.labelled) if with_float else None,
    }


def costs(tally: Tally, model: EnergyModel | None) -> dict[str, Any]:
    """The parts `operations`, `energy` and `complexity` of a measurement."""
    assert tally.operations is not None  # there is a batch
    spent = energy(tally.operations, model)
    return {
        "operations": tally.operations.to_json(),
        "energy": spent.to_json(),
        "complexity": tally.complexity,
    }


def model_facts(snn: SpikingNetwork, tally: Tally, source: str | None) -> document.Model:
    return document.Model(
        class_=type(snn).__name__,
        parameters=parameters(snn),
        levels=snn.quant_config.levels,
        weight_bits=snn.quant_config.weight_bits,
        sites=len(snn.neurons),
        neurons=sum(site.neurons for site in tally.sites.values()) / tally.samples,
        source=source,
    )


def parameters(snn: SpikingNetwork) -> int:
    """Weights and biases, without scales: as many as the float model has (tied weights lie apart in an SNN: twice)."""
    weights = {node.key: node for node in snn.program.nodes if isinstance(node, Weight)}
    counted = (node for node in weights.values() if node.trained or node.bits is not None)  # the rest was computed
    return sum(math.prod(bind(size, {}) for size in node.shape) for node in counted)


def _curve(counts: Sums, whole: int, steps: int) -> tuple[float, ...] | None:
    return tuple(n / whole for n in held(counts, steps)) if counts and whole else None


def _answers(head: Head, correct: int, top5: int, labelled: int) -> document.Answers:
    if not labelled:
        return document.Answers(None)
    return document.Answers(correct / labelled, top5 / labelled if head.has_top5 else None)
