"""From operations to energy: the paper's power, and joules per inference of the SNN, the QANN and the float model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spikezip.errors import InputError
from spikezip.measure.energy_model import EnergyModel
from spikezip.measure.plain import Plain
from spikezip.measure.rows import INPUT, LINEAR, Function, Operations

__all__ = ["Energy", "EnergyModel", "Joules", "Paper", "energy"]

PICO = 1e-12
NORMS = ("layernorm", "rmsnorm")
ADDITIONS = ("add", "sum", "hadamard")


@dataclass(frozen=True)
class Paper(Plain):
    """The paper's figures: spikes per step and the power that they take, means over samples and over T steps.

    Attributes:
        n_pre, n_post, total_spikes: spikes delivered, fired, and both, in a step.
        power_w: `total_spikes · α / 1 ms`; `power_w_per_step`: the same of each step.
        energy_j: what that power adds up to in T steps, which the paper does not say.
    """

    n_pre: float
    n_post: float
    total_spikes: float
    power_w: float
    power_w_per_step: tuple[float, ...]
    energy_j: float


@dataclass(frozen=True)
class Joules(Plain):
    """Joules per inference, by what they are spent on.

    Attributes:
        linear, attention: products. In the SNN accumulates, in the others multiply–accumulates.
        neurons: looking at neurons; in the quantized network its quantizers.
        additions: residual sums, biases, means.
        softmax, norms, functions: recomputed by the SNN in every step that changes their input.
        input_layer: once, in multiply–accumulates of floats.
        memory: None where it is switched off.
    """

    linear: float
    attention: float
    neurons: float
    additions: float
    softmax: float
    norms: float
    functions: float
    input_layer: float
    memory: float | None
    total: float

    @property
    def products(self) -> float:
        return self.linear + self.attention


@dataclass(frozen=True)
class Energy(Plain):
    """What inferences cost, as means over samples.

    Attributes:
        snn: with 32-bit float accumulates, as the paper has it; `snn_integer`: with integer accumulates where weights
            or codes are integers, to be compared with `qann`, whose products are priced as integers too.
        float_model: the network before quantization.
        snn_per_step: of `snn`, by step, without memory traffic and `untimed` accumulates.
        per_inference: the operations behind it.
    """

    samples: int
    steps: int
    paper: Paper
    snn: Joules
    snn_integer: Joules
    qann: Joules
    float_model: Joules
    snn_per_step: tuple[float, ...]
    per_inference: dict[str, float | None]
    model: EnergyModel


def energy(operations: Operations, model: EnergyModel | None = None) -> Energy:
    """Price operations.

    Example:
        >>> from spikezip.measure.rows import Product
        >>> row = Product("fc", "linear", "norm", 8, spikes=3, fan_out=4, accumulates=12)
        >>> counted = Operations(1, 2, (row,), (), (), (), {"linear": (8, 4), "spikes": (2, 1)})
        >>> found = energy(counted)
        >>> round(found.paper.total_spikes, 2), f"{found.paper.power_w:.3g} W", f"{found.snn.total:.3g} J"
        (7.5, '6.75e-09 W', '1.08e-11 J')
    """
    model = model or EnergyModel()
    if operations.samples < 1:
        raise InputError("there are no samples in these operations: count at least one batch")
    return Energy(
        samples=operations.samples,
        steps=operations.steps,
        paper=_paper(operations, model),
        snn=_snn(operations, model, lambda bits: model.accumulate_pj),
        snn_integer=_snn(operations, model, lambda bits: _integer_accumulate(bits, model)),
        qann=_without_time(operations, model, quantized=True),
        float_model=_without_time(operations, model, quantized=False),
        snn_per_step=tuple(_steps(operations, model)),
        per_inference=operations.per_inference(),
        model=model,
    )


def _paper(operations: Operations, model: EnergyModel) -> Paper:
    steps = max(operations.steps, 1)
    n_pre, n_post = operations.n_pre / steps, operations.n_post / steps
    watt_per_spike = model.accumulate_pj * PICO / model.step_s
    by_step = [sum(counts) / operations.samples for counts in _zip(operations, "linear", "scores", "mix", "spikes")]
    return Paper(
        n_pre=n_pre,
        n_post=n_post,
        total_spikes=n_pre + n_post,
        power_w=(n_pre + n_post) * watt_per_spike,
        power_w_per_step=tuple(spikes * watt_per_spike for spikes in by_step),
        energy_j=(n_pre + n_post) * watt_per_spike * steps * model.step_s,
    )


def _zip(operations: Operations, *names: str) -> Iterator[tuple[int, ...]]:
    silent = (0,) * operations.steps
    return zip(*(operations.per_step.get(name, silent) for name in names), strict=True)


def _integer_accumulate(bits: int | None, model: EnergyModel) -> float:
    return model.accumulate_pj if bits is None else model.int_accumulate_pj()


def _snn(operations: Operations, model: EnergyModel, accumulate: Callable[[int | None], float]) -> Joules:
    rows, width = operations.products, model.accumulator_bits
    products = {
        kind: sum(row.accumulates * accumulate(row.bits) for row in rows if (row.kind == LINEAR) == (kind == LINEAR))
        for kind in (LINEAR, "attention")
    }
    updates = sum(row.updates for row in operations.layers)
    # An accumulate reads a weight or a code, and reads and writes a potential; an update a membrane and a tracer.
    from_weights = sum(row.accumulates * (row.bits or 32) for row in rows if row.kind == LINEAR)
    from_states = sum(row.accumulates * (row.bits or 32) for row in rows if row.kind != LINEAR)
    from_states += 2 * width * sum(row.accumulates for row in rows)
    from_states += sum(2 * (width + row.bits) * row.updates for row in operations.layers)
    from_states += sum(64 * row.elements for row in operations.functions)
    return _joules(
        operations,
        model,
        linear=products[LINEAR],
        attention=products["attention"],
        neurons=updates * model.update_adds * accumulate(32),
        functions=((row, row.elements, row.rows, True) for row in operations.functions),
        weight_bits=from_weights,
        state_bits=from_states,
    )


def _without_time(operations: Operations, model: EnergyModel, quantized: bool) -> Joules:
    spent = {LINEAR: 0.0, "attention": 0.0}
    weight_bits = state_bits = 0
    for row in operations.dense:
        if row.kind == INPUT:
            continue
        left, right = (row.left_bits, row.right_bits) if quantized else (None, None)
        each = model.mac_pj if left is None or right is None else model.int_mac_pj(left, right)
        spent[LINEAR if row.kind == LINEAR else "attention"] += row.macs * each
        # A multiply–accumulate reads both operands; the sum stays in its register until it is written.
        state_bits += row.macs * (left or 32) + row.outputs * model.accumulator_bits
        if row.kind == LINEAR:
            weight_bits += row.macs * (right or 32)
        else:
            state_bits += row.macs * (right or 32)
    neurons = sum(row.neurons for row in operations.layers) if quantized else 0
    state_bits += sum(row.neurons * (model.accumulator_bits + row.bits) for row in operations.layers) * quantized
    state_bits += sum(64 * row.single_elements for row in operations.functions)
    return _joules(
        operations,
        model,
        linear=spent[LINEAR],
        attention=spent["attention"],
        neurons=neurons * model.quantize_macs * model.mac_pj,
        functions=((row, row.single_elements, row.single_rows, False) for row in operations.functions),
        weight_bits=weight_bits,
        state_bits=state_bits,
    )


def _joules(
    operations: Operations,
    model: EnergyModel,
    linear: float,
    attention: float,
    neurons: float,
    functions: Iterable[tuple[Function, int, int, bool]],
    weight_bits: int,
    state_bits: int,
) -> Joules:
    """Picojoules of a batch and bits moved, as joules per inference; what all networks share is added here."""
    spent = {"additions": 0.0, "softmax": 0.0, "norms": 0.0, "functions": 0.0}
    for row, elements, rows, over_time in functions:
        spent[_part(row.kind)] += function_pj(model, row.kind, elements, rows, over_time)
    memory = None
    inputs = operations.macs(INPUT)
    if model.memory != "off":
        weights = weight_bits + 32 * inputs
        memory = weights * model.bit_pj(model.memory) + (state_bits + 32 * inputs) * model.bit_pj("sram")
    parts = {
        "linear": linear,
        "attention": attention,
        "neurons": neurons,
        **spent,
        "input_layer": inputs * model.mac_pj,
    }
    means = {k: pj * PICO / operations.samples for k, pj in parts.items()}
    moved = None if memory is None else memory * PICO / operations.samples
    return Joules(**means, memory=moved, total=sum(means.values()) + (moved or 0.0))


def _part(kind: str) -> str:
    if kind == "softmax":
        return kind
    return "norms" if kind in NORMS else "additions" if kind in ADDITIONS else "functions"


def function_pj(model: EnergyModel, kind: str, elements: int, rows: int, over_time: bool) -> float:
    """Picojoules of a function; over time it also emits the difference to the step before.

    Example:
        >>> round(function_pj(EnergyModel(), "layernorm", elements=4, rows=1, over_time=True), 2)
        102.8
    """
    cost = model.function(kind)
    adds = cost.adds + (over_time and cost.differential)
    return elements * (adds * model.accumulate_pj + cost.macs * model.mac_pj) + rows * cost.row_macs * model.mac_pj


def _steps(operations: Operations, model: EnergyModel) -> Iterator[float]:
    """The joules of `snn`, memory aside, by step; the input layer stands in the first."""
    for t, (linear, scores, mix, updates) in enumerate(_zip(operations, "linear", "scores", "mix", "updates")):
        pj = (linear + scores + mix + updates * model.update_adds) * model.accumulate_pj
        for kind, elements in operations.function_elements.items():
            pj += function_pj(model, kind, elements[t], operations.function_rows[kind][t], True)
        if t == 0:
            pj += operations.macs(INPUT) * model.mac_pj
        yield pj * PICO / operations.samples
