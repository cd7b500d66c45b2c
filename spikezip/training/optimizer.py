"""AdamW with a learning rate per depth, and scales that stay positive."""

from typing import Any

import torch
from torch import Tensor, nn

from spikezip.quant.site import Site
from spikezip.training.depth import blocks, depths
from spikezip.training.settings import TrainStage
from spikezip.training.sharded import local


def make_optimizer(model: Any, stage: TrainStage) -> torch.optim.AdamW:
    """Weight matrices decay; biases, norms, embeddings of position and scales of sites do not."""
    names = blocks(model)
    depth = depths(model, names)
    scales = {f"{name}.scale" if name else "scale" for name, m in model.named_modules() if isinstance(m, Site)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = stage.peak_learning_rate * stage.layer_decay ** (len(names) + 1 - depth[name])
        rate *= stage.scale_learning_rate if name in scales else 1.0
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


def keep_scales_positive(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Let no step of the optimizer make a site's scale smaller than half of what it was.

    A scale so never reaches zero and never changes its sign, whatever the learning rate; a smaller one takes a few
    steps more. Works with any optimizer and any training loop.

    Example:
        >>> site = Site("site", lo=-4, hi=3)
        >>> optimizer = torch.optim.SGD(site.parameters(), lr=100.0)
        >>> keep_scales_positive(optimizer, site)
        >>> site.scale.grad = torch.ones(1)
        >>> optimizer.step()
        >>> site.scale.item()
        0.5
    """
    sites = [m for m in model.modules() if isinstance(m, Site)]
    if not sites:
        return
    before: list[Tensor] = []

    def scales() -> list[Tensor]:
        return [local(site.scale) for site in sites]  # asked anew: sharding replaces parameters

    def remember(optimizer: Any, args: Any, kwargs: Any) -> None:
        before[:] = torch._foreach_mul(scales(), 0.5)

    def limit(optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            torch._foreach_maximum_(scales(), before)

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(limit)
