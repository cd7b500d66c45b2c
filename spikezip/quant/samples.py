"""What calibration remembers of a site: some of the rows that it saw, with the gradient of the output there."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.ops.hadamard import hadamard
from spikezip.program.nodes import Program, Ref, Site
from spikezip.program.rotate import Rotation
from spikezip.quant.plain import evaluate_plain

_ROWS = 2048  # kept of each site
_VALUES = 1 << 20  # … and no more numbers than these
_EVEN = 0.5  # share of rows that are drawn evenly; the others by what an error in them would cost


@dataclass(frozen=True)
class Sample:
    """Rows `u` of a site's input, the gradient of the network's output there, and how many rows each stands for.

    A row is the last dimension: the channels of a token, or the probabilities of a query.
    """

    u: Tensor
    gradient: Tensor
    weight: Tensor

    @classmethod
    def draw(cls, u: Tensor, gradient: Tensor, count: int, generator: torch.Generator) -> "Sample":
        """Some rows: half of them evenly, half where values and gradients are large; the weights even this out.

        Example:
            >>> u = torch.randn(3, 10, 4)
            >>> sample = Sample.draw(u, torch.ones_like(u), 8, torch.Generator().manual_seed(0))
            >>> sample.u.shape, sample.weight.shape
            (torch.Size([8, 4]), torch.Size([8]))
        """
        u, gradient = (x.reshape(-1, x.shape[-1]) if x.ndim else x.view(1, 1) for x in (u, gradient))
        if len(u) <= count:
            return cls(u, gradient, u.new_ones(len(u)))
        size = (u.double().square().sum(1) * gradient.double().square().sum(1)).sqrt()
        even = torch.full_like(size, 1 / len(u))
        chance = _EVEN * even + (1 - _EVEN) * size / size.sum() if bool(size.sum() > 0) else even
        rows = torch.multinomial(chance.cpu(), count, replacement=True, generator=generator).to(u.device)
        return cls(u[rows], gradient[rows], (1 / (count * chance[rows])).to(u.dtype))

    def part(self, which: int) -> "Sample":
        """Every other row, from the first or the second on."""
        return Sample(self.u[which::2], self.gradient[which::2], self.weight[which::2])

    def some(self, stride: int) -> "Sample":
        """Every so many rows."""
        return Sample(self.u[::stride], self.gradient[::stride], self.weight[::stride])

    def rotated(self, rotation: Rotation) -> "Sample":
        """The rows in rotated channels. An error there moves the output by its product with the rotated gradient."""
        u, gradient = (hadamard(x, rotation.block, rotation.apart) for x in (self.u, self.gradient))
        return Sample(u, gradient / rotation.block, self.weight)

    def channels(self, chosen: Sequence[int]) -> "Sample":
        """Some channels of the rows."""
        return Sample(self.u[:, list(chosen)], self.gradient[:, list(chosen)], self.weight)

    @classmethod
    def join(cls, parts: Sequence["Sample"]) -> "Sample":
        """All rows; zeros fill up short ones (probabilities of fewer keys): their code is 0, which is no error.

        Example:
            >>> one, two = (Sample(torch.ones(1, n), torch.ones(1, n), torch.ones(1)) for n in (2, 3))
            >>> Sample.join([one, two]).u
            tensor([[1., 1., 0.],
                    [1., 1., 1.]])
        """
        width = max(part.u.shape[1] for part in parts)
        u, gradient = (
            torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in rows])
            for rows in ([part.u for part in parts], [part.gradient for part in parts])
        )
        return cls(u, gradient, torch.cat([part.weight for part in parts]))


def see(
    program: Program,
    tensors: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Any]],
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Sample]:
    """A sample of every site, from the float network on all batches.

    The gradient is that of a loss that the network draws itself: where it returns logits, the cross entropy of a label
    that it would give with this probability, so that squares of gradients are its Fisher information; else the sum of
    its outputs with random signs. No labels of the data are needed. `step` is called after every batch.
    """
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[Sample]] = {name: [] for name in program.sites}
    detached = {key: tensor.detach() for key, tensor in tensors.items()}
    for batch in batches:
        for name, (u, gradient) in _backward(program, detached, batch, generator).items():
            if not bool(torch.isfinite(u).all()):
                raise InputError(f"site {name!r} saw values that are not finite; check the model and the batches")
            most = max(1, min(_ROWS, _VALUES // max(1, u.shape[-1] if u.ndim else 1)) // len(batches))
            found[name].append(Sample.draw(u, gradient, most, generator))
        step()
    return {name: Sample.join(parts) for name, parts in found.items()}


def gradients_at(
    program: Program,
    tensors: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    names: Sequence[str],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The gradient of the same loss at some values behind sites."""
    found = _backward(program, tensors, batch, generator, names)
    return {name: gradient for name, (_, gradient) in found.items() if name in names}


def _backward(
    program: Program,
    tensors: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    generator: torch.Generator,
    more: Collection[str] = (),
) -> dict[str, tuple[Tensor, Tensor]]:
    """What sites read, and `more` values, each with the gradient there."""
    seen: dict[str, Tensor] = {}

    def look(node: Site, u: Tensor) -> Tensor:
        seen[node.name] = u = u if u.requires_grad else u.detach().requires_grad_()
        return u

    # Tensors made in inference mode cannot take part in a backward pass.
    with torch.inference_mode(False), torch.enable_grad():
        inputs = {k: v.clone() if isinstance(v, Tensor) and v.is_inference() else v for k, v in batch.items()}
        values = evaluate_plain(program, tensors, inputs, look, keep=more)
        seen |= {name: values[name] for name in more}
        loss = _own_loss(program, values, generator)
        gradients: Sequence[Tensor | None] = [None] * len(seen)
        if loss is not None:
            gradients = torch.autograd.grad(loss, list(seen.values()), allow_unused=True)
    found = {}
    for (name, u), gradient in zip(seen.items(), gradients, strict=True):
        gradient = torch.zeros_like(u) if gradient is None else gradient.nan_to_num(0.0, 0.0, 0.0)
        found[name] = u.detach(), gradient
    return found


def _own_loss(program: Program, values: Mapping[str, Any], generator: torch.Generator) -> Tensor | None:
    output = program.output
    logits = output.get("logits") if isinstance(output, Mapping) else None
    if not isinstance(logits, Ref):  # none, or several: the network returns something else than one answer
        logits = None
    chosen = [logits.name] if logits is not None else sorted(program.returned)
    total: Tensor | None = None
    for name in chosen:
        y = values[name]
        if not isinstance(y, Tensor) or not y.requires_grad or y.numel() == 0:
            continue
        part = _own_label(y, generator) if logits is not None and y.shape[-1] > 1 else _random_signs(y, generator)
        total = part if total is None else total + part
    return total


def _own_label(logits: Tensor, generator: torch.Generator) -> Tensor:
    rows = logits.reshape(-1, logits.shape[-1])
    chances = rows.detach().float().softmax(-1).cpu()
    labels = torch.multinomial(chances, 1, generator=generator)[:, 0].to(rows.device)
    return torch.nn.functional.cross_entropy(rows, labels, reduction="sum")


def _random_signs(y: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(2, y.shape, generator=generator).to(y.device, y.dtype) * 2 - 1
    size = y.detach().square().mean().sqrt()  # of several outputs, none is to count for more than another
    return (y * signs).sum() / size.clamp(min=torch.finfo(y.dtype).tiny)
