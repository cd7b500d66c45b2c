"""Fit a calibrated network to the float one, block by block, on unlabelled data.

A block gets what the quantized blocks before it give. Its weights, biases, norms and scales are trained until its
output is that of the float block on the float network's own values; so it also makes good what was lost before it. An
error at a place of the output, such as a token, counts as much as the network's answer depends on it.

During the training sites hand on half of their inputs as they are, drawn anew in each step: the block then does not
learn the rounding of single values by heart, which few samples invite it to. Some batches are held out, and a block
that got worse on them is put back. Blocks as in BRECQ (Li et al., 2021), half of the values as in QDrop (Wei et al.,
2022).
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, pi
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikezip.errors import CheckpointError
from spikezip.program.analysis import Depends, dependence
from spikezip.program.blocks import Block, behind, blocks_of
from spikezip.program.nodes import Program
from spikezip.quant.learn import learn_part
from spikezip.quant.plain import evaluate_plain
from spikezip.quant.samples import gradients_at

if TYPE_CHECKING:
    from spikezip.quant.network import QuantizedNetwork

STEPS = 150  # of each block
_WEIGHT_RATE = 3e-3  # of the mean magnitude of a weight, per step at first
_SCALE_RATE = 1e-2  # of a scale
_AS_THEY_ARE = 0.5  # share of values that are not quantized in a step
_HELD_OUT = 8  # of so many batches, one


def fitted_blocks(program: Program) -> tuple[Block, ...]:
    """The blocks that are fitted: all but the last, whose output is the network's answer, if there are others."""
    blocks = blocks_of(program)
    return blocks[:-1] if len(blocks) > 1 else blocks


def steps_of(program: Program, batches: int) -> int:
    """How many steps `reconstruct` takes."""
    return batches + STEPS * len(fitted_blocks(program))


def reconstruct(
    qann: "QuantizedNetwork",
    batches: Sequence[Mapping[str, Any]],
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
    checkpoint: Path | None = None,
) -> None:
    """Fit a calibrated network to the float network, whose weights it still has. `step` is called in every step.

    Blocks that are fitted are kept in `checkpoint`, if that is given; the same call goes on behind them.

    Example:
        >>> import spikezip
        >>> _ = torch.manual_seed(0)
        >>> layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(4)]
        >>> model, x = torch.nn.Sequential(*layers), torch.randn(256, 16)
        >>> qann = spikezip.quantize(model, spikezip.QuantConfig(levels=4), example=x)
        >>> before = spikezip.calibrate(qann, x, "quick").eval()(x)
        >>> reconstruct(qann, [qann.prepare(part) for part in x.split(32)])
        >>> bool((qann(x) - model(x)).norm() < (before - model(x)).norm())
        True
    """
    training = qann.training
    qann.eval()  # dropout would be an error like any other
    try:
        with torch.inference_mode(False):  # whose tensors take no part in a backward pass
            fitting = _Reconstruction(qann, [_plain(batch) for batch in batches], seed, step)
            if checkpoint is None:
                fitting.run()
            else:
                fitting.run(_Kept(checkpoint, _fingerprint(qann, batches, seed)))
    finally:
        qann.train(training)


def _plain(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, Tensor) and v.is_inference() else v for k, v in batch.items()}


class _Kept:
    """The blocks that are fitted, in a file: their weights and scales, and the random numbers' state after each."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.blocks: list[dict[str, Any]] = []
        if path.exists():
            try:
                found = torch.load(path, weights_only=True)
                same = found["fingerprint"] == fingerprint
            except Exception as error:  # torch raises many kinds for a file that is none of its own
                raise CheckpointError(f"{path} holds no calibration that can go on: remove it") from error
            if not same:
                raise CheckpointError(
                    f"{path} is of another calibration (other data, settings or weights): remove it to start anew"
                )
            self.blocks = found["blocks"]

    def add(self, block: dict[str, Any]) -> None:
        self.blocks.append(block)
        beside = self.path.with_name(f"{self.path.name}.tmp")
        torch.save({"fingerprint": self.fingerprint, "blocks": self.blocks}, beside)
        os.replace(beside, self.path)  # there is a whole file at any time

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _fingerprint(qann: "QuantizedNetwork", batches: Sequence[Mapping[str, Any]], seed: int) -> str:
    """What a calibration depends on, as a hash: the program with its codes, weights, scales, data, and the seed."""
    found = hashlib.sha256(f"{qann.program} {seed} {STEPS}".encode())
    for values in (qann.state_dict(), *batches):
        for name, x in values.items():
            found.update(f"{name} {x.shape if isinstance(x, Tensor) else x}".encode())
            if isinstance(x, Tensor):
                found.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@dataclass
class _Batch:
    """What is known of one batch: the inputs, values so far, and for each block how much each place counts."""

    inputs: Mapping[str, Any]
    floats: dict[str, Any]
    quantized: dict[str, Any]
    importance: dict[str, Tensor]
    target: Tensor = field(default_factory=lambda: torch.empty(0))


class _Reconstruction:
    def __init__(
        self, qann: "QuantizedNetwork", batches: Sequence[Mapping[str, Any]], seed: int, step: Callable[[], None]
    ) -> None:
        self.qann, self.program, self.step = qann, qann.program, step
        self.floats = {key: tensor.detach().clone() for key, tensor in qann.tensors().items()}
        self.generator = torch.Generator(qann.device).manual_seed(seed)
        self.blocks = fitted_blocks(self.program)
        own = torch.Generator().manual_seed(seed)
        self.batches = [self._start(batch, own) for batch in batches]

    def _start(self, batch: Mapping[str, Any], generator: torch.Generator) -> _Batch:
        ends = [block.end for block in self.blocks]
        gradients = gradients_at(self.program, self.floats, batch, ends, generator)
        importance = {name: g.square().mean(-1, keepdim=True) for name, g in gradients.items()}
        read = {name for node in self.program.moving for name in node.reads} - self.program.varying
        depends = dependence(self.program)
        entering = {name for name in read if depends[name] is not Depends.WEIGHTS}
        nodes = behind(self.program.constant, entering)
        with torch.no_grad():
            floats = evaluate_plain(self.program, self.floats, batch, keep=entering, nodes=nodes)
            quantized = learn_part(self.qann, batch, nodes, {}, entering)
        self.step()
        return _Batch(batch, {name: floats[name] for name in entering}, quantized, importance)

    def run(self, kept: _Kept | None = None) -> None:
        for number, block in enumerate(self.blocks):
            with torch.no_grad():
                for each in self.batches:
                    each.target = self._float_output(block, each)
            if kept is not None and number < len(kept.blocks):
                self._take(block, kept.blocks[number])
            else:
                with torch.enable_grad():
                    self._fit(block)
                if kept is not None:
                    kept.add(self._fitted(block))
            with torch.no_grad():
                for each in self.batches:
                    each.floats[block.end] = each.target
                    each.quantized[block.end] = self._output(block, each)
                    if number:  # the value that entered is needed no more
                        each.floats.pop(self.blocks[number - 1].end)
                        each.quantized.pop(self.blocks[number - 1].end)
        if kept is not None:
            kept.remove()

    def _trained(self, block: Block) -> tuple[list[Tensor], list[Tensor]]:
        """The weights and scales of a block that are fitted."""
        tensors = self.qann.tensors()
        weights = [tensors[key] for key in block.weights if tensors[key].requires_grad]
        return weights, [scale for site in block.sites if (scale := self.qann.scale(site)).requires_grad]

    def _fitted(self, block: Block) -> dict[str, Any]:
        weights, scales = self._trained(block)
        return {"values": [x.detach().cpu() for x in (*weights, *scales)], "generator": self.generator.get_state()}

    @torch.no_grad()
    def _take(self, block: Block, fitted: dict[str, Any]) -> None:
        weights, scales = self._trained(block)
        for own, value in zip((*weights, *scales), fitted["values"], strict=True):
            own.copy_(value)
        self.generator.set_state(fitted["generator"])
        for _ in range(STEPS):
            self.step()

    def _float_output(self, block: Block, batch: _Batch) -> Tensor:
        nodes, known = block.nodes, batch.floats
        found: Tensor = evaluate_plain(
            self.program, self.floats, batch.inputs, keep=[block.end], nodes=nodes, known=known
        )[block.end]
        return found

    def _output(self, block: Block, batch: _Batch, mixing: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        found: Tensor = learn_part(self.qann, batch.inputs, block.nodes, batch.quantized, [block.end], mixing)[
            block.end
        ]
        return found

    def _loss(self, block: Block, batch: _Batch, mixing: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        error = (self._output(block, batch, mixing) - batch.target).square()
        return (error * batch.importance[block.end]).mean()

    def _mixing(self, u: Tensor) -> Tensor:
        return torch.rand(u.shape, generator=self.generator, device=u.device) < _AS_THEY_ARE

    def _fit(self, block: Block) -> None:
        weights, scales = self._trained(block)
        trained = [*weights, *scales]
        held_out = self.batches[_HELD_OUT - 1 :: _HELD_OUT] or self.batches[1:][-1:]
        used = [each for each in self.batches if not any(each is other for other in held_out)]
        before, saved = self._error(block, held_out), [p.detach().clone() for p in trained]
        rates = [_WEIGHT_RATE] * len(weights) + [_SCALE_RATE] * len(scales)
        groups = [
            {"params": [p], "lr": rate * float(p.detach().abs().mean())} for p, rate in zip(trained, rates, strict=True)
        ]
        # Gradients may be of any size: importance is that of one answer among many places.
        optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99), eps=1e-30)
        falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: (1 + cos(pi * i / STEPS)) / 2)
        order: list[int] = []
        for _ in range(STEPS if trained else 0):
            order = order or torch.randperm(len(used), generator=self.generator, device=self.generator.device).tolist()
            loss = self._loss(block, used[order.pop()], self._mixing)
            for p, gradient in zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
                p.grad = gradient
            optimizer.step()
            falling.step()
            self.step()
        for p in trained:
            p.grad = None
        with torch.no_grad():
            for scale, first in zip(scales, saved[len(weights) :], strict=True):
                scale.copy_(torch.maximum(scale, first / 10))
        if not self._error(block, held_out) <= before:  # worse, or no number
            with torch.no_grad():
                for p, first in zip(trained, saved, strict=True):
                    p.copy_(first)

    @torch.no_grad()
    def _error(self, block: Block, batches: Sequence[_Batch]) -> float:
        return sum(float(self._loss(block, each)) for each in batches)
