"""Look where a network looks: from samples of a batch to the document behind the feature-map figure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import SpikingNetwork, resolve_engine, simulate
from spikezip.errors import ConfigError, InputError
from spikezip.measure.answers import Head
from spikezip.measure.comparison import check_counterpart
from spikezip.measure.devices import device_name
from spikezip.measure.document import Settings
from spikezip.measure.one_batch import labels_of
from spikezip.measure.summary import parameters
from spikezip.program.batch import Batch, sample_count
from spikezip.quant.network import QuantizedNetwork
from spikezip.show.attention import ROLLED_OUT, AttentionMap, attention_sites, maps_of, qann_answer
from spikezip.show.attention_document import AttentionDocument, AttentionSample, Picture
from spikezip.show.sample import one_sample, picture, pixels_of, tokens_of
from spikezip.version import versions

DIGITS = 4  # of a weight


def map_names(snn: SpikingNetwork) -> list[str]:
    """The attention maps that a network has: one for each layer, and all layers rolled out.

    Example:
        >>> import transformers
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=1, image_size=32)
        >>> qann = calibrate(quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> map_names(convert(qann))
        ['layers.0.attention.p', 'layers.1.attention.p', 'rolled out']
    """
    layers = attention_sites(snn.program)
    if not layers:
        raise InputError(f"{type(snn).__name__} has no attention")
    return [*layers, ROLLED_OUT]


@torch.no_grad()
def look(
    snn: SpikingNetwork,
    batch: Batch,
    qann: QuantizedNetwork | None = None,
    *,
    samples: Sequence[int] | None = None,
    indices: Sequence[int] | None = None,
    at: Sequence[int] = (2, 4, 8, 16, 32),
    map: str | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    tokenizer: Any = None,
    engine: str = "auto",
    coding: str = "analog",
    max_spike: int = 1,
    stagger: float = 0,
    progress: Callable[[int], None] | None = None,
    name: str | None = None,
    data: str | None = None,
    command: str | None = None,
) -> AttentionDocument:
    """Run samples to equilibrium and put down where the network looks at chosen steps, beside the QANN.

    Args:
        batch: images, or a text; with "labels" where they are known.
        qann: the quantized network to compare with. Without one it is computed from the SNN's own weights.
        samples: which of the batch, counted from 0; by default all. Of texts, one.
        indices: their places in the data, where these are not those in the batch.
        at: the steps. One past equilibrium shows what equilibrium shows.
        map: which map, a site or "rolled out"; by default the last layer's.
        mean, std: what the pixels were normalised with.
        tokenizer: for text, to show words in place of numbers.
        engine, coding, max_spike, stagger: as for `simulate`.
        progress: called after each sample with the number that are done.
        name, data, command: names for network and data set, and what was typed.

    Example:
        >>> import transformers
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = quantize(transformers.ViTForImageClassification(vit), QuantConfig(levels=8))
        >>> snn = convert(calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> document = look(snn, torch.randn(2, 3, 32, 32), qann, at=(1, 99))
        >>> document.map, [sample.grid for sample in document.samples]
        ('layers.0.attention.p', [(2, 2), (2, 2)])
        >>> document.samples[1].weights[1] == document.samples[1].qann  # at step 99 it has settled long since
        True
    """
    known = map_names(snn)
    if map is not None and map not in known:
        raise InputError(f"there is no attention map {map!r}; there are {', '.join(known)}")
    if not at or min(at) < 1 or len(set(at)) < len(at):
        raise InputError(f"at={tuple(at)!r}: steps are counted from 1, and each stands once")
    if qann is not None:
        check_counterpart(snn, qann)
    head = Head.of(snn)
    answers = head.classes is not None and not head.per_token
    labels = labels_of(head, snn, batch, 0) if answers else None
    places = range(sample_count(snn.program, snn.prepare(batch))) if samples is None else samples
    if not places or len(set(places)) < len(places):
        raise InputError(f"samples={tuple(places)!r}: at least one is needed, and each once")
    if indices is not None and len(indices) != len(places):
        raise ConfigError(f"indices: expected {len(places)}, one for each sample, not {len(indices)}")
    inputs = [one_sample(snn, batch, place)[0] for place in places]
    if pixels_of(snn, inputs[0]) is None and len(places) != 1:
        raise InputError(f"a figure of words shows one text, not {len(places)}: choose one sample")
    engine, _ = resolve_engine(snn.frozen(), snn.program.layout, engine)
    settings: dict[str, Any] = {"engine": engine, "coding": coding, "max_spike": max_spike, "stagger": stagger}
    found: list[AttentionSample] = []
    shown, source = "", ""
    for number, (place, one) in enumerate(zip(places, inputs, strict=True)):
        run = simulate(snn, one, steps="equilibrium", **settings)
        maps = maps_of(snn, one, qann_answer(snn, qann, one)[1], run, "equilibrium", settings)
        chosen_map = maps.last_layer if map is None else maps[map]
        shown, source = chosen_map.name, maps.source
        sample = AttentionSample(
            index=place if indices is None else indices[number],
            label=None if labels is None else _class(head, int(labels[place])),
            answer=_class(head, int(run.logits[0].argmax())) if answers else None,
            t_eq=run.t_eq[0],
            **_weights(chosen_map, at),
            **_input(snn, one, mean, std, tokenizer, maps.grid),
        )
        found.append(sample)
        if progress is not None:
            progress(len(found))
    return AttentionDocument(
        name=name or f"{type(snn).__name__}, {snn.quant_config.levels} levels",
        class_=type(snn).__name__,
        parameters=parameters(snn),
        levels=snn.quant_config.levels,
        data=data,
        map=shown,
        source=source,
        steps=tuple(at),
        settings=Settings("equilibrium", engine, coding, max_spike, float(stagger)),
        device=device_name(snn.device),
        samples=tuple(found),
        command=command,
        versions=versions(),
    )


def _class(head: Head, number: int) -> str:
    return f"class {number}" if head.names is None else head.names[number]


def _weights(one: AttentionMap, at: Sequence[int]) -> dict[str, Any]:
    """Shares of the QANN's largest weight."""

    def rounded(values: Tensor) -> tuple[float, ...]:
        return tuple(round(value, DIGITS) for value in (values.double() / one.top).tolist())

    steps = (min(step, len(one.over_time)) - 1 for step in at)
    return {"top": one.top, "weights": tuple(rounded(one.over_time[step]) for step in steps), "qann": rounded(one.qann)}


def _input(
    snn: SpikingNetwork,
    inputs: Mapping[str, Any],
    mean: Sequence[float],
    std: Sequence[float],
    tokenizer: Any,
    grid: tuple[int, int] | None,
) -> dict[str, Any]:
    pixels = pixels_of(snn, inputs)
    if pixels is None:
        return {"tokens": tuple(token.text for token in tokens_of(inputs, tokenizer))}
    return {"picture": Picture.of(picture(pixels, mean, std)), "grid": grid}
