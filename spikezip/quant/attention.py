"""Attention of a quantized network: in pieces, or on a GPU in one."""

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.execution import current
from spikezip.ops import kernels
from spikezip.quant.products import Learned, backward_dtype, grid_attention, grid_matmul
from spikezip.quant.site import Site
from spikezip.spiking.attention import Attention, masked_softmax


class QuantAttention(Attention):
    """Attention of a quantized network: on the grid in `eval()`, fake quantization in `train()`."""

    q: Site
    k: Site
    v: Site
    p: Site
    o: Site

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
        groups: int = 1,
        dropout: float = 0.0,
        watched: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As of any attention. In training the probabilities are returned where they are `watched`, or made anyway."""
        if self.q.on_grid():
            return super().forward(query, key, value, mask, scaling, groups)
        if self.q.observer is not None:
            return self._observed(query, key, value, mask, scaling, groups)
        if not watched and not dropout and self._in_one_piece(query, key, value, mask):
            return self._learn(query, key, value, mask, scaling), None
        q, k, v = self.q.learn(query), self.k.learn(key), self.v.learn(value)
        if groups > 1:
            k, v = _repeat(k, groups), _repeat(v, groups)
        turned = k[0].transpose(2, 3), k[1].transpose(2, 3)
        scores = grid_matmul(self, "qk", q, turned, self.q, self.k, scaling)
        p = self.p.learn(masked_softmax(scores, mask))
        if dropout:
            mixed = torch.matmul(F.dropout(p[0], dropout), v[0])
        else:
            mixed = grid_matmul(self, "pv", p, v, self.p, self.v, 1.0)
        return self.o(mixed.transpose(1, 2).contiguous()), p[0]

    def _in_one_piece(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
        """Whether kernels do all that lies between q, k, v and the output: under autocast, with 16-bit gradients."""
        if not kernels.on_gpu(query, key, value) or backward_dtype(query) != torch.bfloat16 or current().watches:
            return False
        # Only where it is used: importing the library must not need it.
        from spikezip.ops.sesa import triton_training as training

        sites = (self.q, self.k, self.v, self.p)
        if any(site.by_channel or site.largest > 256 for site in sites) or self.p.lo != 0 or not self.p.is_ready():
            return False
        depths = {"qk": (query.shape[-1], self.q, self.k), "pv": (key.shape[2], self.p, self.v)}
        exact = all(self.accumulator(tag, *sums) == torch.float32 for tag, sums in depths.items())
        fits = training.fits(query.transpose(1, 2), key.transpose(1, 2))
        return exact and fits and query.dtype == torch.float32 and _takes_mask(mask, query)

    def _learn(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
        """The output of a training step, with gradients to the inputs and to all five scales."""
        by_token = (x.transpose(1, 2) for x in (query, key, value))  # as the projections left them: nothing is copied
        q, k, v = (site.learn(x, bare=True) for site, x in zip((self.q, self.k, self.v), by_token, strict=True))
        if self.p.notes_scale:
            self.p.note_scale()
        return self.o(grid_attention(self, q, k, v, mask, scaling))

    def _observed(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, groups: int
    ) -> tuple[Tensor, Tensor]:
        """Calibration: floats all the way, the sites look on."""
        q, k, v = self.q(query), self.k(key), self.v(value)
        k, v = _as_in_transformers(k, groups), _as_in_transformers(v, groups)
        p = self.p(masked_softmax(torch.matmul(q, k.transpose(2, 3)) * scaling, mask))
        return self.o(torch.matmul(p, v).transpose(1, 2).contiguous()), p


def _as_in_transformers(x: Tensor, groups: int) -> Tensor:
    """Keys or values for every head of a group, laid out as transformers does: float products may sum in an order that
    depends on it, and then calibration would not quite see the numbers of the float model.
    """
    if groups == 1:
        return x
    batch, heads, tokens, width = x.shape
    return x[:, :, None].expand(batch, heads, groups, tokens, width).reshape(batch, heads * groups, tokens, width)


def _repeat(kv: Learned, groups: int) -> Learned:
    return kv[0].repeat_interleave(groups, dim=1), kv[1].repeat_interleave(groups, dim=1)


def _takes_mask(mask: Tensor | None, query: Tensor) -> bool:
    """Whether the kernels take a mask: none, or one for all heads, in float32."""
    if mask is None:
        return True
    return mask.ndim == 4 and mask.shape[1] == 1 and mask.shape[0] in (1, len(query)) and mask.dtype == torch.float32
