"""One sample of a batch, as text or as a picture that people can look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import SpikingNetwork
from spikezip.engines.loop import parts_of
from spikezip.errors import InputError
from spikezip.program.batch import LABELS, Batch, sample_count, sizes_of

_SPACES = ("Ġ", "▁")  # how vocabularies mark a piece that begins a word


def one_sample(network: SpikingNetwork, batch: Batch, sample: int) -> tuple[dict[str, Any], int | None]:
    """The inputs of one sample as a batch of its own, padded as it was, and its class if the batch names one."""
    program, inputs = network.program, network.prepare(batch)
    sizes_of(program, inputs)  # refuses what does not fit
    size = sample_count(program, inputs)
    if not 0 <= sample < size:
        raise InputError(f"there is no sample {sample}: the batch holds {size}, counted from 0")
    if program.batch is None and size > 1:
        raise InputError(f"one sample cannot run alone: the network takes {size} at a time ({program.fixed})")
    given = batch if isinstance(batch, Mapping) else {}
    labels: Any = next((given[name] for name in LABELS if name in given), None)
    plain = isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()
    return parts_of(program, inputs, size)[sample], int(labels[sample]) if plain else None


def pixels_of(network: SpikingNetwork, inputs: Mapping[str, Any]) -> Tensor | None:
    """The pixels `[C, H, W]` of the one sample; None if it is no image."""
    name = getattr(network, "main_input_name", "")
    main = inputs[name if name in inputs else network.program.inputs[0].name]
    return main[0] if main.ndim == 4 and main.is_floating_point() else None


def picture(pixels: Tensor, mean: Sequence[float] = (), std: Sequence[float] = ()) -> Tensor:
    """Pixels `[C, H, W]` as a model takes them, back as bytes `[H, W, 1 or 3]`.

    With the mean and deviation that they were normalised with, exactly so; without, or where that does not lead into
    0 … 1, the darkest value becomes black and the brightest white. Other channels than 1 or 3 (frames of events) are
    added up.

    Example:
        >>> picture(torch.tensor([[[-1.0, 1.0]]]), [0.5], [0.5]).flatten().tolist()
        [0, 255]
        >>> picture(torch.zeros(4, 8, 6)).shape
        torch.Size([8, 6, 1])
    """
    values = pixels.detach().cpu().double()
    if values.shape[0] not in (1, 3):
        values = values.sum(dim=0, keepdim=True)
    elif len(mean) and {len(mean), len(std)} <= {1, values.shape[0]}:
        undone = values * torch.tensor(std).double()[:, None, None] + torch.tensor(mean).double()[:, None, None]
        if float(undone.min()) >= -0.01 and float(undone.max()) <= 1.01:  # float32 pixels: not quite what went in
            return (undone.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    low, high = values.min(), values.max()
    shown = (values - low) / (high - low).clamp(min=1e-12)
    return (shown * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()


@dataclass(frozen=True)
class Token:
    """A piece of text; `joined` to the one before it if no space stands between them."""

    text: str
    joined: bool = False
    special: bool = False


def tokens_of(inputs: Mapping[str, Any], tokenizer: Any = None) -> list[Token]:
    """The tokens of one sample, padding left out; without a tokenizer their numbers.

    Example:
        >>> tokens_of({"input_ids": torch.tensor([[7, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])})
        [Token(text='7', joined=False, special=False), Token(text='9', joined=False, special=False)]
    """
    ids = [int(number) for number in _ids(inputs)[0][real_tokens(inputs)]]
    if tokenizer is None:
        return [Token(str(number)) for number in ids]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    special = set(tokenizer.all_special_ids)
    marked = any(piece.startswith(_SPACES) for piece in pieces)
    found = []
    for place, (number, piece) in enumerate(zip(ids, pieces, strict=True)):
        if number in special:
            found.append(Token(piece, special=True))
            continue
        text = tokenizer.decode([number]).strip() or piece
        inside = piece.startswith("##") or (marked and not piece.startswith(_SPACES))
        begins = place == 0 or ids[place - 1] in special
        found.append(Token(text.removeprefix("##"), joined=inside and not begins))
    return found


def real_tokens(inputs: Mapping[str, Any]) -> Tensor:
    """Which places of the one text are no padding."""
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        return mask[0].bool().cpu()
    return torch.ones(_ids(inputs).shape[1], dtype=torch.bool)


def has_tokens(inputs: Mapping[str, Any]) -> bool:
    return any(_are_ids(value) for value in inputs.values())


def _ids(inputs: Mapping[str, Any]) -> Tensor:
    """The numbers of the tokens, `[1, n]`."""
    found = inputs.get("input_ids", next(filter(_are_ids, inputs.values()), None))
    if found is None:
        raise InputError("the input is neither an image nor a text")
    return found


def _are_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()
