"""A batch on several threads of the CPU: each takes some of the samples, with an engine of its own.

Threads inside the operators bring little here: a step is many short operators, and they wait for one another at each.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import pairwise
from threading import Event
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.run import Run


class StoppedError(Exception):
    """Raised by a part that ends because another one has failed, or the user wants no more."""


def parts_of(inputs: dict[str, Any], batch: int, count: int) -> list[tuple[dict[str, Any], int]]:
    """The inputs and sizes of `count` parts of a batch, nearly equal. What the samples share goes to all parts.

    Example:
        >>> [(part["x"].tolist(), size) for part, size in parts_of({"x": torch.arange(5), "y": 1}, batch=5, count=2)]
        [([0, 1], 2), ([2, 3, 4], 3)]
    """
    return [
        ({k: v[a:b] if isinstance(v, Tensor) and v.ndim and len(v) == batch else v for k, v in inputs.items()}, b - a)
        for a, b in pairwise(batch * i // count for i in range(count + 1))
    ]


def at_once(run: Callable[[dict[str, Any], int, Event], Run], parts: Sequence[tuple[dict[str, Any], int]]) -> list[Run]:
    """`run` on every part, each on a thread of its own, without threads inside. An error or Ctrl-C ends them all.

    It gets the inputs, their number of samples, and an event: once that is set, it raises `StoppedError`.
    """
    threads = torch.get_num_threads()
    stop = Event()

    def alone(inputs: dict[str, Any], size: int) -> Run:
        torch.set_num_threads(1)  # of this thread
        try:
            with torch.no_grad():  # is a matter of the thread as well
                return run(inputs, size, stop)
        except BaseException:
            stop.set()
            raise

    try:
        with ThreadPoolExecutor(len(parts), thread_name_prefix="spikezip") as pool:
            waiting = [pool.submit(copy_context().run, alone, inputs, size) for inputs, size in parts]
            try:
                wait(waiting)
            except BaseException:  # Ctrl-C
                stop.set()
                raise
        errors = [error for one in waiting if (error := one.exception()) is not None]
        for error in errors:
            if not isinstance(error, StoppedError):
                raise error
        return [one.result() for one in waiting]
    finally:
        torch.set_num_threads(threads)  # the mathematical library has one number for all threads


def join(runs: list[Run]) -> Run:
    """The run of a whole batch from the runs of its parts. Those that came to rest earlier are silent from then on."""
    first = runs[0]
    steps = max(run.steps for run in runs)

    def silent(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(steps - len(x), *x.shape[1:])])

    def lasting(x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(steps - len(x), *x.shape[1:])])

    logits = torch.cat([lasting(run.logits_per_step) for run in runs], dim=1)
    return Run(
        logits=logits[-1],
        logits_per_step=logits,
        steps=steps,
        computed_steps=max(run.computed_steps for run in runs),
        t_eq=[t for run in runs for t in run.t_eq],
        engine=first.engine,
        spike_counts={site: torch.cat([silent(run.spike_counts[site]) for run in runs], 1) for site in first.neurons},
        neurons=first.neurons,
        trains={site: torch.cat([silent(run.trains[site]) for run in runs], 1) for site in first.trains},
        tracers={site: torch.cat([run.tracers[site] for run in runs]) for site in first.tracers},
        neuron_spikes={site: torch.cat([run.neuron_spikes[site] for run in runs]) for site in first.neuron_spikes},
        free_from=first.free_from,
        coding=first.coding,
        max_spike=first.max_spike,
        stagger=first.stagger,
    )
