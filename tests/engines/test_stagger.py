"""Staggered firing: held stages, equal engines, exact codes, fewer spikes."""

import math
from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor

import spikezip
from spikezip.demo import load_images, load_qann, normalise
from spikezip.engines.engine import Drive
from spikezip.engines.loop import make_engine, step_limit
from spikezip.engines.quantized import quantized_pass
from spikezip.ops import rounding
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Site

MODELS = (
    "ViTForImageClassification",
    "BeitForImageClassification",
    "SwinForImageClassification",
    "BertForSequenceClassification",
    "DistilBertForSequenceClassification",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
)
# (stagger, max_spike, coding, chunk of the folded engine); models go round them, each meets two.
SETTINGS = [
    (0.5, 1, "analog", 4),
    (0.29, 3, "rate", 7),
    (1, 1, "rate", 16),
    (2.5, 2, "analog", 5),
    (0, 2, "rate", 3),
    (0.1, 1, "analog", 9),
]
CASES = [(name, SETTINGS[(2 * i + j) % len(SETTINGS)]) for i, name in enumerate(MODELS) for j in range(2)]


def networks(name: str, levels: int = 16) -> tuple[Any, Any, dict[str, Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)  # text is padded
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=levels)), [batch], "quick").eval()
    return qann, spikezip.convert(qann), batch


@pytest.fixture(scope="module")
def vit() -> tuple[Any, Any, dict[str, Tensor]]:
    return networks("ViTForImageClassification")


def by_the_book(
    network: Frozen, batch: dict[str, Tensor], steps: int, stagger: float, max_spike: int, ramp: int
) -> dict[str, Tensor]:
    """Spikes `[T, …]` of every site from the equation of the neuron and the rule of staggering; no engine's code.

    Every step is a pass of the quantized network, with another rule at its sites.
    """
    program, tracers, trains = network.program, {}, {}
    stages = list(program.sites)
    for step in range(1, steps + 1):

        def site(node: Site, u: Tensor, step: int = step) -> Tensor:
            if node.entry:
                u = u * torch.tensor(min(step, ramp), dtype=u.dtype) / ramp
            before = tracers.setdefault(node.name, torch.zeros_like(u))
            spike = torch.zeros_like(u)
            if step > math.floor(round(stagger * stages.index(node.name), 6)):
                code = rounding.reference.code(u, network.step_size(node.name), node.lo, node.hi)
                spike = (code - before).clamp(-max_spike, max_spike)
            trains.setdefault(node.name, []).append(spike)
            tracers[node.name] = before + spike
            return tracers[node.name]

        quantized_pass(network, batch, site)
    return {name: torch.stack(spikes) for name, spikes in trains.items()}


@pytest.mark.parametrize(("name", "setting"), CASES, ids=[f"{n}-{'-'.join(map(str, s))}" for n, s in CASES])
def test_engines_give_the_spikes_of_the_equation(name: str, setting: tuple[float, int, str, int]) -> None:
    stagger, max_spike, coding, chunk = setting
    _, snn, batch = networks(name)
    drive: dict[str, Any] = {"coding": coding, "max_spike": max_spike, "stagger": stagger}
    more: dict[str, Any] = {"record": list(snn.neurons), "count_neurons": True}
    steps = 20
    book = by_the_book(snn.frozen(), snn.prepare(batch), steps, stagger, max_spike, 16 if coding == "rate" else 1)
    for engine in ("spike", "folded", "event"):
        run = spikezip.simulate(snn, batch, steps, engine, chunk=chunk, **drive, **more)
        assert (run.coding, run.max_spike, run.stagger) == (coding, max_spike, stagger)
        assert list(run.trains) == list(run.tracers) == list(book)
        for site, expected in book.items():
            assert torch.equal(run.trains[site].to(expected), expected), site
            assert torch.equal(run.tracers[site], expected.sum(dim=0)), site
            assert torch.equal(run.neuron_spikes[site].to(expected), expected.abs().sum(dim=0)), site
            counts = expected.abs().reshape(steps, 3, -1).sum(dim=2)
            assert torch.equal(run.spike_counts[site].to(expected), counts), site


@pytest.mark.parametrize(("name", "setting"), CASES, ids=[f"{n}-{'-'.join(map(str, s))}" for n, s in CASES])
def test_the_end_is_exact(name: str, setting: tuple[float, int, str, int]) -> None:
    stagger, max_spike, coding, chunk = setting
    qann, snn, batch = networks(name)
    for engine in ("folded", "spike", "event"):
        certificate = spikezip.verify(
            qann, snn, batch, engine=engine, coding=coding, max_spike=max_spike, stagger=stagger, chunk=chunk
        )
        assert certificate.exact, str(certificate)
        assert certificate.settings["stagger"] == stagger


@pytest.mark.parametrize("name", list(tiny_models.HEADS))
def test_the_first_stage_is_where_the_input_enters(name: str) -> None:
    _, snn, batch = networks(name, levels=4)
    run = spikezip.simulate(snn, batch, 1)
    assert snn.neurons[next(iter(run.tracers))].entry
    assert set(run.tracers) == set(snn.neurons)


def test_a_stage_fires_from_its_step_on_and_not_before(vit: tuple) -> None:
    _, snn, batch = vit
    for stagger in (0.29, 1, 3.5):
        run = spikezip.simulate(snn, batch, "equilibrium", stagger=stagger, chunk=6)
        late = 0
        for stage, (site, counts) in enumerate(run.spike_counts.items()):
            hold = math.floor(round(stagger * stage, 6))
            assert not counts[:hold].any(), site
            late += bool(counts[hold].any())
        assert late > len(run.spike_counts) / 2, "most have waited for that very step"


def test_a_stage_held_back_is_not_taken_for_equilibrium() -> None:
    qann, snn, batch = networks("ViTForImageClassification", levels=4)
    dark = {"pixel_values": torch.zeros_like(batch["pixel_values"])}
    for inputs in (batch, dark):
        for engine in ("folded", "spike", "event"):
            run = spikezip.simulate(snn, inputs, "equilibrium", engine, stagger=9)
            activity = sum(run.spike_counts.values())
            silent = (activity == 0).all(dim=1)
            assert silent[: max(t for t in run.t_eq if t)].any(), "the test shows nothing without a silent step midway"
            assert run.settled
            assert run.steps > 9 * (len(snn.neurons) - 1) == run.free_from - 1
            assert torch.equal(run.logits, qann(**inputs).logits)
    # Cut short in such a silence, nobody claims to know that it is over.
    pause = int(silent.nonzero()[0]) + 1
    short = spikezip.simulate(snn, dark, pause, stagger=9)
    assert short.t_eq == [None, None, None]
    assert not short.settled


def test_the_bound_on_steps_includes_the_delay(vit: tuple) -> None:
    _, snn, batch = vit
    walks = sum(neuron.levels for neuron in snn.neurons.values())

    def limit(**settings: Any) -> int:
        drive = Drive(engine="folded", coding="rate", stagger=2.5, **settings)
        return step_limit(make_engine(snn.frozen(), snn.prepare(batch), drive)[0])

    assert limit(steps="equilibrium") == 16 + walks + math.floor(2.5 * 21) + 1
    assert limit(steps="equilibrium", max_steps=9) == 9
    assert limit(steps=7) == 7


def test_fractions_are_the_numbers_that_were_written() -> None:
    assert Drive(stagger=0.29).hold(100) == 29  # in floats 0.29 · 100 is 28.999999999999996


def test_staggering_lowers_spikes_at_equal_codes() -> None:
    """On a trained network: fewer spikes, more steps, and every code as before."""
    snn = spikezip.convert(load_qann())
    pixels = normalise(load_images()[0][:4])
    runs = [spikezip.simulate(snn, pixels, "equilibrium", stagger=k) for k in (0, 0.25, 0.5, 1)]
    least = sum(float(codes.abs().sum()) for codes in runs[0].tracers.values()) / (4 * sum(runs[0].neurons.values()))
    spikes = [run.spikes_per_neuron for run in runs]
    assert spikes == sorted(spikes, reverse=True)
    assert spikes[0] > 2 * spikes[-1] > 2 * least
    assert [run.steps for run in runs] == sorted(run.steps for run in runs)
    for run in runs[1:]:
        assert torch.equal(run.logits, runs[0].logits)
        for site, codes in runs[0].tracers.items():
            assert torch.equal(run.tracers[site], codes), site


def test_the_last_spike_of_each_site(vit: tuple) -> None:
    _, snn, batch = vit
    run = spikezip.simulate(snn, batch, "equilibrium", stagger=0.5)
    assert run.neuron_spikes == {}
    for site, steps in run.site_t_eq.items():
        for sample, step in enumerate(steps):
            counts = run.spike_counts[site][:, sample]
            assert not counts[step:].any()
            assert step == 0 or counts[step - 1] > 0
    latest = [max(steps) for steps in zip(*run.site_t_eq.values(), strict=True)]
    assert latest == run.t_eq


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, "fast", True, None])
def test_bad_delays_are_refused(vit: tuple, value: Any) -> None:
    qann, snn, batch = vit
    with pytest.raises(spikezip.ConfigError, match=r"stagger=.*a number of steps from 0"):
        spikezip.simulate(snn, batch, stagger=value)
    with pytest.raises(spikezip.ConfigError, match="stagger="):
        spikezip.verify(qann, snn, batch, stagger=value)


@pytest.mark.parametrize("value", [0, -3, 2.0, True])
def test_bad_bounds_are_refused(vit: tuple, value: Any) -> None:
    with pytest.raises(spikezip.ConfigError, match="max_steps="):
        spikezip.simulate(vit[1], vit[2], "equilibrium", max_steps=value)
