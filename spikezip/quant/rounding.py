"""Round weights so that the errors of a row cancel: what one weight loses, those after it make good.

A row of integer weights is chosen weight by weight. The rest of the row, which is not rounded yet, moves to where the
product with the codes that were seen changes least (GPTQ, Frantar et al., 2023). Rows do not depend on one another, and
one that did not get better is rounded to the nearest.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from spikezip.ops import grid, rounding
from spikezip.program.analysis import source
from spikezip.program.nodes import Grid, Linear, Site, Weight
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.samples import Sample

_BLOCK = 64  # columns whose errors reach the rest together
_DAMPING = 0.01  # of the mean square of a code, added to all: few rows are seen


@torch.no_grad()
def round_weights(qann: QuantizedNetwork, samples: Mapping[str, Sample]) -> None:
    """Move the weights of a calibrated network onto their grid, in place, given what its sites read.

    Weights that something else reads too, such as an embedding, stay as they are: their grid rounds them.

    Example:
        >>> import spikezip
        >>> x = torch.randn(64, 8)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        >>> qann = spikezip.calibrate(spikezip.quantize(model, example=x), x, "quick")
        >>> u = torch.nn.functional.gelu(model[0](x)).detach()
        >>> before = qann.frozen().tensors["2.weight.grid.codes"]
        >>> round_weights(qann, {"2.in": Sample(u, torch.ones_like(u), torch.ones(64))})
        >>> (before - qann.frozen().tensors["2.weight.grid.codes"]).abs().max() < 3
        tensor(True)
    """
    program, tensors = qann.program, qann.tensors()
    for node in program.nodes:
        weight = program[node.weight] if isinstance(node, Grid) and node.rows else None
        if not isinstance(node, Grid) or not isinstance(weight, Weight) or len(program.readers[weight.name]) > 1:
            continue
        readers = program.readers[node.name]
        sites = {source(program, reader.x) for reader in readers if isinstance(reader, Linear)}
        site = sites.pop() if len(sites) == 1 else None
        matrix = tensors[weight.key]
        if not isinstance(site, Site) or site.name not in samples or site.shape[-1] != matrix.shape[-1]:
            continue
        step = rounding.representable(qann.scale(site.name).detach())
        channels = step if node.site is not None and step.numel() > 1 else torch.ones_like(step[:1])
        codes, row_scale = grid.weight_grid(matrix.detach() * channels, node.bits)
        seen, importance = _codes(samples[site.name], site, step)
        exact = (matrix.detach() * channels / row_scale[:, None]).double()
        found = _rounded(exact, codes.double(), seen, importance, grid.reference.LARGEST_WEIGHT[node.bits])
        matrix.copy_((found.to(matrix.dtype) * row_scale[:, None]) / channels)


def _codes(sample: Sample, site: Site, step: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of codes, and how much an error of a row counts: as much as the answer depends on what the site reads."""
    codes = (sample.u / step).add_(0.5).floor_().clamp_(site.lo, site.hi)
    gradient = sample.gradient.square().sum(1)
    importance = sample.weight * (gradient if bool((gradient > 0).any()) else 1.0)
    return codes.double(), importance.double()


def _rounded(exact: Tensor, nearest: Tensor, codes: Tensor, importance: Tensor, top: int) -> Tensor:
    """Integers for weights in units of their grid, row by row. The largest of a row stays, and with it the scale."""
    hessian = codes.mT @ (codes * importance[:, None])
    size = hessian.diagonal().mean()
    if not bool(size > 0):
        return nearest
    hessian.diagonal().add_(_DAMPING * size)
    order = hessian.diagonal().argsort(descending=True)
    back = order.argsort()
    turned = hessian[order][:, order]
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(turned)), upper=True)
    rest, found = exact[:, order].clone(), torch.empty_like(exact)
    fixed = (nearest.abs() == top)[:, order]
    for first in range(0, len(order), _BLOCK):
        last = min(first + _BLOCK, len(order))
        errors = torch.empty_like(rest[:, first:last])
        for i in range(first, last):
            value = (rest[:, i] + 0.5).floor().clamp(-top, top)
            found[:, i] = torch.where(fixed[:, i], nearest[:, order[i]], value)
            errors[:, i - first] = (rest[:, i] - found[:, i]) / upper[i, i]
            rest[:, i:last] -= errors[:, i - first, None] * upper[i, i:last]
        rest[:, last:] -= errors @ upper[first:last, last:]
    found = found[:, back]
    better = _error(found - exact, hessian) < _error(nearest - exact, hessian)
    return torch.where(better[:, None], found, nearest)


def _error(difference: Tensor, hessian: Tensor) -> Tensor:
    return ((difference @ hessian) * difference).sum(1)
