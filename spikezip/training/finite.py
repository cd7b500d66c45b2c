"""A loss that is not finite: no step is taken, and the run stops with the site where it began."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.errors import SpikezipError
from spikezip.program.nodes import Function, Node, Product, Site
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.sharded import gathered, local, plain_name
from spikezip.training.together import any_process, first_said

STEEP = 1e-8  # of variance: at a LayerNorm below it, a gradient grows by more than ten thousand


class DivergedError(SpikezipError):
    """Training produced values that are not finite."""


class FiniteGuard:
    """Looks at the gradients before every step of the optimizer, without making a GPU wait for the answer.

    The optimizer is told on the device to leave the weights as they are (`found_inf`, as for gradient scaling). On a
    GPU the host asks for the answer a step later than it could: at once, it would wait there with nothing to launch.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.waiting: deque[tuple[Tensor, Any]] = deque()  # flags, and the events after which they can be read
        self.norm: Tensor | None = None
        optimizer.register_step_pre_hook(self._look)

    def see_norm(self, norm: Tensor) -> None:
        """The norm of the gradients before they were clipped. One that overflows clips them all to zero."""
        self.norm = norm

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        norm, self.norm = self.norm, None
        if norm is None:
            parameters = (p for group in optimizer.param_groups for p in group["params"])  # sharding replaces them
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = gathered(norm)
        bad = (~torch.isfinite(norm)).float()
        if all(group.get("fused") for group in optimizer.param_groups):
            optimizer.found_inf = bad
        if bad.is_cuda:
            flag = torch.empty((), pin_memory=True)
            flag.copy_(bad, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.waiting.append((flag, event))
        else:
            self.waiting.append((bad, None))

    def diverged(self, finished: bool = False) -> int:
        """How many steps ago gradients were not finite: 1 is the last one; 0 if they were not, as far as is known.

        With `finished`, all steps are waited for.
        """
        while self.waiting and (finished or self.waiting[0][1] is None or len(self.waiting) > 1):
            flag, event = self.waiting.popleft()
            if event is not None:
                event.synchronize()
            if bool(flag):
                return len(self.waiting) + 1
        return 0


def find_cause(model: nn.Module, losses: Iterable[Callable[[], Tensor]]) -> str:
    """Compute the losses of a step again and say where the first value, forward or backward, was not finite.

    Processes tell each other what they find after every part: one that returned alone would leave the others waiting.
    """
    odd = (plain_name(name) for name, p in model.named_parameters() if not bool(torch.isfinite(local(p)).all()))
    first = first_said(next(odd, None))
    if first is not None:
        return f"the parameter {first} holds values that are not finite"
    forward: list[str] = []
    backward: list[str] = []
    flat: list[str] = []
    handles = []
    if isinstance(model, QuantizedNetwork):
        model.watch = _watch_nodes(forward, backward, flat)
    else:
        for name, module in model.named_modules():
            label = f"module {plain_name(name)!r}"
            if not any(True for _ in module.children()):
                handles.append(module.register_forward_hook(_watch(label, forward, backward)))
            if isinstance(module, nn.LayerNorm):
                handles.append(module.register_forward_hook(_watch_flat(label, flat)))
    try:
        for compute in losses:
            with torch.enable_grad():
                loss = compute()
                first = first_said(forward[0] if forward else None)
                if first is not None:
                    return f"{first} is the first value that is not finite"
                if any_process(not bool(torch.isfinite(loss)), loss.device):
                    return "every site is finite; the loss itself is not: look at the labels and the head"
                loss.backward()
            first = first_said(backward[0] if backward else None)
            if first is not None:
                reason = first_said(flat[0] if flat else None) or ""
                return f"the gradient at {first} is the first, on the way back, that is not finite{reason}"
        grads = {plain_name(name): p.grad for name, p in model.named_parameters() if p.grad is not None}
        if not bool(torch.isfinite(gathered(torch.nn.utils.get_total_norm(grads.values())))):
            name = max(grads, key=lambda name: float(gathered(grads[name].abs().max())))
            reason = first_said(flat[0] if flat else None) or ""
            large = f"the gradients are so large, that of {name} most, that their norm is not"
            return f"every value is finite, but {large}{reason}"
    finally:
        if isinstance(model, QuantizedNetwork):
            model.watch = None
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    return "the same samples give finite gradients when they are run again: the cause is not in one site"


def _watch_nodes(forward: list[str], backward: list[str], flat: list[str]) -> Callable[[Node, Mapping[str, Any]], None]:
    """For a program: what reaches a site, and what a site or a product gives."""

    def watch(node: Node, values: Mapping[str, Any]) -> None:
        if isinstance(node, Function) and node.op == "aten.layer_norm.default":
            eps = node.args[4] if len(node.args) > 4 else 1e-5
            _look_for_flat(values[node.reads[0]], eps, f"module {node.module!r}", flat)
        if not isinstance(node, (Site, Product)):
            return
        label = f"site {node.name!r}" if isinstance(node, Site) else f"module {node.module or node.name!r}"
        if isinstance(node, Site) and not bool(torch.isfinite(values[node.u]).all()):
            forward.append(f"what reaches {label}")
        found = values[node.name]
        _look(found if isinstance(found, Tensor) else found.values, label, forward, backward)

    return watch


def _watch(label: str, forward: list[str], backward: list[str]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            _look(output, label, forward, backward)

    return hook


def _look(output: Tensor, label: str, forward: list[str], backward: list[str]) -> None:
    """At a value now, and at its gradient when that comes."""
    if not bool(torch.isfinite(output).all()):
        forward.append(f"the output of {label}")

    def look(grad: Tensor) -> None:
        if not bool(torch.isfinite(grad).all()):
            backward.append(label)

    if output.requires_grad:
        output.register_hook(look)


def _watch_flat(label: str, flat: list[str]) -> Any:
    def hook(module: nn.LayerNorm, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor):
            _look_for_flat(args[0], module.eps, label, flat)

    return hook


def _look_for_flat(rows: Tensor, eps: float, label: str, flat: list[str]) -> None:
    """Tokens whose values are all alike: all a LayerNorm divides by is the root of its epsilon."""
    rows = rows.detach()
    count = int((rows.amax(-1) == rows.amin(-1)).sum()) if eps < STEEP else 0
    if count:
        flat.append(
            f". {count} tokens reach {label} with all their values alike, where gradients grow {eps**-0.5:.0e}-fold: "
            "all their codes are 0, or the same. A float network that is trained further, smaller scales or a larger "
            "epsilon of that layer help"
        )
