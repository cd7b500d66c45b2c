"""A batch on several threads of the CPU: each takes some of the samples, with an engine of its own.

Threads inside the operators bring little here: a step is many short operators, and they wait for one another at each.
Beside other work on the same cores they would also spin while they wait.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from threading import Event
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.run import Run
from spikezip.program.batch import sample_count
from spikezip.program.nodes import Node, Program
from spikezip.program.sizes import Size


class StoppedError(Exception):
    """Raised by a part that ends because another one has failed, or the user wants no more."""


def parts_of(program: Program, inputs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The inputs of `count` parts of a batch, nearly equal. What the samples share goes to all parts."""
    if count == 1:
        return [dict(inputs)]
    dims, batch = sample_dims(program), sample_count(program, inputs)

    def part(name: str, x: Any, start: int, stop: int) -> Any:
        dim = dims.get(name)
        return x if dim is None else x.narrow(dim, start, stop - start)

    bounds = pairwise(batch * i // count for i in range(count + 1))
    return [{name: part(name, x, start, stop) for name, x in inputs.items()} for start, stop in bounds]


def sample_dims(program: Program) -> dict[str, int | None]:
    """For inputs and sites the dimension that counts samples, or several rows for each; None if there is none."""

    def dim(node: Node) -> int | None:
        symbolic = (d for d, size in enumerate(node.shape) if isinstance(size, Size) and program.batch in size.symbols)
        return next(symbolic, None)

    return {node.name: dim(node) for node in (*program.inputs, *program.sites.values())}


def run_parts(run: Callable[[dict[str, Any], Event], Run], parts: list[dict[str, Any]]) -> list[Run]:
    """`run` on every part, each on a thread of its own, without threads inside. An error or Ctrl-C ends them all.

    It gets the inputs and an event: once that is set, it raises `StoppedError`.
    """
    threads = torch.get_num_threads()
    stop = Event()

    def alone(inputs: dict[str, Any]) -> Run:
        torch.set_num_threads(1)  # of this thread
        try:
            with torch.no_grad():  # is a matter of the thread as well
                return run(inputs, stop)
        except BaseException:
            stop.set()
            raise

    try:
        with ThreadPoolExecutor(len(parts), thread_name_prefix="spikezip") as pool:
            waiting = [pool.submit(alone, inputs) for inputs in parts]
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


def join(runs: list[Run], sample_dims: Mapping[str, int | None]) -> Run:
    """The run of a whole batch from the runs of its parts. Those at equilibrium earlier are silent from then on.

    `sample_dims` gives, for each site, the dimension of its codes that counts samples.
    """
    first = runs[0]
    steps = max(run.steps for run in runs)

    def silent(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(steps - len(x), *x.shape[1:])])

    def lasting(x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(steps - len(x), *x.shape[1:])])

    def by_site(pieces: list[dict[str, Tensor]], before: int) -> dict[str, Tensor]:
        """One tensor for each site from those of the parts, with `before` dimensions in front of its own."""
        return {site: torch.cat([p[site] for p in pieces], before + (sample_dims[site] or 0)) for site in pieces[0]}

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
        trains=by_site([{site: silent(x) for site, x in run.trains.items()} for run in runs], 1),
        tracers=by_site([run.tracers for run in runs], 0),
        neuron_spikes=by_site([run.neuron_spikes for run in runs], 0),
        free_from=first.free_from,
        coding=first.coding,
        max_spike=first.max_spike,
        stagger=first.stagger,
        why_engine=first.why_engine,
    )
