"""What follows an integer product on the CPU, as compiled loops: `total · scale + bias`, and `x + codes · scale`."""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share


@jit
def _rows(total, scale, bias, first, last, out):
    # Nothing lets the compiler fuse the product with the sum: each is rounded, as torch does it.
    for row in range(first, last):
        sums, results = total[row], out[row]
        for i in range(sums.size):
            results[i] = np.float32(sums[i]) * scale[i] + bias[i]


def scale_bias(total: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """As `choose.scale_bias`, for contiguous int32 sums below 2^24 on the CPU, with float32 scale and bias."""
    rows = total.view(-1, total.shape[-1])
    out = torch.empty(rows.shape, dtype=torch.float32)
    # Adding −0 changes nothing, not even the sign of a zero.
    added = torch.full_like(scale, -0.0) if bias is None else bias
    given = (rows.numpy(), scale.contiguous().numpy(), added.contiguous().numpy())
    result = out.numpy()
    share(lambda first, last: _rows(*given, first, last, result), len(rows), rows.numel())
    return out.view(total.shape)


@jit
def _sums(x, codes, scale, first, last, out):
    for i in range(first, last):
        out[i] = x[i] + np.float32(codes[i]) * scale


def add_scaled(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """As `choose.add_scaled`, for contiguous float32 values and int8 codes on the CPU."""
    out = torch.empty_like(x)
    given = (x.view(-1).numpy(), codes.view(-1).numpy(), np.float32(float(scale)))
    result = out.view(-1).numpy()
    share(lambda first, last: _sums(*given, first, last, result), x.numel(), x.numel())
    return out
