"""An integer product whose scale and bias are still to come: a tensor that a neuron reads without that pass.

Between a product and the neurons behind it a model only views, splits into heads, or transposes. `Unscaled` follows
such moves; everything else that anybody does with it happens to the scaled tensor, made then and kept.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spikezip.ops import grid

_aten = torch.ops.aten
_MOVES = frozenset(
    (
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.detach.default,
        _aten.alias.default,
    )
)


class Unscaled(Tensor):
    """`total · scale + bias` of integer sums `[…, channels]`, not computed yet; looks like the tensor it stands for.

    Example:
        >>> total = torch.tensor([[2, 4]], dtype=torch.int32)
        >>> late = Unscaled.of(total, torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.0]))
        >>> late.shape, late.view(2, 1).moved.tolist()
        (torch.Size([1, 2]), [[2], [4]])
        >>> late + 0
        tensor([[2., 1.]])
    """

    total: Tensor
    scale: Tensor
    bias: Tensor | None
    moved: Tensor  # the total as it has been viewed and transposed since
    moves: tuple[Callable[[Tensor], Tensor], ...]
    made: dict[str, Tensor]  # the scaled tensor, once somebody needed it: shared by all views

    @staticmethod
    def of(total: Tensor, scale: Tensor, bias: Tensor | None) -> "Unscaled":
        return _make(total, scale, bias, total, (), {})

    def scaled(self) -> Tensor:
        """The tensor that this stands for."""
        if "whole" not in self.made:
            self.made["whole"] = grid.scale_bias(self.total, self.scale, self.bias)
        result = self.made["whole"]
        for move in self.moves:
            result = move(result)
        return result

    # Only operators are of interest here, not torch's functions around them; torch offers this name for that, and types
    # neither it nor the dispatch below as they are used.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _MOVES:
            late, rest = args[0], args[1:]

            def move(x: Tensor) -> Tensor:
                result: Tensor = func(x, *rest, **(kwargs or {}))
                return result

            return _make(late.total, late.scale, late.bias, move(late.moved), (*late.moves, move), late.made)
        return func(*_scaled(args), **_scaled(kwargs or {}))


def plain(x: Tensor) -> Tensor:
    """The tensor itself: scaled, if that was still to come.

    Example:
        >>> plain(Unscaled.of(torch.tensor([[2, 4]], dtype=torch.int32), torch.tensor([0.5, 0.25]), None))
        tensor([[1., 1.]])
    """
    return x.scaled() if isinstance(x, Unscaled) else x


def _make(total: Tensor, scale: Tensor, bias: Tensor | None, moved: Tensor, moves: Any, made: Any) -> Unscaled:
    late: Unscaled = Tensor._make_wrapper_subclass(
        Unscaled, moved.shape, strides=moved.stride(), dtype=scale.dtype, device=total.device
    )
    late.total, late.scale, late.bias, late.moved, late.moves, late.made = total, scale, bias, moved, moves, made
    return late


def _scaled(x: Any) -> Any:
    if isinstance(x, Unscaled):
        return x.scaled()
    if isinstance(x, dict):
        return {key: _scaled(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_scaled(value) for value in x)
    return x
