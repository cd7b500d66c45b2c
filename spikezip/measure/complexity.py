"""The paper's complexity table, with the numbers of an actual network in place of orders of magnitude."""

from dataclasses import dataclass

from spikezip.engines import Run, SpikingNetwork
from spikezip.measure.operations import operations
from spikezip.measure.plain import Plain
from spikezip.measure.rows import INPUT, LINEAR, MIX, SCORES, Operations
from spikezip.measure.shapes import Layout, layout_of
from spikezip.program.batch import Batch

NORMS = ("layernorm", "rmsnorm")
LINEAR_GLUE = ("add", "sum")


@dataclass(frozen=True)
class Complexity(Plain):
    """One type of operator: values held and operations made for one inference, in the SNN and without time.

    Attributes:
        snn_space, snn_time, qann_space, qann_time: as the paper states them; "" for what its table leaves out.
        weights: numbers that both networks hold.
        snn_state: values that the SNN carries from step to step; `qann_state`: values without time.
        snn_bound: operations if every neuron fired in every step; `snn_operations`: those counted, the mean over
            samples; `qann_operations`: those without time. For products accumulates and multiply–accumulates, for
            functions elements, for neurons updates and codes.
    """

    operator: str
    snn_space: str
    snn_time: str
    qann_space: str
    qann_time: str
    weights: int
    snn_state: int
    qann_state: int
    snn_bound: int
    snn_operations: float
    qann_operations: int


def complexity(
    snn: SpikingNetwork, run: Run, batch: Batch | None = None, counted: Operations | None = None
) -> tuple[Complexity, ...]:
    """State held and operations made by each type of operator, per inference.

    Args:
        snn, run, batch: as for `operations`.
        counted: what `operations(snn, run, batch)` gave, if it is at hand.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=32)
        >>> qann = spikezip.calibrate(spikezip.quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> snn = spikezip.convert(qann)
        >>> run = spikezip.simulate(snn, torch.randn(2, 3, 32, 32), steps=4, count_neurons=True)
        >>> held = {row.operator: row.snn_state for row in complexity(snn, run)}
        >>> held["softmax"]  # 2 heads; 4 patches and the class token
        50
    """
    found = layout_of(snn, run, batch)
    counted = counted or operations(snn, run, batch)
    return _aw(found, counted), _aa(found, counted), *_functions(found, counted), _neurons(found, counted)


def _aw(found: Layout, counted: Operations) -> Complexity:
    """Activation–weight products: weights and one potential per output. The input layer multiplies, once."""
    linears = [product for product in found.products if product.kind == LINEAR]
    macs = sum(linear.macs for linear in linears)
    once = sum(layer.macs for layer in found.inputs)
    outputs = sum(linear.outputs for linear in linears) + sum(layer.outputs for layer in found.inputs)
    return Complexity(
        "AW product",
        "O(nd + d²)",
        "O(Tnd²)",
        "O(nd + d²)",
        "O(γnd²)",
        weights=sum(linear.weights for linear in linears) + sum(layer.weights for layer in found.inputs),
        snn_state=outputs,
        qann_state=outputs,
        snn_bound=macs * counted.steps + once,
        snn_operations=(counted.accumulates(LINEAR) + counted.macs(INPUT)) / counted.samples,
        qann_operations=macs + once,
    )


def _aa(found: Layout, counted: Operations) -> Complexity:
    """Products of activations: the tracers of both operands, and the outputs of the mix; scores are softmax's input."""
    pairs = [product for product in found.products if product.kind != LINEAR]
    macs = sum(pair.macs for pair in pairs)
    # Both operands of both products fire, and SESA has a third product.
    bound = 3 * macs * counted.steps
    held = sum(found.sites[operand.site].neurons for pair in pairs for operand in pair.operands)
    mixed = sum(pair.outputs for pair in pairs if pair.kind == MIX)
    return Complexity(
        "AA product",
        "O(nd)",
        "O(Tnd²)",
        "O(nd)",
        "O(γnd²)",
        weights=0,
        snn_state=held + mixed,
        qann_state=held + mixed,
        snn_bound=bound,
        snn_operations=counted.accumulates(SCORES, MIX) / counted.samples,
        qann_operations=macs,
    )


def _functions(found: Layout, counted: Operations) -> list[Complexity]:
    """Functions hold their accumulated input in the SNN, and nothing without time."""
    groups = {
        "softmax": ("softmax",),
        "norm": NORMS,
        "other functions": tuple({f.kind for f in found.functions} - {"softmax", *NORMS, *LINEAR_GLUE}),
    }
    orders = {"softmax": ("O(n²)", "O(Tn²)", "O(1)", "O(γn²)"), "norm": ("O(nd)", "O(Tnd)", "O(1)", "O(γnd)")}
    rows = []
    for name, kinds in groups.items():
        shapes = [f for f in found.functions if f.kind in kinds]
        if not shapes:
            continue
        each = sum(f.elements for f in shapes)
        again = [f for f in shapes if f.sources]  # what the input alone decides is computed once
        row = Complexity(
            name,
            *orders.get(name, ("", "", "", "")),
            weights=0,
            snn_state=sum(f.elements for f in again),
            qann_state=0,
            snn_bound=sum(f.elements for f in again) * counted.steps + each - sum(f.elements for f in again),
            snn_operations=sum(f.elements for f in counted.functions if f.kind in kinds) / counted.samples,
            qann_operations=each,
        )
        rows.append(row)
    return rows


def _neurons(found: Layout, counted: Operations) -> Complexity:
    """A membrane and a tracer each, which the paper's table leaves out; a quantizer holds nothing."""
    neurons = sum(site.neurons for site in found.sites.values())
    return Complexity(
        "neuron",
        "",
        "",
        "",
        "",
        weights=0,
        snn_state=2 * neurons,
        qann_state=0,
        snn_bound=neurons * counted.steps,
        snn_operations=sum(layer.updates for layer in counted.layers) / counted.samples,
        qann_operations=neurons,
    )
