"""Tuning: trials are what a run that stops there costs, the frontier is the frontier, nothing is lost on the way."""

from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor

import spikezip
from spikezip.measure import tuning
from spikezip.measure.energy import energy
from spikezip.measure.operations import operations, sites_to_record
from spikezip.measure.tuning import Trial, Tuning, tune


def network(name: str) -> tuple[Any, list[dict[str, Tensor]]]:
    model = tiny_models.make(name)
    batches = [tiny_models.inputs(model, seed=seed) for seed in (7, 8, 9)]
    return spikezip.convert(
        spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), batches)
    ), batches


@pytest.fixture(scope="module")
def vit() -> tuple[Any, list[dict[str, Tensor]]]:
    return network("ViTForImageClassification")


@pytest.mark.parametrize("agreement", [0.7, 1.0, None])
def test_a_trial_is_what_a_run_that_stops_there_costs(vit: tuple, agreement: float | None) -> None:
    snn, batches = vit
    labels = [torch.tensor([0, 1, 2]), torch.tensor([4, 4, 4]), torch.tensor([3, 4, 0])]
    labelled = [{**batch, "labels": label} for batch, label in zip(batches, labels, strict=True)]
    tuning = tune(snn, labelled, [0, 0.75], [1, 3], agreement=agreement)
    assert [(t.stagger, t.max_spike) for t in tuning.trials] == [(0.0, 1), (0.0, 3), (0.75, 1), (0.75, 3)]
    assert (tuning.planned, tuning.samples) == (4, 9)
    assert max(trial.steps for trial in tuning.trials) > 10, "answers that are final at once show nothing"
    for trial in tuning.trials:
        drive: dict[str, Any] = {"max_spike": trial.max_spike, "stagger": trial.stagger}
        settled = [spikezip.simulate(snn, batch, 200, **drive) for batch in batches]
        assert trial.t_eq == max(t for run in settled for t in run.t_eq if t is not None)
        said = torch.cat([run.logits_per_step.argmax(dim=-1) for run in settled], dim=1)  # [200, 9]
        share = (said == said[-1]).double().mean(dim=1)
        if agreement is None:
            assert trial.steps == trial.t_eq
        else:
            assert share[trial.steps - 1 :].min() >= agreement - 1e-9
            assert trial.steps == 1 or share[trial.steps - 2] < agreement
        assert trial.agreement == share[trial.steps - 1]
        assert trial.accuracy == float((said[trial.steps - 1] == torch.cat(labels)).double().mean())

        spikes, joules = 0.0, 0.0
        for batch in batches:
            run = spikezip.simulate(snn, batch, trial.steps, record=sites_to_record(snn), **drive)
            spikes += run.spikes_per_neuron / 3
            joules += energy(operations(snn, run)).snn.total / 3
        # Sums of floats in another order.
        assert trial.spikes == pytest.approx(spikes, rel=1e-12)
        assert trial.energy_j == pytest.approx(joules, rel=1e-9)
        assert trial.spikes <= trial.spikes_settled
        assert trial.energy_j <= trial.energy_settled_j


def trial(stagger: float, steps: int, spikes: float) -> Trial:
    return Trial(stagger, 1, steps, spikes, None, 1.0, None, steps, spikes, None)


@pytest.mark.parametrize("seed", range(10))
def test_the_frontier_holds_what_nothing_beats(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(1, 12, (20, 2), generator=generator).tolist()
    trials = tuple(trial(float(i), steps, float(cost)) for i, (steps, cost) in enumerate(numbers))
    tuning = Tuning("spikes", 0.99, 1, "folded", "analog", 20, trials)
    frontier = tuning.frontier()
    points = {(t.steps, t.spikes) for t in trials}
    unbeaten = {p for p in points if not any(o != p and o[0] <= p[0] and o[1] <= p[1] for o in points)}
    assert [(t.steps, t.spikes) for t in frontier] == sorted(unbeaten)
    for steps in range(1, 14):
        within = [t.spikes for t in trials if t.steps <= steps]
        best = tuning.best(steps=steps)
        assert (best and best.spikes) == (min(within) if within else None)
    for budget in range(14):
        within = [t.steps for t in trials if t.spikes <= budget]
        best = tuning.best(budget=budget)
        assert (best and best.steps) == (min(within) if within else None)
    assert Tuning.from_json(tuning.to_json()) == tuning
    with pytest.raises(spikezip.ConfigError, match="either steps"):
        tuning.best()
    with pytest.raises(spikezip.ConfigError, match="either steps"):
        tuning.best(3, 1.0)


def test_padded_text_and_all_engines() -> None:
    snn, batches = network("BertForSequenceClassification")
    drive: dict[str, Any] = {"coding": "rate", "agreement": None}
    found = [tune(snn, batches[:2], [0, 0.5], [2], engine=engine, **drive) for engine in ("folded", "spike", "event")]
    assert found[0].trials == found[1].trials == found[2].trials
    alone = tune(snn, batches[:2], [0.5], [2], cost="spikes", **drive)
    assert alone.trials[0].energy_j is None
    assert alone.trials[0].spikes == found[0].trials[1].spikes


def test_a_network_without_a_head_is_judged_by_equilibrium() -> None:
    snn, batches = network("ViTModel")
    with pytest.raises(spikezip.ConfigError, match="agreement=None"):
        tune(snn, batches)
    (only,) = tune(snn, batches[0], [0], [1], agreement=None).trials
    assert only.steps == only.t_eq
    assert only.agreement is None


def test_what_is_done_is_kept_when_it_is_cut_short(vit: tuple) -> None:
    snn, batches = vit
    kept: list[Tuning] = []

    def impatient(done: int) -> None:
        if done > 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(snn, batches, [0, 1], [1], cost="spikes", progress=impatient, watch=kept.append)
    assert len(kept) == 1
    assert (len(kept[0].trials), kept[0].planned) == (1, 2)


def test_bad_input_is_refused_before_any_run(vit: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batches = vit
    monkeypatch.setattr(tuning, "simulate", lambda *args, **kwargs: pytest.fail("it ran"))
    for settings, message in (
        ({"staggers": [0, -1]}, "stagger=-1"),
        ({"staggers": []}, r"staggers=\[\]"),
        ({"staggers": 0.5}, "staggers=0.5"),
        ({"max_spikes": [1, 0]}, "max_spike=0"),
        ({"max_spikes": [1.5]}, "max_spike=1.5"),
        ({"cost": "money"}, "energy, spikes"),
        ({"agreement": 0}, "agreement=0"),
        ({"agreement": 99}, "agreement=99"),
        ({"engine": "quantum"}, "folded, spike"),
        ({"coding": "morse"}, "analog, rate"),
    ):
        with pytest.raises(spikezip.ConfigError, match=message):
            tune(snn, batches, **settings)
    with pytest.raises(spikezip.InputError, match="at least one batch"):
        tune(snn, [])
    with pytest.raises(spikezip.ConfigError, match="convert returns"):
        tune(tiny_models.make("ViTModel"), batches)
    with pytest.raises(spikezip.InputError, match="label 9 does not fit the head"):
        tune(snn, {**batches[0], "labels": torch.tensor([0, 9, 1])})
