"""A loss that is not finite: no step is taken, and the run stops with the site where it began."""

from typing import Any

import torch
from torch import Tensor, nn

from spikezip.errors import SpikezipError
from spikezip.quant.site import Site
from spikezip.quant.synapse import QuantSynapse


class DivergedError(SpikezipError):
    """Training produced values that are not finite."""


class FiniteGuard:
    """Looks at the gradients before every step of the optimizer, without making a GPU wait for the answer.

    The optimizer is told on the device to leave the weights as they are (`found_inf`, as for gradient scaling); the
    answer reaches the host a step later, when the batch that did it is still at hand.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.flag: Tensor | None = None
        self.event: Any = None
        optimizer.register_step_pre_hook(self._look)

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded over processes
        bad = (~torch.isfinite(norm)).float()
        if all(group.get("fused") for group in optimizer.param_groups):
            optimizer.found_inf = bad
        if bad.is_cuda:
            self.flag = torch.empty((), pin_memory=True)
            self.flag.copy_(bad, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.flag = bad

    def diverged(self) -> bool:
        """Whether the last step that was tried had gradients that are not finite."""
        if self.flag is None:
            return False
        if self.event is not None:
            self.event.synchronize()
        flag, self.flag, self.event = bool(self.flag), None, None
        return flag


def find_cause(model: nn.Module, compute_loss: Any) -> str:
    """Run `compute_loss()` again and say where the first value, forward or backward, was not finite."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"the parameter {name} holds values that are not finite"
    forward: list[str] = []
    backward: list[str] = []
    handles = []
    for name, module in model.named_modules():
        label = f"site {module.name!r}" if isinstance(module, Site) else f"module {name!r}"
        if isinstance(module, (Site, QuantSynapse)) or not any(True for _ in module.children()):
            handles.append(module.register_forward_hook(_watch(label, forward, backward)))
    try:
        with torch.enable_grad():
            loss = compute_loss()
            if forward:
                return f"{forward[0]} is the first whose output is not finite"
            if not bool(torch.isfinite(loss)):
                return "every site is finite; the loss itself is not: look at the labels and the head"
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    if backward:
        return f"{backward[0]} is the first, on the way back, whose gradient is not finite"
    return "the same batch gives finite gradients when it is run again: the cause is not in one site"


def _watch(label: str, forward: list[str], backward: list[str]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, Site) and args and not bool(torch.isfinite(args[0]).all()):
            forward.append(f"what reaches {label}")
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        if not bool(torch.isfinite(output).all()):
            forward.append(label)
        if output.requires_grad:

            def look(grad: Tensor) -> None:
                if not bool(torch.isfinite(grad).all()):
                    backward.append(label)

            output.register_hook(look)

    return hook
