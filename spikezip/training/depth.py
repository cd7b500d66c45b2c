"""How deep a parameter lies: blocks of a transformer, in the order of execution."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.data.reduction import Reduction
from spikezip.errors import ConfigError
from spikezip.models.plan import ATTENTION, make_plan

# Architectures whose blocks end in a norm: what flows between blocks is then a site's output, not a residual sum.
POST_NORM = ("bert", "roberta", "xlm-roberta", "electra", "distilbert")


def blocks(model: Any) -> list[str]:
    """The names of a model's blocks: the innermost list entries that hold an attention.

    Example:
        >>> import transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=1, image_size=32)
        >>> blocks(transformers.ViTModel(vit))
        ['layers.0', 'layers.1']
    """
    attentions = {site.module for site in make_plan(model).sites if site.where == ATTENTION}
    found: dict[str, None] = {}
    for attention in attentions:
        parts = attention.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        if numbers:
            found[".".join(parts[: numbers[-1] + 1])] = None
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    return sorted(found, key=lambda name: order[name])


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
    """
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
