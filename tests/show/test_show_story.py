"""One input played through a network: the last step says what the quantized network says."""

import base64
import json

import pytest
import tiny_models
import torch
from shown import BERT, VIT, networks, story
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from spikezip.data import Pixels
from spikezip.engines import simulate
from spikezip.errors import InputError
from spikezip.models.networks import convert, quantize
from spikezip.quant.calibration import calibrate
from spikezip.show.sample import Token, picture, tokens_of
from spikezip.show.story import tell


@pytest.mark.parametrize("name", list(tiny_models.HEADS))
def test_last_step_is_the_qann(name: str) -> None:
    _, snn, batch = networks(name)
    told = story(name)
    assert told.predictions[-1] == told.qann_prediction
    assert told.probabilities[-1].tolist() == list(told.qann_probabilities)
    assert told.steps == told.t_eq + 1
    single = {key: value[1:2] for key, value in batch.items() if key != "labels"}
    run = simulate(snn, single, steps="equilibrium")
    spikes = torch.stack([counts[:, 0] for counts in run.spike_counts.values()]).sum(dim=0)
    assert torch.tensor([layer.spikes for layer in told.layers]).sum(dim=0).tolist() == spikes.tolist()
    assert sum(layer.neurons for layer in told.layers) == sum(run.neurons.values())
    assert (told.attention is None) == name.startswith("Swin")
    assert ("windows" in told.note) == name.startswith("Swin")
    json.dumps(told.to_json(), allow_nan=False)


def test_what_it_says_at_each_step() -> None:
    _, snn, batch = networks(VIT)
    told = story(VIT)
    logits = simulate(snn, batch["pixel_values"][1:2], steps="equilibrium").logits_per_step[:, 0]
    names = [snn.config.id2label[number] for number in logits.argmax(dim=-1).tolist()]
    assert list(told.predictions) == names
    assert told.truth == "LABEL_2"
    assert sorted(told.classes) == [f"LABEL_{n}" for n in range(5)]
    assert list(told.qann_probabilities) == sorted(told.qann_probabilities, reverse=True)


def test_few_classes_keep_the_answer_and_the_truth() -> None:
    qann, snn, batch = networks(VIT)
    told = tell(snn, batch, qann, sample=1, classes=2, labels=["a", "b", "c", "d", "e"])
    assert len(told.classes) == 2
    assert {told.qann_prediction, "c"} <= set(told.classes)


def test_settings_are_those_of_simulate() -> None:
    qann, snn, batch = networks(VIT)
    graded = tell(snn, batch, qann, sample=1, max_spike=4, engine="spike")
    assert graded.steps < story(VIT).steps
    assert graded.predictions[-1] == story(VIT).qann_prediction
    assert tell(snn, batch, qann, steps=2).t_eq is None


def test_bytes_of_the_page() -> None:
    told = story(VIT)
    plain = told.to_json()
    assert len(base64.b64decode(plain["picture"]["bytes"])) == 32 * 32 * 3
    for one in plain["attention"]["maps"]:
        over_time, qann = (base64.b64decode(one[key]) for key in ("over_time", "qann"))
        assert len(qann) == 16
        assert max(qann) == 255
        assert len(over_time) == 16 * told.steps
        assert over_time[-16:] == qann
    assert len(story(BERT).to_json()["tokens"]) == 5


def test_errors() -> None:
    qann, snn, batch = networks(VIT)
    with pytest.raises(InputError, match="3 labels, but 5 classes"):
        tell(snn, batch, qann, labels=["a", "b", "c"])
    model = tiny_models.make("ViTModel")
    bare = calibrate(quantize(model), tiny_models.inputs(model))
    with pytest.raises(InputError, match="ViTModel gives no choice between classes"):
        tell(convert(bare), tiny_models.inputs(model))
    model = tiny_models.make("BertForQuestionAnswering")
    bare = calibrate(quantize(model), tiny_models.inputs(model))
    with pytest.raises(InputError, match="BertForQuestionAnswering gives no choice between classes"):
        tell(convert(bare), tiny_models.inputs(model))


def test_pictures_come_back_as_they_were() -> None:
    image = torch.randint(0, 256, (1, 3, 9, 7), dtype=torch.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    pixels = Pixels(None, mean, std)(image)[0]
    assert torch.equal(picture(pixels, mean, std), image[0].permute(1, 2, 0))
    stretched = picture(pixels[:1])
    assert (int(stretched.min()), int(stretched.max())) == (0, 255)


def test_tokens_as_words() -> None:
    words = {word: number for number, word in enumerate(["[PAD]", "[CLS]", "play", "##ing", "well"])}
    pieces = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece(words)), cls_token="[CLS]")
    found = tokens_of({"input_ids": torch.tensor([[1, 2, 3, 4]])}, pieces)
    assert found == [Token("[CLS]", special=True), Token("play"), Token("ing", joined=True), Token("well")]

    spaced = {word: number for number, word in enumerate(["<s>", "so", "Ġgood", "ness", "</s>"])}
    bytes_ = Tokenizer(models.BPE(spaced, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, bos_token="<s>", eos_token="</s>")
    found = tokens_of({"input_ids": torch.tensor([[0, 1, 2, 3, 4]])}, tokenizer)
    assert [token.joined for token in found] == [False, False, False, True, False]
    assert [token.special for token in found] == [True, False, False, False, True]
