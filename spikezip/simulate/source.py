"""What a site reads: its input, or the sums that this was made of by a factor, a bias and views.

A compiled layer of neurons reads the integer sums of a product as they are, wherever they lie. So nobody needs to scale
them, to add a bias, or to bring them in order.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikezip.ops.event import Source
from spikezip.simulate.recorder import Recorder

_aten = torch.ops.aten
VIEWS = frozenset(
    (
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.transpose.int,
        _aten.t.default,
        _aten.permute.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.slice.Tensor,
        _aten.select.int,
        _aten.detach.default,
        _aten.alias.default,
    )
)


class Way(NamedTuple):
    """What was done to some sums, in this order: factor, bias, views."""

    factor: Tensor | None = None
    bias: Tensor | None = None
    views: tuple[Any, ...] = ()

    def before(self, function: Any, args: list[Any], kwargs: dict[str, Any], given: Tensor) -> "Way | None":
        """The way with one more operator at its start; None if that does not fit there."""
        if function in (_aten.add.Tensor, _aten.add_.Tensor) and not kwargs and _is_number(args[1], given):
            return self._replace(bias=args[1]) if self.factor is None and self.bias is None else None
        if function is _aten.mul.Tensor and _is_number(args[1], given):
            return self._replace(factor=args[1]) if self.factor is None else None
        if function is _aten._to_copy.default:
            return self if given.dtype == torch.int32 and kwargs.get("dtype") == torch.float32 else None
        if self.factor is None and self.bias is None:
            if function in VIEWS:
                return self._replace(views=((function, args[1:], kwargs), *self.views))
            if function is _aten.clone.default:
                return self
        return None


def _is_number(x: Any, given: Tensor) -> bool:
    """Whether it is one number for all that is given, or one for each channel."""
    is_flat = isinstance(x, Tensor) and x.dtype == torch.float32 and x.ndim <= 1
    return is_flat and given.ndim > 0 and x.numel() in (1, given.shape[-1])


def source_of(u: Tensor, recorder: Recorder) -> Source:
    """Where a tensor comes from, as far back as it can be followed; call it with dispatch to the recorder off."""
    sums, way = u, Way()
    while True:
        node = recorder.maker.get(recorder.cell_of.get(id(sums), -1))
        if node is None or len(node.reads) != 1 or node.steps[0][3][0][:2] != (0, None):
            break
        given, longer = recorder.cells[node.reads[0]], way
        for function, args, kwargs, _ in reversed(node.steps):
            found = longer.before(function, args, kwargs, given)
            if found is None:
                return _seen(u, sums, way)
            longer = found
        sums, way = given, longer
    return _seen(u, sums, way)


def _seen(u: Tensor, sums: Tensor, way: Way) -> Source:
    if sums.dtype not in (torch.int32, torch.float32) or not sums.is_contiguous():
        return Source.plain(u)
    read = sums
    try:
        for function, args, kwargs in way.views:
            read = function(read, *args, **kwargs)
    except RuntimeError:  # a view of what had been copied in between
        return Source.plain(u)
    return Source(sums, read, way.factor, way.bias)
