"""Hashes of codes: the same for the same answers, however the samples were cut and padded, and for no others."""

import hashlib
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tiny_models
import torch
import transformers as tf
from torch import Tensor, nn

import spikezip
from spikezip.engines import quantized
from spikezip.errors import CheckpointError, InputError
from spikezip.measure.certificate import Certificate, summarize_t_eq
from spikezip.measure.comparison import Comparison
from spikezip.measure.hashes import Hashes, hash_batch, hash_data, hash_network, hashed_by_batch

CHOICES = "BertForMultipleChoice"
NAMES = ("BertForSequenceClassification", "GPT2LMHeadModel", CHOICES)  # GPT-2 has samples and tokens in one dimension
LENGTHS = (9, 5, 8, 3, 6)


def _texts(padded_to: int) -> dict[str, Tensor]:
    """Five texts of unequal length, the same for every length that they are padded to."""
    ids = torch.randint(5, 99, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(3))
    found = {"input_ids": torch.zeros(len(LENGTHS), padded_to, dtype=torch.long)}
    found["attention_mask"] = torch.zeros_like(found["input_ids"])
    for row, length in enumerate(LENGTHS):
        found["input_ids"][row, :length] = ids[row, :length]
        found["attention_mask"][row, :length] = 1
    return found


def _batch(name: str, padded_to: int = 9) -> dict[str, Tensor]:
    texts = _texts(padded_to)
    if name == CHOICES:  # each text beside the next one
        return {key: torch.stack([x, x.roll(1, 0)], dim=1) for key, x in texts.items()}
    return texts


@cache
def _qann(name: str) -> Any:
    torch.manual_seed(0)
    make = {CHOICES: lambda: tf.BertForMultipleChoice(tf.BertConfig(**tiny_models.TEXT)).eval()}
    model = make[name]() if name in make else tiny_models.make(name)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=16), example=_batch(name))
    return spikezip.calibrate(qann, _batch(name)).eval()


def _hashes(qann: Any, batch: dict[str, Any]) -> Hashes:
    network, inputs = qann.frozen(), qann.prepare(batch)
    return hash_batch(network.program, inputs, *quantized(network, inputs))


def _rows(batch: dict[str, Tensor], rows: Any) -> dict[str, Tensor]:
    return {key: x[rows] for key, x in batch.items()}


# ---- what they do not depend on


@pytest.mark.parametrize("name", NAMES)
def test_batches_and_padding_do_not_matter(name: str) -> None:
    qann = _qann(name)
    whole = _hashes(qann, _batch(name))
    assert hashed_by_batch(qann.frozen().program) == []
    assert list(whole.sites) == list(qann.sites)
    assert (whole.samples, whole.batch_size) == (5, 5)

    alone = sum((_hashes(qann, _rows(_batch(name), [i])) for i in range(5)), Hashes())
    assert replace(alone, batch_size=5) == whole
    order = ([4, 0, 2], [3, 1])
    threes = sum((_hashes(qann, _rows(_batch(name, 12), rows)) for rows in order), Hashes())
    assert replace(threes, batch_size=5) == whole
    assert _hashes(qann, _batch(name, 16)) == whole


def test_padding_on_the_left_and_holes() -> None:
    """Where real tokens do not stand at the start: they are the ones that are hashed."""
    qann = _qann("GPT2LMHeadModel")
    network = qann.frozen()
    inputs = qann.prepare(_batch("GPT2LMHeadModel"))
    inputs["attention_mask"][0] = torch.tensor([0, 1, 1, 0, 1, 1, 1, 1, 0])
    output, codes = quantized(network, inputs)
    before = hash_batch(network.program, inputs, output, codes)
    flat = next(name for name in codes if codes[name].shape == (45, 32))  # samples · tokens
    for token, matters in ((0, False), (1, True), (3, False), (4, True), (8, False), (9, True), (14, False)):
        changed = codes[flat].clone()
        changed[token] += 1
        found = hash_batch(network.program, inputs, output, {**codes, flat: changed})
        assert (found.sites[flat] != before.sites[flat]) == matters, token


@pytest.mark.parametrize("engine", ["folded", "spike"])
def test_engine_and_coding_do_not_matter(engine: str) -> None:
    qann = _qann(NAMES[0])
    snn = spikezip.convert(qann)
    batches = [_rows(_batch(NAMES[0]), slice(0, 2)), _rows(_batch(NAMES[0], 16), slice(2, 5))]
    here = spikezip.verify(qann, snn, batches, engine=engine, coding="rate", max_spike=2)
    there = spikezip.verify(qann, snn, _batch(NAMES[0]))
    assert here.exact
    assert here.against(there) is None
    assert Certificate.from_json(here.to_json()) == here
    assert here.program == hash_network(snn.frozen()) == hash_network(qann.frozen())
    assert here.data == hash_data(snn.program, map(snn.prepare, batches))


def test_minus_zero_and_kinds_of_numbers() -> None:
    qann = _linear()
    x, minus = torch.tensor([[0.0, 1, 2, 3]]), torch.tensor([[-0.0, 1, 2, 3]])
    assert torch.signbit(minus[0, 0])
    found = {hash_data(qann.program, [{"input": value}]) for value in (x, minus, x.to(torch.float16))}
    assert len(found) == 1
    assert hash_data(qann.program, [{"input": x + 1}]) not in found


# ---- what they do depend on


def test_a_code_of_padding_does_not_matter_and_every_other_does() -> None:
    qann = _qann(NAMES[0])
    network = qann.frozen()
    inputs = qann.prepare(_batch(NAMES[0]))
    output, codes = quantized(network, inputs)
    before = hash_batch(network.program, inputs, output, codes)
    probabilities = next(name for name in codes if name.endswith(".p"))
    for site, index, matters in (
        (probabilities, (1, 0, 4, 4), True),  # the second text has five tokens
        (probabilities, (1, 0, 5, 4), False),
        (probabilities, (1, 1, 4, 5), False),
        ("embeddings.LayerNorm", (3, 2, 0), True),
        ("embeddings.LayerNorm", (3, 3, 0), False),
    ):
        changed = codes[site].clone()
        changed[index] += 1
        found = hash_batch(network.program, inputs, output, {**codes, site: changed})
        assert [name for name in codes if found.sites[name] != before.sites[name]] == [site] * matters, index
        assert (found.data, found.outputs) == (before.data, before.outputs)


def test_samples_cannot_exchange_their_codes() -> None:
    qann = _linear()
    network, x = qann.frozen(), torch.tensor([[0.1, 1, 2, 3], [3.0, 2, 1, -1]])
    output, codes = quantized(network, {"input": x})
    ((site, code),) = codes.items()
    right = hash_batch(network.program, {"input": x}, output, codes)
    wrong = hash_batch(network.program, {"input": x}, output, {site: code.flip(0)})
    assert not torch.equal(code, code.flip(0))
    assert right.sites[site] != wrong.sites[site]
    assert hash_batch(network.program, {"input": x}, output.flip(0), codes).outputs != right.outputs


def test_a_weight_code_that_changed_is_found_at_the_site_behind_it() -> None:
    qann = _qann(NAMES[0])
    snn, batch = spikezip.convert(qann), _batch(NAMES[0])
    right = spikezip.verify(qann, snn, batch)

    name = "bert.encoder.layer.1.intermediate.dense.weight"
    weight = qann.get_parameter(name)
    kept = weight.detach().clone()
    with torch.no_grad():
        row = weight[0].abs().argmin()
        weight[0, row] += weight[0].abs().max()
    other = spikezip.verify(qann, spikezip.convert(qann), batch)
    with torch.no_grad():
        weight.copy_(kept)

    assert other.exact
    with pytest.raises(InputError, match=r"of another network, [0-9a-f]{12}…; this one is [0-9a-f]{12}…: take"):
        right.against(other)
    difference = right.against(replace(other, program=right.program))  # as if a machine had computed so
    assert difference is not None
    sites = list(qann.sites)
    assert difference.sites[0] == next(site for site in sites if site.startswith("encoder.layer.1.intermediate"))
    assert set(difference.sites) <= set(sites[sites.index(difference.sites[0]) :])
    assert str(difference).startswith(f"first at {difference.sites[0]}; {len(difference.sites)} of {len(sites)} sites")


def test_outputs_alone_may_differ() -> None:
    certificate = _certificate()
    difference = certificate.against(replace(certificate, outputs="0" * 64))
    assert str(difference) == "the outputs differ, the codes of all 1 sites are equal"


# ---- the definition, computed once more


class _Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden, self.second = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, input: Tensor) -> Tensor:
        return self.second(self.hidden(self.first(input)))


@cache
def _linear() -> Any:
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    return spikezip.calibrate(spikezip.quantize(_Linear(), spikezip.QuantConfig(levels=16), example=x), x).eval()


def _certificate(*batches: Tensor) -> Certificate:
    qann = _linear()
    return spikezip.verify(qann, spikezip.convert(qann), list(batches) or torch.ones(2, 4))


def test_the_definition() -> None:
    x = torch.tensor([[0.1, 1, 2, 3], [3.0, 2, 1, -1], [0, 0, 1, 0]])
    network = _linear().frozen()
    output, codes = quantized(network, {"input": x})
    (site,) = codes
    data = outputs = sites = 0
    for row, logits, code in zip(x, output, codes[site], strict=True):
        salt = hashlib.sha256(b"input <f4 16\n" + row.numpy().tobytes()).digest()
        data += int.from_bytes(salt, "big")
        outputs += int.from_bytes(hashlib.sha256(salt + logits.numpy().tobytes()).digest(), "big")
        sites += int.from_bytes(hashlib.sha256(salt + bytes(int(c) for c in code)).digest(), "big")
    found = _certificate(x[:1], x[1:])
    assert (found.data, found.outputs, found.hashes) == (
        f"{data % 2**256:064x}",
        f"{outputs % 2**256:064x}",
        {site: f"{sites % 2**256:064x}"},
    )
    assert (found.by_batch, found.batch_size, found.not_portable) == ([], 2, [])


class _Wide(_Linear):
    def forward(self, input: Tensor) -> Tensor:
        return self.second(torch.atan(self.hidden(self.first(input))))


def test_operations_that_depend_on_the_machine_are_named() -> None:
    x = torch.ones(2, 4)
    qann = spikezip.calibrate(spikezip.quantize(_Wide(), example=x), x).eval()
    assert spikezip.verify(qann, spikezip.convert(qann), x).not_portable == ["atan"]


# ---- networks whose samples see each other


class _Mixed(_Linear):
    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = super().forward(input)
        return found - found.mean(0, keepdim=True)


def test_a_network_that_mixes_samples_is_hashed_batch_by_batch() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    qann = spikezip.calibrate(spikezip.quantize(_Mixed(), example=x), x).eval()
    snn = spikezip.convert(qann)
    threes = spikezip.verify(qann, snn, [x[:3], x[3:]])
    assert threes.by_batch == [*qann.sites, "outputs", "data"]
    assert threes.batch_size == 3
    assert threes.against(spikezip.verify(qann, snn, [x[3:], x[:3]])) is None
    with pytest.raises(InputError, match=r"batches of 6 samples only, by .*; here they have 3: make them as large"):
        threes.against(spikezip.verify(qann, snn, x))
    assert threes.hashes != spikezip.verify(qann, snn, [x[:3].flip(0), x[3:]]).hashes


# ---- what is refused


def test_what_cannot_be_compared_is_refused() -> None:
    one = _certificate()
    with pytest.raises(InputError, match=r"is of 2 samples, here are 3: take as many \(--samples\)"):
        _certificate(torch.ones(3, 4)).against(one)
    with pytest.raises(InputError, match="is of other data: take the same samples"):
        _certificate(torch.zeros(2, 4)).against(one)
    with pytest.raises(InputError, match="has no hashes: make it again"):
        one.against(replace(one, hashes={}))
    with pytest.raises(InputError, match="says NOT exact"):
        one.against(replace(one, exact=False))


def test_a_certificate_of_version_1_is_read() -> None:
    old = {
        "exact": True, "sites": 1, "codes": 2, "samples": 3, "mismatches": 0, "output_mismatches": 0, "unsettled": 0,
        "first_mismatch": None, "t_eq": summarize_t_eq([4]), "settings": {"engine": "spike"},
    }  # fmt: skip
    found = Certificate.from_json(json.dumps(old))
    assert (found.samples, found.program, found.hashes, found.outputs) == (3, None, {}, None)
    assert found == Certificate(**old) == Certificate.from_json(found.to_json())
    for wrong in ({**old, "more": 1}, {k: v for k, v in old.items() if k != "codes"}, [old]):
        with pytest.raises(CheckpointError, match="this is not a spikezip certificate"):
            Certificate.from_json(json.dumps(wrong))
    with pytest.raises(CheckpointError, match=r"has version 3, this spikezip reads 2: upgrade it"):
        Certificate.from_json(json.dumps({**old, "version": 3, "more": 1}))


def test_hashes_of_some_of_the_samples_are_none() -> None:
    """A measurement that an older spikezip began has no hashes of what it did."""
    hashes = Hashes(2, 2, {"a": "1" * 64}, "2" * 64, "3" * 64)
    begun = Comparison.from_json({"sites": 1, "samples": 4})
    snn = spikezip.convert(_linear())
    both = begun + Comparison(sites=1, samples=2, hashes=hashes)
    assert Comparison.from_json(both.to_json()) == both
    found = both.certificate(snn, spikezip.Drive())
    assert (found.hashes, found.outputs, found.data, found.batch_size) == ({}, None, None, None)
    assert Comparison(sites=1, samples=2, hashes=hashes).certificate(snn, spikezip.Drive()).hashes == hashes.sites
