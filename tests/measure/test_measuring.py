"""`measure` against the same numbers counted one by one."""

from typing import Any

import measured
import pytest
import tiny_models
import torch
from torch import Tensor

import spikezip
from spikezip.errors import ConfigError, InputError
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    model, qann, snn = measured.networks()
    return measure(snn, measured.batches(3, 4, 2), qann, float_model=model, data="noise", name="tiny")


@pytest.fixture(scope="module")
def runs() -> list[spikezip.Run]:
    """The same samples, with every spike on record."""
    snn = measured.networks()[2]
    sites = list(snn.neurons)
    data = measured.batches(3, 4, 2)
    return [spikezip.simulate(snn, batch, "equilibrium", record=sites, engine="spike") for batch in data]


def _last_or(train: Tensor, t: int) -> Tensor:
    return train[min(t, len(train)) - 1]


def test_answers_over_time(measurement: Measurement, runs: list[spikezip.Run]) -> None:
    model, qann, _ = measured.networks()
    data = measured.batches(3, 4, 2)
    steps = max(run.steps for run in runs)
    curves = measurement.over_time
    assert curves.step == tuple(range(1, steps + 1))
    for t in curves.step:
        correct = five = agreeing = 0
        for run, batch in zip(runs, data, strict=True):
            expected = qann(batch["pixel_values"]).logits.argmax(-1).tolist()
            for logits, label, same in zip(
                _last_or(run.logits_per_step, t).tolist(), batch["labels"].tolist(), expected, strict=True
            ):
                order = sorted(range(measured.CLASSES), key=lambda c: (-logits[c], c))
                correct += order[0] == label
                five += label in order[:5]
                agreeing += order[0] == same
        assert (curves.accuracy[t - 1], curves.top5[t - 1]) == (correct / 9, five / 9)
        assert curves.agreement[t - 1] == agreeing / 9
    assert curves.agreement_with == "qann"
    assert curves.agreement[-1] == 1.0
    assert curves.agreement[0] < 1.0  # else this test shows little
    right = sum(int((model(b["pixel_values"]).logits.argmax(-1) == b["labels"]).sum()) for b in data)
    assert measurement.float_.accuracy == right / 9
    assert measurement.qann.accuracy == curves.accuracy[-1]
    assert measurement.qann.top5 == curves.top5[-1]


def test_activity_of_every_site(measurement: Measurement, runs: list[spikezip.Run]) -> None:
    neurons = total = 0
    assert [site.name for site in measurement.sites] == list(runs[0].spike_counts)
    for site in measurement.sites:
        # each [T, B, neurons]
        trains = [run.trains[site.name].long().reshape(run.steps, len(run.t_eq), -1) for run in runs]
        fired = [train.abs().sum(dim=0) for train in trains]
        assert site.neurons == trains[0].shape[2]
        assert site.positive == sum(int((t > 0).sum()) for t in trains) / 9
        assert site.negative == sum(int((t < 0).sum()) for t in trains) / 9
        assert site.net == sum(int(t.sum(dim=0).abs().sum()) for t in trains) / 9
        assert site.spikes == sum(int(t.abs().sum()) for t in trains) / 9
        assert site.silent == sum(int((f == 0).sum()) for f in fired) / (9 * site.neurons)
        for t, rate in enumerate(site.rate):
            here = sum(int(train[t].abs().sum()) for train in trains if t < len(train))
            assert rate == here / (9 * site.neurons)
        last = [
            int(train[:, i].abs().sum(dim=1).nonzero().max()) + 1 if train[:, i].any() else 0
            for train in trains
            for i in range(train.shape[1])
        ]
        assert site.t_eq.counts == {str(t): last.count(t) for t in sorted(set(last))}
        neurons += trains[0].shape[2]
        total += sum(int(f.sum()) for f in fired)
    assert measurement.model.neurons == neurons
    assert measurement.spikes_per_neuron == pytest.approx(total / (9 * neurons))
    assert sum(measurement.over_time.firing_rate) == pytest.approx(measurement.spikes_per_neuron)
    assert any(site.negative for site in measurement.sites)


def test_latency(measurement: Measurement, runs: list[spikezip.Run]) -> None:
    t_eq = sorted(t for run in runs for t in run.t_eq if t is not None)
    latency, accuracy = measurement.latency, measurement.over_time.accuracy
    assert (latency.t_eq.min, latency.t_eq.median, latency.t_eq.max) == (t_eq[0], t_eq[4], t_eq[-1])
    assert latency.unsettled == 0
    half = 1 / 7 + (accuracy[-1] - 1 / 7) / 2
    assert accuracy[-1] > 1 / 7
    assert latency.t_up == next(t for t in measurement.over_time.step if accuracy[t - 1] >= half)
    for points, step in latency.within.items():
        least = measurement.qann.accuracy - float(points) / 100 - 1e-9  # a sum of floats: a sample is 1/9
        assert all(a >= least for a in accuracy[step - 1 :])
        assert step == 1 or accuracy[step - 2] < least


def test_what_the_document_says_of_itself(measurement: Measurement) -> None:
    model, _, snn = measured.networks()
    assert measurement.model.class_ == "ViTForImageClassification"
    assert measurement.model.parameters == sum(p.numel() for p in model.parameters())
    assert (measurement.model.levels, measurement.model.weight_bits) == (8, 8)
    assert measurement.model.sites == len(snn.neurons) == len(measurement.sites)
    assert (measurement.data.name, measurement.data.samples, measurement.data.classes) == ("noise", 9, 7)
    assert Measurement.from_json(measurement.to_json()) == measurement
    assert measurement.at("accuracy", 1000) == measurement.over_time.accuracy[-1]
    assert measurement.at("firing_rate", 1000) == 0


def test_batches_and_engines_do_not_matter(measurement: Measurement) -> None:
    model, qann, snn = measured.networks()
    whole = {key: torch.cat([b[key] for b in measured.batches(3, 4, 2)]) for key in ("pixel_values", "labels")}
    other = measure(snn, whole, qann, float_model=model, data="noise", name="tiny", engine="spike")
    for part in ("over_time", "latency", "sites", "qann", "float_", "operations"):
        assert getattr(other, part) == getattr(measurement, part), part


def test_without_a_qann(measurement: Measurement) -> None:
    snn = measured.networks()[2]
    alone = measure(snn, measured.batches(3, 4, 2))
    assert alone.over_time.agreement_with == "equilibrium"
    assert alone.over_time.agreement == measurement.over_time.agreement  # the SNN is the QANN
    assert alone.latency == measurement.latency
    assert alone.qann is None
    cut = measure(snn, measured.batches(3, 4, 2), steps=3)
    assert (cut.over_time.agreement_with, cut.steps, cut.latency.unsettled) == ("last step", 3, 9)
    assert cut.latency.within == {"1.0": None, "0.1": None, "0": None}  # nobody knows where it would end
    assert cut.over_time.accuracy == measurement.over_time.accuracy[:3]
    assert cut.at("accuracy", 4) is None


def test_settings_reach_the_simulation() -> None:
    snn = measured.networks()[2]
    options: dict[str, Any] = {"engine": "folded", "coding": "rate", "max_spike": 2, "stagger": 0.5}
    found = measure(snn, measured.batches(3), **options)
    run = spikezip.simulate(snn, measured.batches(3)[0], "equilibrium", **options)
    assert found.steps == run.steps
    assert found.spikes_per_neuron == pytest.approx(run.spikes_per_neuron)
    assert found.settings.to_json() == {"steps": "equilibrium", **options}


@pytest.mark.parametrize("name", ["ViTModel", "BertForQuestionAnswering", "BertModel"])
def test_outputs_that_are_no_choice(name: str) -> None:
    model = tiny_models.make(name)
    inputs = tiny_models.inputs(model)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), inputs))
    found = measure(snn, inputs)
    assert found.data.classes is None
    assert found.over_time.accuracy is found.over_time.agreement is found.over_time.agreement_with is None
    assert found.latency.t_up is None
    assert found.spikes_per_neuron > 0


def test_answers_for_every_token() -> None:
    """Padding does not count, -100 is no label, and a decoder is asked for the next token."""
    for name, classes in (("BertForTokenClassification", 3), ("LlamaForCausalLM", 99)):
        model = tiny_models.make(name)
        inputs = tiny_models.inputs(model)
        qann = spikezip.calibrate(spikezip.quantize(model), inputs)
        said = qann(**inputs).logits.argmax(-1)  # [3, 9]
        labels = torch.full_like(said, -100)
        shift = int(name == "LlamaForCausalLM")
        labels[0, 1 + shift], labels[1, 2 + shift] = said[0, 1], (said[1, 2] + 1) % classes  # one right, one wrong
        found = measure(spikezip.convert(qann), {**inputs, "labels": labels}, qann)
        assert found.over_time.accuracy[-1] == 0.5, name
        assert found.over_time.agreement[-1] == 1.0
        assert found.data.classes == classes


def test_labels_that_do_not_fit() -> None:
    _, qann, snn = measured.networks()
    seen: list[int] = []

    def broken(labels: Tensor | None) -> list[dict[str, Tensor]]:
        first, second = measured.batches(2, 2)
        second = {"pixel_values": second["pixel_values"], **({} if labels is None else {"labels": labels})}
        return [first, second]

    for labels, message in (
        (torch.tensor([0, 7]), r"batch 1: the label 7 does not fit the head, which has 7 classes \(0 … 6\)"),
        (torch.tensor([-1, 0]), "the label -1 does not fit"),
        (torch.tensor([0.5, 1.0]), "labels are fractions"),
        (torch.tensor([0, 1, 2]), r"labels have shape \(3,\)"),
    ):
        with pytest.raises(InputError, match=message):
            measure(snn, broken(labels), qann, progress=seen.append)
    assert seen == []  # a list is looked through before any work
    with pytest.raises(InputError, match="batch 1: the label 7"):
        measure(snn, iter(broken(torch.tensor([0, 7]))), qann, progress=seen.append)
    assert seen == [2]
    with pytest.raises(InputError, match="batch 1: some batches have labels"):
        measure(snn, broken(None), qann)


def test_what_cannot_be_measured() -> None:
    model, qann, snn = measured.networks()
    with pytest.raises(InputError, match="the data set is empty"):
        measure(snn, [])
    with pytest.raises(InputError, match="the data set is empty"):
        measure(snn, iter(()))
    with pytest.raises(ConfigError, match=r"what spikezip\.convert returns"):
        measure(qann, measured.batches(1))
    with pytest.raises(ConfigError, match=r"qann is what spikezip\.quantize returns"):
        measure(snn, measured.batches(1), model)
    other = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=8)), torch.randn(8, 3, 16, 16))
    with pytest.raises(ConfigError, match="another network than the one that was converted: 'embeddings' differs"):
        measure(snn, measured.batches(1), other)
    strange = tiny_models.make("ViTForImageClassification")
    with pytest.raises(ConfigError, match="the float model has another head"):
        measure(snn, measured.batches(1), float_model=strange)
    with pytest.raises(ConfigError, match="save_every=0"):
        measure(snn, measured.batches(1), save_every=0)
    with pytest.raises(ConfigError, match="engine='warp'"):
        measure(snn, measured.batches(1), engine="warp")
    with pytest.raises(ConfigError, match="steps='soon'"):
        measure(snn, measured.batches(1), steps="soon")


def test_training_mode_comes_back() -> None:
    _, qann, snn = measured.networks()
    qann.train()
    try:
        measure(snn, measured.batches(1), qann)
        assert qann.training
    finally:
        qann.eval()
