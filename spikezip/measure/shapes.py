"""What a spiking network computes per sample: which product reads which neurons, which functions stand in between.

Nothing here looks at values. It is found once per input shape (`tracing.py`), and spikes are counted on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.errors import ConfigError, InputError
from spikezip.simulate import Run, SpikingModel

ATTENTION_MASK = "attention_mask"


@dataclass(frozen=True)
class SiteShape:
    """A layer of neurons. `sources`: whose spikes change its input; none where the input alone does."""

    name: str
    shape: tuple[int, ...]  # of one sample, led by 1 (Swin: by the number of windows)
    sources: frozenset[str]
    entry: bool
    levels: int

    @property
    def neurons(self) -> int:
        return _product(self.shape)

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return (self.levels - 1).bit_length()


@dataclass(frozen=True)
class LinearShape:
    """A product with weights. `read`: for each neuron of the source how often its spikes arrive; None: once, all."""

    name: str
    source: str
    inputs: int
    outputs: int
    out_features: int
    weight_bits: int | None
    weights: int
    bias: bool
    read: Tensor | None = field(repr=False)

    @property
    def arriving(self) -> str:
        """A name for the spikes that arrive: the site's, or one of its own if only a part of the site arrives."""
        return self.source if self.read is None else f"{self.source} → {self.name}"

    @property
    def macs(self) -> int:
        return self.inputs * self.out_features


@dataclass(frozen=True)
class AttentionShape:
    """Both products of an attention. `heads`: matrices multiplied (heads, times windows); `groups`: heads per key."""

    name: str
    q: str
    k: str
    v: str
    p: str
    heads: int
    queries: int
    keys: int
    depth: int  # of queries and keys
    width: int  # of values
    groups: int

    @property
    def score_macs(self) -> int:
        return self.heads * self.queries * self.keys * self.depth

    @property
    def mix_macs(self) -> int:
        return self.heads * self.queries * self.keys * self.width


@dataclass(frozen=True)
class FunctionShape:
    """A function between products: `elements` per evaluation in `rows` vectors; computed when a source has fired."""

    name: str
    kind: str
    elements: int
    rows: int
    sources: frozenset[str]


@dataclass(frozen=True)
class InputShape:
    """The convolution that sees the float input, once per inference."""

    name: str
    macs: int
    outputs: int
    weights: int
    weight_bits: int | None


@dataclass(frozen=True)
class Layout:
    """A network for one input shape, in the order of execution."""

    sites: Mapping[str, SiteShape]
    linears: tuple[LinearShape, ...]
    attentions: tuple[AttentionShape, ...]
    functions: tuple[FunctionShape, ...]
    inputs: tuple[InputShape, ...]

    @property
    def read_in_part(self) -> tuple[str, ...]:
        """Sites of which some product reads a part only, as a head reads the class token."""
        return tuple(dict.fromkeys(product.source for product in self.linears if product.read is not None))


# A layout is found in one forward pass of one sample; data sets are measured in many batches of few shapes.
_layouts: WeakKeyDictionary[SpikingModel, dict[Any, Layout]] = WeakKeyDictionary()


def layout(snn: SpikingModel, batch: Batch | None = None, tokens: int = 4) -> Layout:
    """The layout for a batch's shape; without a batch, for an image as the config says, or a text of so many tokens.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTForImageClassification(vit))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> found = layout(snn)
        >>> found.linears[-1].name, found.linears[-1].inputs, found.read_in_part
        ('classifier', 8, ('layernorm',))
    """
    from spikezip.measure.tracing import trace  # it makes the classes above

    if not isinstance(snn, SpikingModel):
        raise ConfigError(f"operations are counted on what spikezip.convert returns, not {type(snn).__name__}")
    if batch is None:
        try:
            return layout(snn, _stand_in(snn, tokens))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            problem = f"what {type(snn).__name__} takes is not known from its config ({error})"
            raise InputError(f"{problem}: give the batch that was run, too") from error
    inputs = _first_sample(snn, batch)
    key = tuple((k, tuple(v.shape)) if isinstance(v, Tensor) else (k, repr(v)) for k, v in sorted(inputs.items()))
    known = _layouts.setdefault(snn, {})
    if key not in known:
        known[key] = trace(snn, inputs)
    return known[key]


def layout_of(snn: SpikingModel, run: Run, batch: Batch | None = None) -> Layout:
    """The layout of a run, checked against the shapes of its sites."""
    names = snn.neurons if isinstance(snn, SpikingModel) else {}
    if names and set(names) != set(run.tracers):
        odd = sorted(set(names) ^ set(run.tracers))
        raise InputError(f"this is a run of another network: only one of the two has the site {odd[0]!r}")
    entry = next((name for name, neuron in names.items() if neuron.entry), None)
    shape = run.tracers[entry].shape if entry is not None else ()
    found = layout(snn, batch, shape[1] if len(shape) > 2 else 4)
    samples = len(run.t_eq)
    for name, site in found.sites.items():
        expected = (site.shape[0] * samples, *site.shape[1:])
        seen = tuple(run.tracers[name].shape)
        if seen != expected:
            raise InputError(
                f"in the run the site {name!r} has the shape {seen}, but {expected} was found from "
                + ("the model's config: give the batch that was run, too" if batch is None else "the batch")
            )
    return found


def _first_sample(snn: SpikingModel, batch: Batch) -> dict[str, Any]:
    prepared = prepare(snn, batch)
    return {
        k: v[:1] if isinstance(v, Tensor) and v.ndim and v.shape[0] == prepared.size else v
        for k, v in prepared.inputs.items()
    }


def _stand_in(snn: SpikingModel, tokens: int) -> dict[str, Any]:
    """An input of the right shape, for shapes are all that is asked."""
    if snn.main_input_name == "pixel_values":
        size = snn.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.zeros(1, snn.config.num_channels, height, width, device=snn.device)}
    ids = torch.zeros(1, tokens, dtype=torch.int64, device=snn.device)
    return {snn.main_input_name: ids, ATTENTION_MASK: torch.ones_like(ids)}


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
