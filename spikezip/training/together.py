"""What several processes that train one network must agree on."""

from typing import Any

import torch
from torch import nn

from spikezip.errors import ConfigError
from spikezip.quant.network import QuantizedNetwork


def any_process(flag: bool, device: Any) -> bool:
    """Whether any process says so. All processes must ask.

    Example:
        >>> any_process(True, "cpu")
        True
    """
    if not _several():
        return flag
    shared = torch.tensor(float(flag), device=device)
    torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
    return bool(shared)


def first_said(text: str | None) -> str | None:
    """What the first process that has something to say, says. All processes must ask.

    Example:
        >>> first_said("a cause")
        'a cause'
    """
    return next((one for one in everybodys(text) if one is not None), None)


def everybodys(value: Any) -> list[Any]:
    """What every process has to say, the first one's first. All processes must ask.

    Example:
        >>> everybodys(3)
        [3]
    """
    if not _several():
        return [value]
    said: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(said, value)
    return said


def _several() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def require_scales(model: nn.Module) -> None:
    """A site without a scale would take one from its first batch, another one in every process.

    Example:
        >>> from spikezip.models.networks import quantize
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> require_scales(quantize(model, example=torch.randn(2, 4)))
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: site '2.in' has no scale yet, and several processes cannot set one: add a ...
    """
    waiting = model.waiting() if isinstance(model, QuantizedNetwork) else []
    if waiting:
        raise ConfigError(
            f"site {waiting[0]!r} has no scale yet, and several processes cannot set one: "
            "add a quantize stage, or calibrate the network first"
        )


def find_unused(model: Any, inputs: dict[str, Any]) -> list[str]:
    """The trainable parameters that the logits do not depend on, such as DINOv2's mask token.

    Gradients of several processes are averaged as they come; for a parameter that gets none the others would wait.

    Example:
        >>> import transformers
        >>> tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 32}
        >>> model = transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**tiny, patch_size=16))
        >>> find_unused(model, {"pixel_values": torch.zeros(1, 3, 32, 32)})
        ['dinov2.embeddings.mask_token']
    """
    was_training = model.training
    devices = [torch.cuda.current_device()] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        logits = model.train()(**inputs).logits
    model.train(was_training)
    seen: set[Any] = set()
    used: set[int] = set()
    waiting = [logits.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # where the gradient of a parameter ends up
            used.add(id(node.variable))
        waiting += [before for before, _ in node.next_functions]
    return [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in used]
