"""A batch made up for a model, and a batch made complete for a program."""

import pytest
import torch
import transformers
from families import FAMILIES, build
from torch import nn

from spikezip.errors import ConfigError, InputError
from spikezip.models.examples import example_inputs
from spikezip.program.batch import complete
from spikezip.program.capture import capture
from spikezip.program.nodes import Input, Program

# One of each sort of input: words, pairs, images, videos, both towers, sound, a spectrogram, boxes, series.
SORTS = ("deberta-v2", "bart", "swinv2", "videomae", "clip", "wav2vec2-padded", "whisper", "layoutlm", "informer")


@pytest.mark.parametrize("name", SORTS)
def test_an_example_has_the_inputs_of_the_family_and_runs(name: str) -> None:
    model = build(name)
    example = example_inputs(model)
    assert set(FAMILIES[name].batch(0)) <= set(example)
    with torch.no_grad():
        model(**example)


@pytest.mark.parametrize("name", ["yolos", "ast"])
def test_a_model_is_captured_with_its_example(name: str) -> None:
    model = build(name)
    found = capture(model, example_inputs(model)).program
    assert found.batch is not None
    assert {node.name for node in found.inputs} == set(example_inputs(model))


def test_text_has_padding_and_ends_as_the_model_expects() -> None:
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    config = transformers.BartConfig(d_model=8, encoder_layers=1, decoder_layers=1, vocab_size=50, **heads)
    example = example_inputs(transformers.BartForSequenceClassification(config))
    mask = example["attention_mask"]
    assert mask.sum(1).tolist() == [9, 6]
    assert (example["input_ids"][mask == 0] == config.pad_token_id).all()
    assert example["input_ids"][1, 5] == 2


def test_token_types_are_given_where_the_configuration_knows_them() -> None:
    assert "token_type_ids" in example_inputs(build("albert"))
    assert "token_type_ids" not in example_inputs(build("gptj"))  # zero would be a word there


def test_an_input_that_the_configuration_does_not_tell_is_asked_for() -> None:
    class Strange(transformers.PreTrainedModel):
        config_class = transformers.PreTrainedConfig
        main_input_name = "thoughts"

        def __init__(self, config: transformers.PreTrainedConfig) -> None:
            super().__init__(config)
            self.layer = nn.Linear(2, 2)

        def forward(self, thoughts: torch.Tensor) -> torch.Tensor:
            return self.layer(thoughts)

    with pytest.raises(ConfigError, match=r"thoughts.*pass example=batch"):
        example_inputs(Strange(transformers.PreTrainedConfig()))


def program(*names: str) -> Program:
    """A program that takes inputs of these names."""
    return Program(tuple(Input(name, (), torch.int64) for name in names), None, {}, None)


IDS = torch.arange(6).view(2, 3)
BERT = program("input_ids", "attention_mask", "token_type_ids")


def test_missing_inputs_get_their_neutral_value() -> None:
    found = complete(BERT, {"input_ids": IDS, "labels": torch.zeros(2), "inputs_embeds": None, "use_cache": True})
    assert list(found) == ["input_ids", "attention_mask", "token_type_ids"]
    assert torch.equal(found["attention_mask"], torch.ones_like(IDS))
    assert torch.equal(found["token_type_ids"], torch.zeros_like(IDS))


def test_positions_do_not_count_padding_on_the_left() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    decoder = program("input_ids", "attention_mask", "position_ids")
    assert complete(decoder, {"input_ids": IDS})["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]
    found = complete(decoder, {"input_ids": IDS, "attention_mask": mask})
    assert found["position_ids"].tolist() == [[0, 0, 1], [0, 1, 2]]


def test_other_inputs_are_named_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"holds 'position_ids'.*example=batch including position_ids"):
        complete(BERT, {"input_ids": IDS, "position_ids": IDS})
    with pytest.raises(InputError, match="holds no 'input_ids'"):
        complete(BERT, {"attention_mask": IDS})
    with pytest.raises(InputError, match="output_attentions=True"):
        complete(BERT, {"input_ids": IDS, "output_attentions": True})


def test_a_mask_that_the_program_does_not_know_is_dropped_if_it_masks_nothing() -> None:
    ones = torch.ones_like(IDS)
    assert set(complete(program("input_ids"), {"input_ids": IDS, "attention_mask": ones})) == {"input_ids"}
    ones[0, 2:] = 0
    with pytest.raises(InputError, match="attention_mask"):
        complete(program("input_ids"), {"input_ids": IDS, "attention_mask": ones})
