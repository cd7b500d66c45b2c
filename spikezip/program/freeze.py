"""Freeze a network: what depends on weights alone is computed once, and weights of products become integers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spikezip.errors import CalibrationError, ConfigError
from spikezip.ops import grid, rounding
from spikezip.program.analysis import Depends, dependence, reasons
from spikezip.program.functions import float_value
from spikezip.program.nodes import (
    Convolution,
    Function,
    Grid,
    Linear,
    Node,
    Program,
    Site,
    Values,
    Weight,
    map_arguments,
)  # fmt: skip
from spikezip.program.sizes import Size


@dataclass(frozen=True)
class Frozen:
    """A network that no longer changes: a program and its tensors.

    A weight on a grid stands under `KEY.codes` and `KEY.scale`; the scale of a site under `SITE.site_scale`;
    a value that was computed from weights under `NODE.value`.
    """

    program: Program
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if self.program.sites:
            check_dtype(self.dtype)

    def step_size(self, site: str) -> Tensor:
        """The scale s of a site, its neurons' threshold: one number, or one per channel."""
        scale = rounding.representable(self.tensors[scale_key(site)].detach())
        return scale.view(()) if scale.numel() == 1 else scale

    def codes(self, key: str) -> tuple[Tensor, Tensor]:
        """The integers of a weight on a grid, and their scale."""
        return self.tensors[f"{key}.codes"], self.tensors[f"{key}.scale"]

    def moving_weights(self) -> list[Weight]:
        """The weights of products that are made in every step."""
        products = (node for node in self.program.moving if isinstance(node, (Linear, Convolution)))
        return [node for product in products if isinstance(node := self.program[product.weight], Weight)]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.tensors[scale_key(name)].dtype for name in self.program.sites)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device


def scale_key(site: str) -> str:
    """The key of a site's scale in a frozen network; a model may have a `scale` of its own."""
    return f"{site}.site_scale"


@torch.no_grad()
def freeze(program: Program, tensors: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> Frozen:
    """The frozen network of a program with sites, its float tensors, and the scale of every site."""
    _check_scales(program, scales)
    check_finite(program, tensors)
    kept: dict[str, Tensor] = {scale_key(site): scales[site].detach().clone() for site in program.sites}
    known = _constants(program, tensors, next(iter(scales.values())).dtype)
    nodes: list[Node] = []
    for node in program.nodes:
        if isinstance(node, Grid) and node.weight in known:
            nodes.append(_on_grid(node, known, scales, kept))
        elif isinstance(node, Grid) and node.rows:
            raise ConfigError(f"the weight {node.weight!r} depends on the size of the batch: it has no fixed grid")
        elif node.name in known and not isinstance(node, Weight):
            nodes.append(Weight(node.name, node.shape, node.dtype, node.module, key=f"{node.name}.value"))
        else:
            nodes.append(node)
    frozen = replace(program, nodes=tuple(nodes)).without_dead_nodes()
    for node in frozen.nodes:
        if isinstance(node, Weight) and node.bits is None:
            kept[node.key] = known[node.name].detach().clone().contiguous()
    used = {node.key for node in frozen.nodes if isinstance(node, Weight)}
    return Frozen(frozen, {k: v for k, v in kept.items() if _is_used(k, used, frozen)})


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse networks in half precision."""
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"the network is in {dtype}: call .float(); codes need float32 or float64")


def check_finite(program: Program, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite. Buffers may hold infinities, as masks do, but nothing that is no number."""
    for node in program.nodes:
        if not isinstance(node, Weight) or node.bits is not None or not node.dtype.is_floating_point:
            continue
        value = tensors[node.key]
        if not bool((value.isfinite() if node.trained else ~value.isnan()).all()):
            raise ConfigError(f"the weight {node.key!r} holds values that are not finite")


def _is_used(key: str, used: set[str], program: Program) -> bool:
    base = key.rpartition(".")[0]
    return key in used or base in used or key in map(scale_key, program.sites)


def _check_scales(program: Program, scales: Mapping[str, Tensor]) -> None:
    waiting = [name for name in program.sites if name not in scales]
    if waiting:
        raise CalibrationError(
            f"{len(waiting)} of {len(program.sites)} sites have no scale yet, {waiting[0]!r} first: "
            "call spikezip.calibrate(qann, batches) or train the network"
        )
    for name in program.sites:
        wrong = scales[name][~((scales[name] > 0) & scales[name].isfinite())]
        if wrong.numel():
            raise CalibrationError(f"site {name!r} has the scale {float(wrong.flatten()[0])}; it must be positive")


def _constants(program: Program, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The values that depend on weights alone, and on no size that only a batch tells.

    They are computed in the precision that the network was captured in, whatever it was cast to since: a spiking
    network that was cast too has them from before. What would depend on the machine is computed on the CPU.
    """
    depends = dependence(program)
    captured = next(site.dtype for site in program.sites.values())
    found: dict[str, Any] = {}
    device = next(iter(tensors.values())).device

    def cast(x: Any, before: torch.dtype, after: torch.dtype, to: torch.device) -> Any:
        return x.to(to, after if x.dtype == before else x.dtype) if isinstance(x, Tensor) else x

    for node in program.nodes:
        if depends[node.name] is not Depends.WEIGHTS or isinstance(node, (Site, Values, Grid)):
            continue
        if isinstance(node, Weight):
            found[node.name] = tensors[node.key]
        elif all(name in found for name in node.reads) and not _has_symbols(node):
            where = torch.device("cpu") if reasons(program, node) else device
            read = {name: cast(found[name], dtype, captured, where) for name in node.reads}
            found[node.name] = cast(float_value(node, read, {}, where), captured, dtype, device)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _has_symbols(node: Node) -> bool:
    symbolic: list[Size] = []

    def look(x: Any) -> Any:
        if isinstance(x, Size):
            symbolic.append(x)
        return x

    if isinstance(node, Function):
        map_arguments((node.args, node.kwargs), look)
    map_arguments(node.shape, look)
    return bool(symbolic)


def _on_grid(node: Grid, known: Mapping[str, Tensor], scales: Mapping[str, Tensor], kept: dict[str, Tensor]) -> Node:
    """The weight of a grid node as integers; those that are already there serve again."""
    key = node.name
    weight = known[node.weight]
    if not bool(torch.isfinite(weight).all()):  # computed from weights
        raise ConfigError(f"the weight {node.weight!r} holds values that are not finite")
    codes, scale = on_grid(weight, node, None if node.site is None else scales[node.site])
    kept[f"{key}.codes"] = codes.to(torch.int8 if node.bits == 8 else torch.int16)
    kept[f"{key}.scale"] = scale
    return Weight(node.name, node.shape, node.dtype, node.module, key=key, bits=node.bits)


def on_grid(weight: Tensor, node: Grid, channel_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """The integers of a weight, in its shape, and their scale per row, or one for all."""
    if channel_scale is not None and channel_scale.numel() > 1:
        weight = weight * rounding.representable(channel_scale.detach())
    if node.rows:
        return grid.weight_grid(weight, node.bits)
    codes, scale = grid.weight_grid(weight.reshape(1, -1), node.bits)
    return codes.view(weight.shape), scale.view(())
