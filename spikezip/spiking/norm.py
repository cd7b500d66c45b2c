"""LayerNorm in front of a site: who computes says how, so that neurons may take it whole."""

from typing import Any

from torch import Tensor, nn

from spikezip.execution import current
from spikezip.ops import norm
from spikezip.spiking.unscaled import Late, plain


class SiteNorm(nn.LayerNorm):
    """A LayerNorm over the last dimension whose output a site reads.

    Example:
        >>> import torch
        >>> layer = nn.LayerNorm(2)
        >>> adopt_norm(layer)
        >>> layer(torch.tensor([[1.0, 3.0]])).round(decimals=3).tolist()
        [[-1.0, 1.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return current().norm(self, x)


def adopt_norm(module: Any) -> None:
    """Make an `nn.LayerNorm` one that asks who computes; other modules stay as they are."""
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        module.__class__ = SiteNorm


class Normed(Late):
    """The output of a LayerNorm, not computed yet.

    Example:
        >>> import torch
        >>> late = Normed.of(torch.tensor([[1.0, 3.0]]), nn.LayerNorm(2))
        >>> late.shape, (late + 0).detach().round(decimals=3).tolist()
        (torch.Size([1, 2]), [[-1.0, 1.0]])
    """

    x: Tensor
    layer: nn.LayerNorm
    made: list[Tensor]

    @staticmethod
    def of(x: Tensor, layer: nn.LayerNorm) -> "Normed":
        late: Normed = Tensor._make_wrapper_subclass(Normed, x.shape, dtype=x.dtype, device=x.device)
        late.x, late.layer, late.made = x, layer, []
        return late

    def scaled(self) -> Tensor:
        if not self.made:
            self.made.append(norm.layer_norm(plain(self.x), self.layer.weight, self.layer.bias, self.layer.eps))
        return self.made[0]
