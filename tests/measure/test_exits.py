"""Confidence exit: samples leave when they are sure, the others go on bit for bit, thresholds are the loosest."""

import copy
import itertools
from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor

import spikezip
from spikezip.demo import load_images, load_qann, normalise
from spikezip.measure.exit_calibration import ExitReport, calibrate_exit, report_exit
from spikezip.measure.exit_rule import ExitRule, confidence, ends, exit_steps, loosest_threshold
from spikezip.measure.exits import simulate_until_confident

# (model, settings of the network, patience)
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("ViTForImageClassification", {}, 1),
    ("ViTForImageClassification", {"coding": "rate", "stagger": 0.5}, 2),
    ("SwinForImageClassification", {"max_spike": 2, "stagger": 0.25}, 1),
    ("BeitForImageClassification", {"stagger": 1.0}, 3),
    ("BertForSequenceClassification", {}, 2),
    ("GPT2ForSequenceClassification", {"max_spike": 3}, 1),
    ("LlamaForSequenceClassification", {"coding": "rate"}, 1),
]
NAMES = [f"{name}-{'-'.join(map(str, drive.values()))}" for name, drive, _ in CASES]


def networks(name: str) -> tuple[Any, Any, dict[str, Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=8)), [batch]).eval()
    return qann, spikezip.convert(qann), batch


@pytest.fixture(scope="module")
def vit() -> tuple[Any, Any, dict[str, Tensor]]:
    return networks("ViTForImageClassification")


def spread_rule(run: spikezip.Run, kind: str, patience: int, drive: dict[str, Any]) -> ExitRule:
    """Of all thresholds that matter, one that spreads the samples' exits the furthest."""
    values = confidence(run.logits_per_step, kind).unique()
    signed = values if kind == "margin" else -values
    rules = [ExitRule(kind, float(v), patience, **drive) for v in signed]
    steps = [exit_steps(rule, rule.met(run.logits_per_step), ends(run)) for rule in rules]
    spread = [(len(s.unique()), int(s.max() - s.min())) for s in steps]
    best = max(range(len(rules)), key=spread.__getitem__)
    assert spread[best][0] > 1, "all samples leave together: the test shows nothing"
    return rules[best]


@pytest.mark.parametrize(("name", "drive", "patience"), CASES, ids=NAMES)
@pytest.mark.parametrize("engine", ["folded", "spike", "event"])
def test_an_exit_is_what_the_whole_run_has_at_that_step(
    name: str, drive: dict[str, Any], patience: int, engine: str
) -> None:
    _, snn, batch = networks(name)
    run = spikezip.simulate(snn, batch, "equilibrium", engine, **drive)
    rule = spread_rule(run, "margin" if patience < 3 else "entropy", patience, drive)
    expected = exit_steps(rule, rule.met(run.logits_per_step), ends(run))
    for chunk in (None, 1, 5):
        exits = simulate_until_confident(snn, batch, rule, engine, chunk=chunk)
        assert torch.equal(exits.steps, expected)
        at = exits.steps - 1
        assert torch.equal(exits.logits, run.logits_per_step[at, torch.arange(3)])
        assert torch.equal(exits.answers, exits.logits.argmax(dim=-1))
        gone = torch.arange(1, int(exits.steps.max()) + 1)[:, None] > exits.steps
        assert list(exits.spike_counts) == list(run.spike_counts)
        for site, counts in exits.spike_counts.items():
            assert torch.equal(counts, run.spike_counts[site][: len(gone)].masked_fill(gone, 0)), site
        assert exits.neurons == run.neurons
        assert torch.equal(exits.spikes, sum(counts.sum(dim=0) for counts in exits.spike_counts.values()))


def test_who_is_never_sure_stays_until_equilibrium(vit: tuple) -> None:
    qann, snn, batch = vit
    never = ExitRule("margin", 1e9, stagger=0.5)
    run = spikezip.simulate(snn, batch, "equilibrium", stagger=0.5)
    exits = simulate_until_confident(snn, batch, never)
    assert not exits.confident.any()
    assert torch.equal(exits.logits, qann(**batch).logits)
    assert exits.steps.tolist() == [max(t + 1, run.free_from) for t in run.t_eq]
    assert exits.spikes_per_neuron == run.spikes_per_neuron
    cut = simulate_until_confident(snn, batch, never, max_steps=6)
    assert cut.steps.tolist() == [6, 6, 6]
    assert not cut.confident.any()
    assert torch.equal(cut.logits, run.logits_per_step[5])


def test_nobody_leaves_before_the_first_step_allowed(vit: tuple) -> None:
    _, snn, batch = vit
    always = ExitRule("entropy", 1e9, min_steps=4)
    assert simulate_until_confident(snn, batch, always).steps.tolist() == [4, 4, 4]
    patient = ExitRule("margin", 0.0, patience=3)
    assert simulate_until_confident(snn, batch, patient).steps.tolist() == [3, 3, 3]


def brute_force(scores: Tensor, agrees: Tensor, end: Tensor, share: float, patience: int, min_steps: int) -> float:
    """Try every score as a threshold, from the largest down; stop at the first that falls short."""
    rule = ExitRule("margin", 0.0, patience, min_steps)
    best = None
    for value in scores.unique().flip(0).tolist():
        steps = exit_steps(rule, scores >= value, end)
        if float(agrees.gather(0, steps[None] - 1).double().sum()) < share * len(end) - 1e-9:
            break
        best = steps
    return best if best is not None else end


@pytest.mark.parametrize("seed", range(30))
def test_the_threshold_is_the_loosest(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    steps, samples = 12, 20
    scores = torch.randint(0, 40, (steps, samples), generator=generator).double()  # with ties
    likely = torch.linspace(0.2, 1, steps)[:, None] * (0.5 + scores / 80)
    agrees = torch.rand(steps, samples, generator=generator) < likely
    end = torch.randint(4, steps + 1, (samples,), generator=generator)
    agrees |= torch.arange(1, steps + 1)[:, None] >= end  # at the end all answers are final
    for share, patience, min_steps in itertools.product((0.6, 0.8, 0.9, 1.0), (1, 2), (1, 5)):
        found = loosest_threshold(scores, agrees, end, share, patience, min_steps)
        left = exit_steps(ExitRule("margin", 0.0, patience, min_steps), scores >= found, end)
        assert torch.equal(left, brute_force(scores, agrees, end, share, patience, min_steps))


def test_a_share_that_no_threshold_gives() -> None:
    scores = torch.tensor([[9.0], [1.0]])
    agrees = torch.tensor([[False], [True]])
    found = loosest_threshold(scores, agrees, torch.tensor([2]), share=1.0)
    assert found > 9.0
    assert loosest_threshold(scores, agrees, torch.tensor([2]), 1.0, patience=7) > 9.0


@pytest.mark.parametrize("kind", ["margin", "entropy"])
def test_a_rule_found_on_some_images_serves_others(kind: str) -> None:
    """The trained network: fewer steps and spikes, for an agreement that is told."""
    qann = load_qann().eval()
    snn = spikezip.convert(qann)
    images, labels = load_images()
    pixels = normalise(images)
    rule = calibrate_exit(snn, pixels[:30].split(15), kind=kind, agreement=0.95, patience=2)
    assert rule.found is not None
    assert (rule.found.samples, rule.found.wanted) == (30, 0.95)
    assert rule.found.agreement >= 0.95
    assert rule.found.mean_steps < 0.8 * rule.found.mean_steps_without
    assert ExitRule.from_json(rule.to_json()) == rule

    other = {"pixel_values": pixels[30:45], "labels": labels[30:45]}
    counted: list[int] = []
    report = report_exit(snn, [other], rule, qann, progress=counted.append)
    exits = simulate_until_confident(snn, other, rule)
    final = qann(other["pixel_values"]).logits.argmax(dim=-1)
    assert counted == [15]
    assert report.agreement == float((exits.answers == final).double().mean()) > 0.8
    assert report.accuracy == float((exits.answers == other["labels"]).double().mean())
    assert report.accuracy_without == float((final == other["labels"]).double().mean())
    assert report.steps["mean"] == float(exits.steps.double().mean()) < report.mean_steps_without
    assert report.spikes_per_neuron == pytest.approx(exits.spikes_per_neuron, rel=1e-12)  # sums in another order
    assert report.spikes_per_neuron < report.spikes_per_neuron_without
    if kind == "margin":
        assert report_exit(snn, [other], rule) == report, "the QANN's answers are the spiking network's"
    assert ExitReport.from_json(report.to_json()) == report
    assert "15 samples" in str(report)


def test_what_a_rule_cannot_be() -> None:
    for settings, message in (
        ({"kind": "mood"}, "margin, entropy"),
        ({"patience": 0}, "patience=0"),
        ({"min_steps": 1.5}, "min_steps=1.5"),
        ({"threshold": float("nan")}, "threshold=nan"),
    ):
        with pytest.raises(spikezip.ConfigError, match=message):
            ExitRule(**{"kind": "margin", "threshold": 1.0, **settings})
    with pytest.raises(spikezip.InputError, match="unknown key 'treshold'"):
        ExitRule.from_json({"kind": "margin", "treshold": 1.0})


def test_bad_input_is_refused(vit: tuple) -> None:
    qann, snn, batch = vit
    rule = ExitRule("margin", 1.0)
    for share in (0, 1.5, "most", True):
        with pytest.raises(spikezip.ConfigError, match="agreement="):
            calibrate_exit(snn, batch, agreement=share)
    with pytest.raises(spikezip.ConfigError, match="mood"):
        calibrate_exit(snn, batch, kind="mood")
    with pytest.raises(spikezip.InputError, match="at least one batch"):
        calibrate_exit(snn, [])
    with pytest.raises(spikezip.InputError, match="at least one batch"):
        report_exit(snn, iter([]), rule)
    with pytest.raises(spikezip.ConfigError, match="quantize returns"):
        calibrate_exit(snn, batch, snn)
    with pytest.raises(spikezip.ConfigError, match="convert returns"):
        simulate_until_confident(qann, batch, rule)
    with pytest.raises(spikezip.ConfigError, match="morse"):
        simulate_until_confident(snn, batch, ExitRule("margin", 1.0, coding="morse"))
    with pytest.raises(spikezip.InputError, match="label 7 does not fit the head"):
        report_exit(snn, {**batch, "labels": torch.tensor([0, 1, 7])}, rule)
    with pytest.raises(spikezip.InputError, match="3 of 6 samples have labels"):
        report_exit(snn, [batch, {**batch, "labels": torch.tensor([0, 1, 2])}], rule)
    other = copy.deepcopy(qann)
    with torch.no_grad():
        other.classifier.bias[0] += 1e3  # says 0 to everything
    with pytest.raises(spikezip.InputError, match=r"without any exit only 0\.00%"):
        calibrate_exit(snn, batch, other)


def test_networks_without_one_answer_are_refused() -> None:
    rule = ExitRule("margin", 1.0)
    for name, message in (("ViTModel", "no choice among classes"), ("GPT2LMHeadModel", "an answer for each token")):
        _, snn, batch = networks(name)
        with pytest.raises(spikezip.ConfigError, match=message):
            simulate_until_confident(snn, batch, rule)
        with pytest.raises(spikezip.ConfigError, match=message):
            calibrate_exit(snn, batch)
