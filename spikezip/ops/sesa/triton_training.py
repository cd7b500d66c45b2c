"""Attention in training as GPU kernels: scores, softmax, the site of the probabilities and the mix, with gradients.

Forward is what the same work in pieces gives, bit for bit: both products are sums of integers, softmax has no order
(`ops/softmax`), and codes are decided by the one rule (`ops/rounding`). Probabilities never reach the memory: backward
makes them anew from the codes of q and k and from two numbers per query, its largest score and the factor of its row.
Gradients are products of 16-bit numbers with float32 sums, as autocast has it; the straight-through rule of LSQ
(`ops/lsq`) stands between the probabilities and the mix, with quotients that are products with `1/s`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.rounding.triton import code_of_unit, unit
from spikezip.ops.sesa.triton_steps import nothing
from spikezip.ops.softmax.triton import exponentials, of_rows, row_factor, sums, whole_sum

MOST_KEYS = 256  # of which a program has all scores at once, forward; with more it makes them three times
MOST_WIDTH = 128


class Form(NamedTuple):
    """How a kernel runs: rows that a program owns, rows of the other side that it meets at once, warps, stages."""

    own: int
    met: int
    num_warps: int
    num_stages: int


FORWARD, LONG_FORWARD = Form(64, 64, 4, 2), Form(64, 64, 4, 2)
OF_QUERIES, OF_KEYS = Form(64, 32, 4, 3), Form(64, 32, 4, 3)


class Scales(NamedTuple):
    """The scales of the sites q, k, v and p, the largest code of p, and the factor of the scores."""

    q: Tensor
    k: Tensor
    v: Tensor
    p: Tensor
    p_hi: int
    scaling: float


class Seen(NamedTuple):
    """What forward leaves for backward: of each query the largest score and the factor of its exponentials."""

    most: Tensor
    factor: Tensor


@triton.jit
def _tile(ptr, first, count, pitch, tile: tl.constexpr, width: tl.constexpr):
    """Rows `first …` of a head, zeros past their end. The pointer points at the head's first row."""
    row = first + tl.arange(0, tile)[:, None]
    return tl.load(ptr + row * pitch + tl.arange(0, width)[None, :], mask=row < count, other=0.0)


@triton.jit
def _store_tile(ptr, x, first, count, pitch, tile: tl.constexpr, width: tl.constexpr):
    row = first + tl.arange(0, tile)[:, None]
    tl.store(ptr + row * pitch + tl.arange(0, width)[None, :], x.to(ptr.dtype.element_ty), mask=row < count)


@triton.jit
def _masked(scores, mask_ptr, query, key, queries, keys, with_mask: tl.constexpr):
    """Scores with the mask added, minus infinity past the last key. `query` and `key` broadcast against each other."""
    if with_mask:
        inside = (query < queries) & (key < keys)
        scores += tl.load(mask_ptr + query * keys + key, mask=inside, other=0.0)
    return tl.where(key < keys, scores, float("-inf"))


@triton.jit
def _scores(
    q, k_ptr, mask_ptr, first_key, query, factor, queries, keys, pitch,
    with_mask: tl.constexpr, met: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Scores of a tile of keys."""
    k = _tile(k_ptr, first_key, keys, pitch, met, width)
    key = (first_key + tl.arange(0, met))[None, :]
    return _masked(tl.dot(q, k.T, out_dtype=tl.float32) * factor, mask_ptr, query, key, queries, keys, with_mask)


@triton.jit
def _codes_of(p, scale, hi):
    """The codes of probabilities in the powers of `unit`; NaN stays NaN."""
    return tl.where(p == p, code_of_unit(p, scale, 0.0, hi), p)


@triton.jit
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, u_ptr, most_ptr, factor_ptr, p_scale_ptr, score_factor_ptr, mix_factor_ptr,
    heads, queries, keys, masks, p_hi,
    with_mask: tl.constexpr, tiles: tl.constexpr, own: tl.constexpr, met: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    sample, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    first_query, pitch = tl.program_id(0) * own, heads * width
    q_ptr += sample * queries * pitch + head * width
    u_ptr += sample * queries * pitch + head * width
    k_ptr += sample * keys * pitch + head * width
    v_ptr += sample * keys * pitch + head * width
    mask_ptr += sample % masks * queries * keys
    p_scale, first, second = unit(tl.load(p_scale_ptr))
    score_factor = tl.load(score_factor_ptr)
    query = first_query + tl.arange(0, own)[:, None]
    q = _tile(q_ptr, first_query, queries, pitch, own, width)
    x = nothing()
    most = tl.full((own, 1), float("-inf"), dtype=tl.float32)
    for j in tl.static_range(tiles):
        scores = _scores(q, k_ptr, mask_ptr, j * met, query, score_factor, queries, keys, pitch, with_mask, met, width)
        x += (scores,)
        most = tl.maximum(most, tl.max(x[j], axis=1)[:, None])
    shift, lowest, bits = of_rows(most)
    low, nearly = tl.zeros((own, 1), dtype=tl.int32), tl.zeros((own, 1), dtype=tl.float32)
    e = nothing()
    for j in tl.static_range(tiles):
        e += (exponentials(x[j], shift, lowest, bits),)
        some_low, some_nearly = sums(e[j])
        low += some_low
        nearly += some_nearly
    factor = row_factor(whole_sum(low, nearly), most)
    powered = factor * first * second  # rounding commutes with powers of two
    mixed = tl.zeros((own, width), dtype=tl.float32)
    for j in tl.static_range(tiles):
        code = _codes_of(e[j] * powered, p_scale, p_hi)
        v = _tile(v_ptr, j * met, keys, pitch, met, width)
        mixed = tl.dot(code.to(v.dtype), v, mixed, out_dtype=tl.float32)
    _store_tile(u_ptr, mixed * tl.load(mix_factor_ptr), first_query, queries, pitch, own, width)
    at = tl.program_id(1).to(tl.int64) * queries + query
    tl.store(most_ptr + at, most, mask=query < queries)
    tl.store(factor_ptr + at, factor, mask=query < queries)


@triton.jit
def _long_forward_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, u_ptr, most_ptr, factor_ptr, p_scale_ptr, score_factor_ptr, mix_factor_ptr,
    heads, queries, keys, masks, p_hi,
    with_mask: tl.constexpr, own: tl.constexpr, met: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The same for any number of keys: three times over them, for the largest score, the sum, and the mix."""
    sample, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    first_query, pitch = tl.program_id(0) * own, heads * width
    q_ptr += sample * queries * pitch + head * width
    u_ptr += sample * queries * pitch + head * width
    k_ptr += sample * keys * pitch + head * width
    v_ptr += sample * keys * pitch + head * width
    mask_ptr += sample % masks * queries * keys
    p_scale, first, second = unit(tl.load(p_scale_ptr))
    score_factor = tl.load(score_factor_ptr)
    query = first_query + tl.arange(0, own)[:, None]
    q = _tile(q_ptr, first_query, queries, pitch, own, width)
    most = tl.full((own, 1), float("-inf"), dtype=tl.float32)
    for first_key in range(0, keys, met):
        x = _scores(q, k_ptr, mask_ptr, first_key, query, score_factor, queries, keys, pitch, with_mask, met, width)
        most = tl.maximum(most, tl.max(x, axis=1)[:, None])
    shift, lowest, bits = of_rows(most)
    total = tl.zeros((own, 1), dtype=tl.float64)
    for first_key in range(0, keys, met):
        x = _scores(q, k_ptr, mask_ptr, first_key, query, score_factor, queries, keys, pitch, with_mask, met, width)
        low, nearly = sums(exponentials(x, shift, lowest, bits))
        total += whole_sum(low, nearly)
    factor = row_factor(total, most)
    powered = factor * first * second
    mixed = tl.zeros((own, width), dtype=tl.float32)
    for first_key in range(0, keys, met):
        x = _scores(q, k_ptr, mask_ptr, first_key, query, score_factor, queries, keys, pitch, with_mask, met, width)
        code = _codes_of(exponentials(x, shift, lowest, bits) * powered, p_scale, p_hi)
        v = _tile(v_ptr, first_key, keys, pitch, met, width)
        mixed = tl.dot(code.to(v.dtype), v, mixed, out_dtype=tl.float32)
    _store_tile(u_ptr, mixed * tl.load(mix_factor_ptr), first_query, queries, pitch, own, width)
    at = tl.program_id(1).to(tl.int64) * queries + query
    tl.store(most_ptr + at, most, mask=query < queries)
    tl.store(factor_ptr + at, factor, mask=query < queries)


@triton.jit
def _probabilities(scores, most, factor):
    """Probabilities for gradients, which need not be the same to the last bit: with the exponential of the GPU."""
    return tl.exp2((scores - most) * 1.4426950408889634) * (factor * 4294963200.0)


@triton.jit
def _again(
    q, grad, k_ptr, v_ptr, mask_ptr, first_key, query, most, factor, score_factor, queries, keys, pitch, limit,
    with_mask: tl.constexpr, met: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Probabilities of a tile of keys once more; the gradient for their values, and what of it passes their site."""
    scores = _scores(q, k_ptr, mask_ptr, first_key, query, score_factor, queries, keys, pitch, with_mask, met, width)
    p = _probabilities(scores, most, factor)
    v = _tile(v_ptr, first_key, keys, pitch, met, width)
    weighted = tl.dot(grad, v.T, out_dtype=tl.float32)
    return p, weighted, tl.where(p <= limit, weighted, 0.0)


@triton.jit
def _query_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, grad_ptr, most_ptr, factor_ptr, dot_ptr, grad_q_ptr, partial_ptr,
    p_scale_ptr, score_factor_ptr, v_scale_ptr, q_factor_ptr, heads, queries, keys, masks, p_hi,
    with_mask: tl.constexpr, own: tl.constexpr, met: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, and of the scale of p in parts."""
    sample, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    first_query, pitch = tl.program_id(0) * own, heads * width
    here = sample * queries * pitch + head * width
    k_ptr += sample * keys * pitch + head * width
    v_ptr += sample * keys * pitch + head * width
    mask_ptr += sample % masks * queries * keys
    p_scale = tl.load(p_scale_ptr)
    inverse, limit = 1.0 / p_scale, p_hi * p_scale
    score_factor, v_scale = tl.load(score_factor_ptr), tl.load(v_scale_ptr)
    query = first_query + tl.arange(0, own)[:, None]
    q = _tile(q_ptr + here, first_query, queries, pitch, own, width)
    grad = (_tile(grad_ptr + here, first_query, queries, pitch, own, width) * v_scale).to(q.dtype)
    at = tl.program_id(1).to(tl.int64) * queries + query
    most = tl.load(most_ptr + at, mask=query < queries, other=0.0)
    factor = tl.load(factor_ptr + at, mask=query < queries, other=0.0)
    dot = tl.zeros((own, 1), dtype=tl.float32)
    part = tl.zeros((own,), dtype=tl.float32)
    for first_key in range(0, keys, met):  # once for what a row needs as a whole, then for the gradient
        p, weighted, passed = _again(
            q, grad, k_ptr, v_ptr, mask_ptr, first_key, query, most, factor, score_factor, queries, keys, pitch, limit,
            with_mask, met, width,
        )  # fmt: skip
        dot += tl.sum(passed * p, axis=1)[:, None]
        quotient = p * inverse
        slope = tl.where(p <= limit, tl.floor(quotient + 0.5) - quotient, p_hi)
        part += tl.sum(weighted * slope, axis=1)
    grad_q = tl.zeros((own, width), dtype=tl.float32)
    for first_key in range(0, keys, met):
        p, weighted, passed = _again(
            q, grad, k_ptr, v_ptr, mask_ptr, first_key, query, most, factor, score_factor, queries, keys, pitch, limit,
            with_mask, met, width,
        )  # fmt: skip
        k = _tile(k_ptr, first_key, keys, pitch, met, width)
        grad_q = tl.dot((p * (passed - dot)).to(k.dtype), k, grad_q, out_dtype=tl.float32)
    _store_tile(grad_q_ptr + here, grad_q * tl.load(q_factor_ptr), first_query, queries, pitch, own, width)
    tl.store(dot_ptr + at, dot, mask=query < queries)
    tl.store(partial_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(part, axis=0))


@triton.jit
def _key_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, grad_ptr, most_ptr, factor_ptr, dot_ptr, grad_k_ptr, grad_v_ptr,
    p_scale_ptr, score_factor_ptr, v_scale_ptr, k_factor_ptr, heads, queries, keys, masks, p_hi,
    with_mask: tl.constexpr, own: tl.constexpr, met: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys and the values. Scores stand here with a row for each key."""
    sample, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    first_key, pitch = tl.program_id(0) * own, heads * width
    q_ptr += sample * queries * pitch + head * width
    grad_ptr += sample * queries * pitch + head * width
    here = sample * keys * pitch + head * width
    mask_ptr += sample % masks * queries * keys
    p_scale = tl.load(p_scale_ptr)
    inverse, limit = 1.0 / p_scale, p_hi * p_scale
    score_factor, v_scale = tl.load(score_factor_ptr), tl.load(v_scale_ptr)
    key = (first_key + tl.arange(0, own))[:, None]
    k = _tile(k_ptr + here, first_key, keys, pitch, own, width)
    v = _tile(v_ptr + here, first_key, keys, pitch, own, width)
    grad_k = tl.zeros((own, width), dtype=tl.float32)
    grad_v = tl.zeros((own, width), dtype=tl.float32)
    for first_query in range(0, queries, met):
        query = (first_query + tl.arange(0, met))[None, :]
        at = tl.program_id(1).to(tl.int64) * queries + query
        most = tl.load(most_ptr + at, mask=query < queries, other=0.0)
        factor = tl.load(factor_ptr + at, mask=query < queries, other=0.0)
        dot = tl.load(dot_ptr + at, mask=query < queries, other=0.0)
        q = _tile(q_ptr, first_query, queries, pitch, met, width)
        grad = _tile(grad_ptr, first_query, queries, pitch, met, width).to(q.dtype)
        scores = tl.dot(k, q.T, out_dtype=tl.float32) * score_factor
        p = _probabilities(_masked(scores, mask_ptr, query, key, queries, keys, with_mask), most, factor)
        code = tl.minimum(tl.floor(p * inverse + 0.5), p_hi)
        grad_v = tl.dot(code.to(q.dtype), grad, grad_v, out_dtype=tl.float32)
        weighted = tl.dot(v, grad.T, out_dtype=tl.float32) * v_scale
        grad_p = tl.where(p <= limit, weighted, 0.0) - dot
        grad_k = tl.dot((p * grad_p).to(q.dtype), q, grad_k, out_dtype=tl.float32)
    _store_tile(grad_k_ptr + here, grad_k * tl.load(k_factor_ptr), first_key, keys, pitch, own, width)
    _store_tile(grad_v_ptr + here, grad_v * p_scale, first_key, keys, pitch, own, width)


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether the kernels take codes `[B, tokens, heads, width]` of these shapes.

    Example:
        >>> fits(torch.zeros(2, 197, 6, 64), torch.zeros(2, 197, 6, 64))
        True
        >>> fits(torch.zeros(1, 9, 1, 9), torch.zeros(1, 9, 1, 9))
        False
    """
    width = q.shape[-1]
    power = width & (width - 1) == 0
    return q.shape[2] == k.shape[2] and 16 <= width <= MOST_WIDTH and power


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scales: Scales) -> tuple[Tensor, Seen]:
    """The mix of values `[B, queries, heads, width]`, in float32, before the site of the output.

    Codes come as 16-bit floats, `[B, tokens, heads, width]`; a mask as `[samples or 1, queries, keys]` in float32.
    """
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, queries, heads, width = q.shape
    u = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    seen = Seen(*torch.empty(2, batch * heads, queries, device=q.device))
    keys = k.shape[1]
    form, at_once = (FORWARD, {"tiles": triton.cdiv(keys, FORWARD.met)}) if keys <= MOST_KEYS else (LONG_FORWARD, {})
    kernel = _forward_kernel if at_once else _long_forward_kernel
    with torch.cuda.device_of(q):
        kernel[(triton.cdiv(queries, form.own), batch * heads)](
            q, k, v, u if mask is None else mask.contiguous(), u, *seen,
            scales.p, scales.q * scales.k * scales.scaling, scales.p * scales.v,
            heads, queries, keys, 1 if mask is None else len(mask), float(scales.p_hi),
            with_mask=mask is not None, width=width, enable_fp_fusion=False, **at_once,
            **form._asdict(),
        )  # fmt: skip
    return u, seen


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scales: Scales, seen: Seen
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients for the values of q, k and v, in the dtype of their codes, and `Σ g · ∂v/∂s` for the scale of p."""
    q, k, v, grad = q.contiguous(), k.contiguous(), v.contiguous(), grad.contiguous()
    batch, queries, heads, width = q.shape
    keys, tiles = k.shape[1], triton.cdiv(queries, OF_QUERIES.own)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dot = torch.empty_like(seen.most)
    partial = torch.empty(batch * heads * tiles, device=q.device)
    inputs = (q, k, v, grad if mask is None else mask.contiguous(), grad, *seen, dot)
    sizes = (heads, queries, keys, 1 if mask is None else len(mask), float(scales.p_hi))
    score_factor = scales.q * scales.k * scales.scaling
    fixed = {"with_mask": mask is not None, "width": width}
    with torch.cuda.device_of(q):
        _query_kernel[(tiles, batch * heads)](
            *inputs, grad_q, partial, scales.p, score_factor, scales.v, scales.k * scales.scaling, *sizes,
            **fixed, **OF_QUERIES._asdict(),
        )  # fmt: skip
        _key_kernel[(triton.cdiv(keys, OF_KEYS.own), batch * heads)](
            *inputs, grad_k, grad_v, scales.p, score_factor, scales.v, scales.q * scales.scaling, *sizes,
            **fixed, **OF_KEYS._asdict(),
        )  # fmt: skip
    return grad_q, grad_k, grad_v, partial.sum(dtype=torch.float64)
