"""AdamW with a learning rate per depth, and scales that stay positive."""

from typing import Any

import torch
from torch import Tensor, nn

from spikezip.program.tree import locate
from spikezip.training.depth import blocks, depths
from spikezip.training.settings import TrainStage
from spikezip.training.sharded import local

SMALLEST = 2.0**-40  # of a scale: quotients by smaller ones overflow


def make_optimizer(model: Any, stage: TrainStage) -> torch.optim.AdamW:
    """Weight matrices decay; biases, norms, embeddings of position and scales of sites do not."""
    names = blocks(model)
    depth = depths(model, names)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = stage.peak_learning_rate * stage.layer_decay ** (len(names) + 1 - depth[name])
        rate *= stage.scale_learning_rate if is_scale(name) else 1.0
        decays = parameter.ndim > 1 and "position" not in name and "cls_token" not in name
        groups.setdefault((rate, stage.weight_decay if decays else 0.0), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": params, "lr": rate, "weight_decay": decay} for (rate, decay), params in groups.items()],
        lr=stage.peak_learning_rate,
        betas=stage.betas,
        eps=stage.epsilon,
        fused=all(p.dtype.is_floating_point and p.device.type in ("cpu", "cuda") for p in model.parameters()),
    )
    keep_scales_positive(optimizer, model)
    return optimizer


def is_scale(name: str) -> bool:
    """Whether a parameter is the scale of a site."""
    return name.rpartition(".")[2] == "site_scale"


def keep_scales_positive(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Let no step of the optimizer make a site's scale smaller than half of what it was.

    A scale so never changes its sign, whatever the learning rate; a smaller one takes a few steps more. Of scales per
    channel each moves in proportion to its size: AdamW's steps are all of the size of the learning rate, which would
    be little to a large scale and end a small one. Works with any optimizer and any training loop.

    Example:
        >>> from spikezip.models.networks import quantize
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> qann = quantize(model, example=torch.randn(2, 4))
        >>> scale = qann.scale("2.in")
        >>> optimizer = torch.optim.SGD([scale], lr=100.0)
        >>> keep_scales_positive(optimizer, qann)
        >>> scale.grad = torch.ones(1)
        >>> optimizer.step()
        >>> scale.item()
        0.5
    """
    places = [locate(model, name) for name, _ in model.named_parameters() if is_scale(name)]
    if not places:
        return
    before: list[Tensor] = []

    def scales() -> list[Tensor]:
        return [local(getattr(module, leaf)) for module, leaf in places]  # asked anew: sharding replaces parameters

    def remember(optimizer: Any, args: Any, kwargs: Any) -> None:
        before[:] = [scale.detach().clone() for scale in scales()]

    def limit(optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            after = scales()
            several = [i for i, scale in enumerate(after) if scale.numel() > 1]
            if several:
                old, new = [before[i] for i in several], [after[i] for i in several]
                # new = old + (new − old) · old / mean(old)
                relative = torch._foreach_mul(old, [old_i.numel() for old_i in old])
                torch._foreach_div_(relative, torch._foreach_norm(old, 1))
                moved = torch._foreach_sub(new, old)
                torch._foreach_mul_(moved, relative)
                torch._foreach_copy_(new, torch._foreach_add(old, moved))
            torch._foreach_maximum_(after, torch._foreach_mul(before, 0.5))
            torch._foreach_clamp_min_(after, SMALLEST)

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(limit)
