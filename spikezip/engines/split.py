"""A batch in parts, on several threads of the CPU: each takes some of the samples, with an engine of its own.

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
from spikezip.engines.walk import main_output
from spikezip.program.batch import sample_count
from spikezip.program.lower import times
from spikezip.program.nodes import Program, Ref
from spikezip.program.sizes import Size


class StoppedError(Exception):
    """Raised by a part that ends because another one has failed, or the user wants no more."""


def parts_of(program: Program, inputs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The inputs of `count` parts of a batch, nearly equal. What the samples share goes to all parts."""
    if count == 1:
        return [dict(inputs)]
    dims, batch = program.derived(sample_dims), sample_count(program, inputs)

    def part(name: str, x: Any, start: int, stop: int) -> Any:
        dim = dims.get(name)
        return x if dim is None else x.narrow(dim, start, stop - start)

    bounds = pairwise(batch * i // count for i in range(count + 1))
    return [{name: part(name, x, start, stop) for name, x in inputs.items()} for start, stop in bounds]


def sample_dims(program: Program) -> dict[str, int | None]:
    """For inputs, sites and outputs the dimension in which samples follow one another; None if there is none."""
    names = (*(node.name for node in program.inputs), *program.sites, *program.returned)
    return {name: _sample_dim(program, name) for name in names}


def _sample_dim(program: Program, name: str) -> int | None:
    shape = program[name].shape
    dims = [d for d, size in enumerate(shape) if isinstance(size, Size) and program.batch in size.symbols]
    whole = len(dims) == 1 and times(*shape[: dims[0]]) == program.layout.prefix.get(name)
    return dims[0] if whole else None


def can_split(program: Program) -> bool:
    """Whether the run of a batch can be made from the runs of its parts."""
    if program.batch is None or program.layout.mixed or program.layout.mixed_before:
        return False
    dims = program.derived(sample_dims)
    known = all(dims[name] is not None or name not in program.layout.prefix for name in program.sites)
    return known and all(dims[ref.name] is not None for ref in main_output(program.output, Ref))


def run_parts(run: Callable[[dict[str, Any], Event], Run], parts: list[dict[str, Any]]) -> list[Run]:
    """`run` on every part, on as many threads as torch uses, without threads inside. An error or Ctrl-C ends them all.

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
        with ThreadPoolExecutor(min(threads, len(parts)), thread_name_prefix="spikezip") as pool:
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


def join(runs: list[Run], program: Program) -> Run:
    """The run of a whole batch from the runs of its parts. Those at equilibrium earlier are silent from then on."""
    first, dims = runs[0], program.derived(sample_dims)
    if len(runs) == 1:
        return first
    steps = max(run.steps for run in runs)

    def silent(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(steps - len(x), *x.shape[1:])])

    def lasting(x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(steps - len(x), *x.shape[1:])])

    def by_site(pieces: list[dict[str, Tensor]], before: int) -> dict[str, Tensor]:
        """One tensor for each site from those of the parts, with `before` dimensions in front of its own."""

        def whole(site: str) -> Tensor:
            dim = dims[site]  # None: samples share its neurons
            return pieces[0][site] if dim is None else torch.cat([piece[site] for piece in pieces], before + dim)

        return {site: whole(site) for site in pieces[0]}

    dim = dims[main_output(program.output, Ref)[0].name]
    assert dim is not None  # such a batch is not split
    logits = torch.cat([lasting(run.logits_per_step) for run in runs], dim=1 + dim)
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
