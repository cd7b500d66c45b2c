"""One input played through a spiking network: what it says, where it looks and how much it fires, at every step."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Run, SpikingNetwork, simulate
from spikezip.errors import InputError
from spikezip.measure.answers import Head
from spikezip.program.batch import Batch
from spikezip.quant.network import QuantizedNetwork
from spikezip.show.attention import Attentions, maps_of, qann_answer
from spikezip.show.feature_map import SHADE
from spikezip.show.names import layer_name
from spikezip.show.sample import Token, has_tokens, one_sample, picture, pixels_of, real_tokens, tokens_of


@dataclass(frozen=True)
class Layer:
    """The sites of one block together: how many neurons, and their spikes at each step."""

    name: str
    neurons: int
    spikes: tuple[int, ...]


@dataclass(frozen=True)
class Story:
    """Everything a page needs to play one input.

    Attributes:
        title: what the input is, in words.
        classes: names of the classes that are shown, the likeliest at the end first.
        probabilities: `[T][class shown]`, the softmax of the outputs.
        predictions: the name of the likeliest of all classes, for each step; `prediction_probability`: its share.
        qann_prediction, qann_probabilities: the same for the quantized network.
        truth: the name of the right class, if it is known.
        t_eq: the step of the last spike; None if the run ended before the network had settled.
        picture: bytes `[H, W, 1 or 3]`, for an image. tokens: for a text.
        attention: None where there is none to show; `note` then says why.
    """

    title: str
    classes: tuple[str, ...]
    probabilities: Tensor
    predictions: tuple[str, ...]
    prediction_probability: tuple[float, ...]
    qann_prediction: str
    qann_probabilities: tuple[float, ...]
    truth: str | None
    t_eq: int | None
    layers: tuple[Layer, ...]
    attention: Attentions | None
    picture: Tensor | None = None
    tokens: tuple[Token, ...] = ()
    note: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return len(self.predictions)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a page. Pictures and attention maps are bytes in base64; 255 is the QANN's largest weight."""
        return {
            "title": self.title,
            "steps": self.steps,
            "t_eq": self.t_eq,
            "classes": list(self.classes),
            "probabilities": [[round(share, 5) for share in row] for row in self.probabilities.tolist()],
            "predictions": list(self.predictions),
            "shares": [round(share, 5) for share in self.prediction_probability],
            "qann": {
                "prediction": self.qann_prediction,
                "probabilities": [round(share, 5) for share in self.qann_probabilities],
            },
            "truth": self.truth,
            "layers": [asdict(layer) for layer in self.layers],
            "tokens": [asdict(token) for token in self.tokens],
            "picture": None if self.picture is None else _picture_json(self.picture),
            "attention": None if self.attention is None else _attention_json(self.attention),
            "shade": SHADE,
            "note": self.note,
            "settings": self.settings,
        }


@torch.no_grad()
def tell(
    snn: SpikingNetwork,
    batch: Batch,
    qann: QuantizedNetwork | None = None,
    *,
    sample: int = 0,
    title: str | None = None,
    classes: int = 10,
    labels: Sequence[str] | None = None,
    image: Tensor | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    tokenizer: Any = None,
    steps: Any = "equilibrium",
    **settings: Any,
) -> Story:
    """Play one sample of a batch through the network.

    Args:
        qann: the quantized network to compare with. Without one it is computed from the SNN's own weights.
        classes: how many classes are shown at most.
        labels: names of the classes; by default those in the model's config.
        image: the picture as bytes `[H, W, 1 or 3]`; without it, it is made from the pixels, with the `mean` and `std`
            that they were normalised with.
        tokenizer: for text, to show words in place of numbers.
        settings: how to simulate, as `spikezip.simulate` takes it.

    Example:
        >>> import transformers
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = quantize(transformers.ViTForImageClassification(vit), QuantConfig(levels=8))
        >>> snn = convert(calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> story = tell(snn, torch.randn(1, 3, 32, 32), qann)
        >>> story.predictions[-1] == story.qann_prediction, [layer.name for layer in story.layers]
        (True, ['embeddings', 'layer 0', 'layernorm'])
    """
    head = Head.of(snn)
    if head.classes is None or (head.per_token and not head.next_token):
        what = "an answer for each token" if head.per_token else "no choice between classes"
        raise InputError(f"{type(snn).__name__} gives {what}: there is no one answer to show over time")
    inputs, label = one_sample(snn, batch, sample)
    run = simulate(snn, inputs, steps=steps, **settings)
    output, codes = qann_answer(snn, qann, inputs)
    logits, reference = run.logits_per_step[:, 0].cpu(), output[0].cpu()
    if head.next_token:  # the answer is what comes after the last token
        last = int(real_tokens(inputs).nonzero().max())
        logits, reference = logits[:, last], reference[last]
    over_time, still = logits.double().softmax(dim=-1), reference.double().softmax(dim=-1)  # [T, classes], [classes]
    names = _names(snn, over_time.shape[-1], labels, tokenizer)
    chosen = _chosen(over_time, still, label, classes)
    attention, note = None, ""
    try:
        attention = maps_of(snn, inputs, codes, run, steps, settings)
    except InputError as error:  # a network without one attention over all places still has the rest to show
        note = f"No attention map: {error}."
    pixels = pixels_of(snn, inputs)
    if pixels is not None and image is None:
        image = picture(pixels, mean, std)
    best, which = over_time.max(dim=-1)
    return Story(
        title=title or f"Sample {sample}",
        classes=tuple(names(number) for number in chosen),
        probabilities=over_time[:, chosen],
        predictions=tuple(names(number) for number in which.tolist()),
        prediction_probability=tuple(best.tolist()),
        qann_prediction=names(int(still.argmax())),
        qann_probabilities=tuple(still[chosen].tolist()),
        truth=None if label is None or not 0 <= label < len(still) else names(label),
        t_eq=run.t_eq[0],
        layers=layers_of(run),
        attention=attention,
        picture=None if pixels is None else image,
        tokens=tuple(tokens_of(inputs, tokenizer)) if pixels is None and has_tokens(inputs) else (),
        note=note,
        settings={"steps": steps, **settings},
    )


def _picture_json(pixels: Tensor) -> dict[str, Any]:
    height, width, channels = pixels.shape
    return {"height": height, "width": width, "channels": channels, "bytes": _base64(pixels)}


def _attention_json(attention: Attentions) -> dict[str, Any]:
    def in_bytes(weights: Tensor, top: float) -> str:
        return _base64((weights / top).clamp(0, 1).mul(255).round().to(torch.uint8))

    maps = [
        {"name": one.name, "over_time": in_bytes(one.over_time, one.top), "qann": in_bytes(one.qann, one.top)}
        for one in attention.maps
    ]
    return {"grid": attention.grid, "source": attention.source, "maps": maps}


def _base64(values: Tensor) -> str:
    return b64encode(values.contiguous().numpy().tobytes()).decode("ascii")


def layers_of(run: Run) -> tuple[Layer, ...]:
    """The spikes of a run of one sample, added up over the sites of each block."""
    found: dict[str, Layer] = {}
    for site, counts in run.spike_counts.items():
        name = layer_name(site)
        spikes = counts[:, 0].tolist()
        if name in found:
            before = found[name]
            spikes = [a + b for a, b in zip(before.spikes, spikes, strict=True)]
            found[name] = Layer(name, before.neurons + run.neurons[site], tuple(spikes))
        else:
            found[name] = Layer(name, run.neurons[site], tuple(spikes))
    return tuple(found.values())


def _names(snn: SpikingNetwork, count: int, labels: Sequence[str] | None, tokenizer: Any) -> Any:
    if labels is not None and len(labels) < count:
        raise InputError(f"there are {len(labels)} labels, but {count} classes")
    config = getattr(snn, "config", None)  # a network of transformers has one
    vocabulary = count == getattr(config, "vocab_size", None) and labels is None
    known = getattr(config, "id2label", None) or {}

    def name(number: int) -> str:
        if labels is not None:
            return str(labels[number])
        if vocabulary:
            return str(number) if tokenizer is None else str(tokenizer.convert_ids_to_tokens(number))
        return str(known.get(number, number))

    return name


def _chosen(over_time: Tensor, still: Tensor, label: int | None, most: int) -> list[int]:
    """The classes to show: the likeliest at the end, then those that were likeliest at some step, and the right one."""
    passing = over_time.argmax(dim=-1).unique().tolist()
    wanted = [int(still.argmax()), *([label] if label is not None and 0 <= label < len(still) else []), *passing]
    likeliest = still.argsort(descending=True).tolist()
    kept = list(dict.fromkeys([*wanted, *likeliest]))[: max(most, 1)]
    return sorted(kept, key=likeliest.index)
