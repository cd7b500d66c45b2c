"""What a network answered, as a few hashes that two machines can compare.

    of a sample's inputs: SHA-256 of each by name
    of a site:            SHA-256 of the sample's inputs' hash, then its codes there, in 8 bits if they fit, else in 16
    of the outputs:       SHA-256 of the sample's inputs' hash, then all that the network returns for the sample

Numbers are little endian, and tensors in C order, with the dimension of the samples first. Elements that belong to
padded tokens are left out where an attention mask says which tokens are padding; elsewhere padding is data.

The hash over many samples is the sum of theirs as whole numbers, modulo 2²⁵⁶. So it depends neither on how samples were
cut into batches nor on their order, and several processes can add up theirs. This finds differences that happen; it is
no proof against forgery.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.measure.plain import Plain
from spikezip.program import file as program_file
from spikezip.program.batch import sample_count, sizes_of
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Input, Node, Program, Ref, Shape, Site, map_arguments
from spikezip.program.sizes import Size, bind, times

MASKS = ("attention_mask", "decoder_attention_mask")
OUTPUTS, DATA = "outputs", "data"


@dataclass(frozen=True)
class Hashes(Plain):
    """Hashes over some samples, as hexadecimal text. Those over more samples are their sum.

    Attributes:
        batch_size: samples of the largest batch.
        sites: site → hash of its codes, in the order of execution.
        data: hash of the inputs, without labels.

    Example:
        >>> one, two = Hashes(2, 2, {"a": "f" * 64}), Hashes(1, 1, {"a": f"{3:064x}"})
        >>> (one + two).samples, (one + two).sites["a"][-4:], one + two == two + one
        (3, '0002', True)
    """

    samples: int = 0
    batch_size: int = 0
    sites: dict[str, str] = field(default_factory=dict)
    outputs: str = ""
    data: str = ""

    def __add__(self, other: "Hashes") -> "Hashes":
        names = dict.fromkeys((*self.sites, *other.sites))
        return Hashes(
            samples=self.samples + other.samples,
            batch_size=max(self.batch_size, other.batch_size),
            sites={name: _sum(self.sites.get(name, ""), other.sites.get(name, "")) for name in names},
            outputs=_sum(self.outputs, other.outputs),
            data=_sum(self.data, other.data),
        )


def hash_batch(program: Program, inputs: Mapping[str, Any], output: Any, codes: Mapping[str, Tensor]) -> Hashes:
    """The hashes of one batch, from its inputs and from what `quantized` returns for them.

    Example:
        >>> from spikezip.engines import quantized
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> x = torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1]])
        >>> network = calibrate(quantize(model, example=x), x).frozen()
        >>> def hashed(x):
        ...     return hash_batch(network.program, {"input": x}, *quantized(network, {"input": x}))
        >>> whole, parts = hashed(x), hashed(x[1:]) + hashed(x[:1])
        >>> len(whole.sites), whole.sites == parts.sites, whole.data == parts.data, whole.outputs == parts.outputs
        (1, True, True, True)
    """
    batch = _Batch(program, inputs)
    arrays = {name: _codes(x, program.sites[name]) for name, x in codes.items()}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # SHA-256 leaves Python to the others while it works
        sites = dict(zip(arrays, pool.map(lambda name: batch.hash([(name, arrays[name])]), arrays), strict=True))
    return Hashes(
        samples=batch.samples,
        batch_size=batch.samples,
        sites=sites,
        outputs=batch.hash([(name, _numbers(x)) for name, x in _returned(program, output)]),
        data=_total(batch.salts),
    )


def hash_data(program: Program, batches: Iterable[Mapping[str, Any]]) -> str:
    """The hash of inputs alone, which takes no run of a network.

    Example:
        >>> from spikezip.program.capture import capture
        >>> program, x = capture(torch.nn.Linear(4, 3), torch.randn(2, 4)).program, torch.randn(5, 4)
        >>> hash_data(program, [{"input": x}]) == hash_data(program, [{"input": x[:2]}, {"input": x[2:]}])
        True
    """
    return _total(salt for inputs in batches for salt in _Batch(program, inputs).salts)


def hash_network(network: Frozen) -> str:
    """SHA-256 of a frozen network: of its program as text, and of every tensor by name.

    Example:
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> qann = calibrate(quantize(model, example=torch.ones(2, 4)), torch.ones(2, 4))
        >>> before = hash_network(qann.frozen())
        >>> _ = qann.get_parameter("2.bias").data.add_(1)
        >>> before == hash_network(qann.frozen())
        False
    """
    digest = hashlib.sha256(program_file.write(network.program).encode())
    for name, tensor in sorted(network.tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hashed_by_batch(program: Program) -> list[str]:
    """What is hashed a batch at a time: its hash holds only for batches that are cut and padded in the same way.

    These are the sites, and "outputs" and "data", of which it is not known where samples or tokens lie in them.

    Example:
        >>> from spikezip.program.capture import capture
        >>> hashed_by_batch(capture(torch.nn.Linear(4, 3), torch.randn(2, 4)).program)
        []
    """
    places = program.derived(_places)
    found = [name for name in program.sites if places[name] is None]
    found += [OUTPUTS] if any(places[name] is None for name in program.returned) else []
    return found + ([DATA] if any(places[node.name] is None for node in program.inputs) else [])


# --- one batch


class _Batch:
    """A batch of which values are to be hashed.

    `salts` are the hashes of its samples' inputs, or one of all inputs if it is not known where samples lie. A code is
    hashed together with the inputs that it answers, so that two samples cannot exchange their codes unseen.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        self.places, self.sizes = program.derived(_places), sizes_of(program, inputs)
        self.samples = sample_count(program, inputs)
        self.real = {tokens: _real(inputs[name]) for tokens, name in program.derived(_masks).items()}
        values = [(node.name, _numbers(inputs[node.name])) for node in program.inputs]
        whole = self._is_whole(values)
        digests = [hashlib.sha256() for _ in range(1 if whole else self.samples)]
        for name, x in values:
            for digest, pieces in zip(digests, [[x]] if whole else self._cut(name, x), strict=True):
                digest.update(f"{name} {x.dtype.str} {sum(piece.nbytes for piece in pieces)}\n".encode())
                for piece in pieces:
                    digest.update(piece.data)
        self.salts = [digest.digest() for digest in digests]

    def hash(self, values: list[tuple[str, np.ndarray]]) -> str:
        """The hash of named values of this batch."""
        whole = self._is_whole(values)
        digests = [hashlib.sha256(salt) for salt in ([b"".join(self.salts)] if whole else self.salts)]
        for name, x in values:
            for digest, pieces in zip(digests, [[x]] if whole else self._cut(name, x), strict=True):
                for piece in pieces:
                    digest.update(piece.data)
        return _total(digest.digest() for digest in digests)

    def _is_whole(self, values: list[tuple[str, np.ndarray]]) -> bool:
        return any(self.places[name] is None for name, _ in values)

    def _cut(self, name: str, x: np.ndarray) -> list[list[np.ndarray]]:
        """For each sample its part of a value, without padding: one array, or several in order."""
        place = self.places[name]
        assert place is not None
        if place.shared:
            x = np.broadcast_to(x, (self.samples, *x.shape))
        x = np.moveaxis(x.reshape([bind(size, self.sizes) for size in place.shape]), place.dim, 0)
        padded = [(dim, real) for dim, tokens in place.tokens if (real := self.real[tokens]) is not None]
        if not padded:
            return [[part] for part in np.ascontiguousarray(x.reshape(self.samples, -1))]
        parts = []
        for row, part in enumerate(x):
            for dim, real in padded:  # a mask has a row for each sample, or for each of its texts
                part = part[(slice(None),) * dim + (real[row * len(real) // len(x)],)]
            parts.append(np.ascontiguousarray(part))
        each = len(x) // self.samples
        return [parts[start : start + each] for start in range(0, len(x), each)]


def _real(mask: Tensor) -> list[slice | np.ndarray] | None:
    """For each row of a mask the places of its real tokens, as a slice where they stand together; None if all are."""
    rows = (mask != 0).reshape(-1, mask.shape[-1]).cpu().numpy()
    if rows.all():
        return None
    found: list[slice | np.ndarray] = []
    for row in rows:
        (places,) = np.nonzero(row)
        start, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        found.append(slice(start, stop) if stop - start == len(places) else places)
    return found


def _returned(program: Program, output: Any) -> list[tuple[str, Tensor]]:
    """The tensors that a network returns, with the names of their nodes."""
    names: list[Any] = []
    values: list[Any] = []
    map_arguments(program.output, names.append)
    map_arguments(output, values.append)
    return [(leaf.name, value) for leaf, value in zip(names, values, strict=True) if isinstance(leaf, Ref)]


# --- numbers


def _codes(x: Tensor, site: Site) -> np.ndarray:
    return _array(x.to(torch.int8 if site.lo >= -128 and site.hi <= 127 else torch.int16))


def _numbers(x: Any) -> np.ndarray:
    """Floats of 32 or 64 bits, and whole numbers of 64 bits, in one form each: there is no -0.0."""
    x = torch.as_tensor(x).detach()
    if not x.is_floating_point():
        return _array(x.to(torch.int64))
    return _array((x if x.dtype == torch.float64 else x.to(torch.float32)) + 0.0)


def _array(x: Tensor) -> np.ndarray:
    array: np.ndarray = x.cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _total(digests: Iterable[bytes]) -> str:
    return _hex(sum(int.from_bytes(digest, "big") for digest in digests))


def _sum(a: str, b: str) -> str:
    return _hex(int(a, 16) + int(b, 16)) if a and b else a or b


def _hex(number: int) -> str:
    return f"{number % 2**256:064x}"


# --- where samples and tokens lie


@dataclass(frozen=True)
class _Place:
    """How a value is cut into samples.

    Attributes:
        shape: what the value is reshaped to.
        dim: the dimension of that shape that counts samples, or several rows for each.
        tokens: the dimensions that count tokens once `dim` is gone, and the size that they have.
        shared: it has no samples: each of them has all of it.
    """

    shape: Shape
    dim: int
    tokens: tuple[tuple[int, Size], ...]
    shared: bool = False


def _places(program: Program) -> dict[str, _Place | None]:
    """The places of inputs, sites and what is returned; None where one is not known."""
    names = dict.fromkeys((*(node.name for node in program.inputs), *program.sites, *program.returned))
    mixed = program.layout.mixed or program.layout.mixed_before
    found = {name: None if mixed else _place(program, program[name]) for name in names}
    # Without the hash of a sample's inputs there is none of its codes.
    return dict.fromkeys(names) if any(found[node.name] is None for node in program.inputs) else found


def _place(program: Program, node: Node) -> _Place | None:
    masks = program.derived(_masks)
    batch = Size("symbol", (program.batch,))
    shape, prefix = list(node.shape), program.layout.prefix.get(node.name)
    dims = [dim for dim, size in enumerate(shape) if isinstance(size, Size) and program.batch in size.symbols]
    shared = isinstance(node, Input) and not dims
    if shared:
        shape, prefix, dims = [batch, *shape], 1, [0]
    if prefix is None or len(dims) != 1:
        return None
    (dim,) = dims
    for tokens in masks:  # samples and their tokens in one dimension: make it two
        if _factors(shape[dim]) == _factors(batch, tokens):
            first = _factors(prefix) == _factors(*shape[:dim])
            shape[dim : dim + 1] = [batch, tokens] if first else [tokens, batch]
            dim += 0 if first else 1
            break
    lengths = frozenset[str]().union(*(tokens.symbols for tokens in masks))
    if _factors(*shape[:dim]) != _factors(prefix):
        return None if _has(lengths, *shape) else _Place((prefix, batch, -1), 1, (), shared)
    for name in masks.values():  # several texts a sample: each is a row of the mask
        rows = program[name].shape[:-1]
        if tuple(shape[dim : dim + len(rows)]) == rows:
            shape[dim : dim + len(rows)] = [times(*rows)]
    counts = {d: size for d, size in enumerate(shape) if isinstance(size, Size) and size in masks and d != dim}
    if _has(lengths, *(size for d, size in enumerate(shape) if d not in counts)):
        return None
    number, symbols = _factors(shape[dim])
    for tokens in counts.values():
        rows_number, rows_symbols = _factors(*program[masks[tokens]].shape[:-1])
        if symbols != rows_symbols or number % rows_number:
            return None
    return _Place(tuple(shape), dim, tuple((d - (d > dim), tokens) for d, tokens in counts.items()), shared)


def _masks(program: Program) -> dict[Size, str]:
    """Number of tokens → the mask that says which of them are real; of none where two say so."""
    found: dict[Size, list[str]] = {}
    for node in program.inputs:
        *rows, tokens = node.shape or (0,)
        if node.name in MASKS and rows and isinstance(tokens, Size) and not _has(tokens.symbols, *rows):
            found.setdefault(tokens, []).append(node.name)
    return {tokens: names[0] for tokens, names in found.items() if len(names) == 1}


def _has(symbols: frozenset[str], *sizes: int | Size) -> bool:
    return any(isinstance(size, Size) and size.symbols & symbols for size in sizes)


def _factors(*sizes: int | Size) -> tuple[int, Counter[Size]]:
    """A product as a number and the other factors, in whatever order they stood."""
    number, others = 1, Counter[Size]()
    for size in sizes:
        if not isinstance(size, Size):
            number *= size
        elif size.op == "*":
            inner_number, inner = _factors(*size.args)
            number, others = number * inner_number, others + inner
        else:
            others[size] += 1
    return number, others
