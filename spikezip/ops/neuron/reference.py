"""The ST-BIF+ neuron: the paper's step, the same from the running sum, and its closed form."""

from typing import NamedTuple

import torch
from torch import Tensor


class Neurons(NamedTuple):
    """A layer before a chunk of steps: tracers `[n]` of so many samples, one after another; one scale, or one for each
    channel, the last dimension of what was flattened; codes lo … hi; and the largest spike.
    """

    tracer: Tensor
    scale: Tensor
    lo: int
    hi: int
    max_spike: int
    samples: int


class NeuronState(NamedTuple):
    """Membrane potential `V` and spike tracer `S` of a layer of neurons."""

    membrane: Tensor
    tracer: Tensor


def initial_state(like: Tensor, scale: Tensor) -> NeuronState:
    """Half a threshold in every membrane (this makes floor into round), no spikes yet.

    Example:
        >>> initial_state(torch.zeros(2), torch.tensor(0.5)).membrane
        tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    zeros = torch.zeros_like(like, dtype=torch.float64)
    return NeuronState(membrane=zeros + scale.to(torch.float64) / 2, tracer=zeros)


def step(
    x: Tensor, state: NeuronState, scale: Tensor, lo: int, hi: int, max_spike: int = 1
) -> tuple[Tensor, NeuronState]:
    """One step of ST-BIF+ on the input `x` of this step; returns the spike and the next state.

    Example:
        >>> s = torch.tensor(1.0)
        >>> state = initial_state(torch.zeros(1), s)
        >>> spikes = []
        >>> for x in (2.2, 0.0, 0.0):
        ...     spike, state = step(torch.tensor([x]), state, s, lo=-4, hi=3)
        ...     spikes.append(int(spike))
        >>> spikes, int(state.tracer)
        ([1, 1, 0], 2)
    """
    threshold = scale.to(torch.float64)
    membrane = state.membrane + x
    spike = fire(membrane, state.tracer, threshold, lo, hi, max_spike)
    return spike, NeuronState(membrane - threshold * spike, state.tracer + spike)


def fire(membrane: Tensor, tracer: Tensor, threshold: Tensor, lo: int, hi: int, max_spike: int = 1) -> Tensor:
    """The spike decision Θ: how many thresholds fit into the membrane, at most `max_spike`, tracer within lo … hi.

    For `max_spike=1` this is the paper's rule: +1 if V ≥ s and S < hi, −1 if V < 0 and S > lo, else 0.

    Example:
        >>> one = torch.tensor(1.0)
        >>> fire(torch.tensor([1.0, 0.99, -0.01, 5.0]), torch.tensor([0.0, 0.0, 0.0, 3.0]), one, lo=-4, hi=3)
        tensor([ 1.,  0., -1.,  0.])
    """
    wanted = torch.floor(membrane / threshold).clamp(-max_spike, max_spike)
    return (tracer + wanted).clamp(lo, hi) - tracer


def membrane(total: Tensor, tracer: Tensor, scale: Tensor) -> Tensor:
    """`V = s/2 + U_t − s·S` in float64, from the running sum `U_t`: what a network uses, since deltas do not telescope.

    Example:
        >>> membrane(torch.tensor([2.2]), torch.tensor([1.0]), torch.tensor(1.0))
        tensor([1.7000], dtype=torch.float64)
    """
    threshold = scale.to(torch.float64)
    return threshold / 2 + total.to(torch.float64) - threshold * tracer.to(torch.float64)


def slew(code: Tensor, tracer: Tensor, max_spike: int = 1) -> Tensor:
    """The closed form of a step: the spike that takes the tracer towards `code(U_t)`, at most `max_spike`.

    Example:
        >>> slew(torch.tensor([3.0, -1.0, 0.0]), torch.zeros(3))
        tensor([ 1., -1.,  0.])
    """
    return (code - tracer).clamp(-max_spike, max_spike)


def scan(codes: Tensor, tracer: Tensor, max_spike: int = 1) -> Tensor:
    """The tracers `[T, …]` of T steps, from the codes `[T, …]` of the running sums and the tracer before the first.

    Example:
        >>> scan(torch.tensor([[3.0], [3.0], [1.0], [1.0]]), torch.zeros(1)).flatten()
        tensor([1., 2., 1., 1.])
    """
    tracers = []
    for code in codes:
        tracer = tracer + slew(code, tracer, max_spike)
        tracers.append(tracer)
    return torch.stack(tracers)
