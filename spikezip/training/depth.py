"""How deep a parameter lies: blocks of a network, in the order of execution. And leaving blocks out in training."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.data.reduction import Reduction
from spikezip.errors import ConfigError
from spikezip.program.dropout import with_drop_path
from spikezip.quant.network import QuantizedNetwork

# Architectures whose blocks end in a norm: what flows between blocks is then a site's output, not a residual sum.
POST_NORM = ("bert", "roberta", "xlm-roberta", "electra", "distilbert")


def blocks(model: Any) -> list[str]:
    """The names of a model's blocks: the innermost list entries that hold an attention.

    Where there is no attention, those that hold more than one matrix. Only names are read, which a quantized network
    has in common with its float model.

    Example:
        >>> import transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=1, image_size=32)
        >>> blocks(transformers.ViTModel(vit))
        ['layers.0', 'layers.1']
    """
    attentions, matrices = Counter[str](), Counter[str]()
    for name, parameter in model.named_parameters():
        parts = name.split(".")[:-1]
        attention = next((i for i, part in enumerate(parts) if "att" in part.lower()), None)
        if attention is not None:
            attentions[_innermost(parts[:attention])] += 1
        matrices[_innermost(parts)] += parameter.ndim > 1
    found = {name for name, count in matrices.items() if count > 1} if not any(attentions) else set(attentions)
    return [name for name, _ in model.named_modules() if name and name in found]


def _innermost(parts: list[str]) -> str:
    """The path of the innermost list entry; empty if there is none."""
    last = max((i for i, part in enumerate(parts) if part.isdigit()), default=-1)
    return ".".join(parts[: last + 1])


def depths(model: nn.Module, names: list[str]) -> dict[str, int]:
    """Of every parameter: 0 for embeddings, 1 … n for the n blocks, n + 1 for what comes after.

    Parameters between blocks (Swin's merging of patches) count with the block before them. A head comes after all
    blocks, even where its class lists it first (XLM-RoBERTa). A reduction of input channels stands first but is new,
    as the head is: it counts with what comes last.
    """
    body = getattr(model, "base_model_prefix", "")
    body = f"{body}." if body and hasattr(model, body) else ""
    found: dict[str, int] = {}
    seen = 0
    numbers = {name: i for i, name in enumerate(names, start=1)}
    last = len(names) + 1
    new = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Reduction))
    for parameter, _ in model.named_parameters():
        if parameter.startswith(new):
            found[parameter] = last
            continue
        block = next((name for name in names if parameter.startswith(name + ".")), None)
        if block is not None:
            seen = numbers[block]
            found[parameter] = seen
        else:
            found[parameter] = last if seen == len(names) or not parameter.startswith(body) else seen
    return found


def check_drop_path(model: Any, rate: float) -> None:
    """Refuse to leave out blocks of a model whose blocks do not add to a residual stream."""
    if rate and model.config.model_type in POST_NORM:
        raise ConfigError(
            f"drop_path={rate}: {model.config.model_type} normalises behind its residual sums, a block cannot be left "
            "out; set drop_path to 0 and use dropout"
        )


@contextmanager
def dropping_paths(model: Any, rate: float) -> Iterator[None]:
    """In training, leave out the whole of a block for some samples; the probability rises with depth up to `rate`.

    What a block adds is scaled by 1/(1 − p) for the samples that keep it, so that its expectation stays. transformers'
    own drop path, where an architecture has one, is per branch; this one is per block and serves every architecture
    whose blocks add to a residual stream. It stands in for their own, which is off meanwhile: a published Swin brings
    0.1 of its own, and both together would be twice what was asked for. So with a rate of 0 nothing is left out.

    Of a quantized network, whose program says where its residual sums are, each branch is left out for itself.
    """
    if isinstance(model, QuantizedNetwork):
        with _at_sums(model, rate):
            yield
        return
    own = {module: module.drop_prob for module in model.modules() if type(module).__name__.endswith("DropPath")}
    try:
        for module in own:
            module.drop_prob = 0.0
        with _left_out(model, rate):
            yield
    finally:
        for module, probability in own.items():
            module.drop_prob = probability


@contextmanager
def _at_sums(qann: QuantizedNetwork, rate: float) -> Iterator[None]:
    check_drop_path(qann, rate)
    whole = qann.program
    try:
        if rate:
            qann.program = with_drop_path(whole, rate)
        yield
    finally:
        qann.program = whole


@contextmanager
def _left_out(model: Any, rate: float) -> Iterator[None]:
    if rate == 0:
        yield
        return
    check_drop_path(model, rate)
    names = blocks(model)
    handles = []
    for i, name in enumerate(names):
        p = rate * i / max(1, len(names) - 1)
        if p > 0:
            handles.append(model.get_submodule(name).register_forward_hook(_hook(p)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(p: float) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if not module.training:
            return output
        result: Tensor = output[0] if isinstance(output, tuple) else output
        before: Tensor = args[0]
        shape = (len(before), *[1] * (before.ndim - 1))
        kept = torch.rand(shape, device=before.device, dtype=torch.float32) >= p
        mixed = before + (result - before) * (kept / (1 - p)).to(result.dtype)
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    return hook
