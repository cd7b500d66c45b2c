"""Operations counted from spikes are those of a count by hand, and of a count spike by spike."""

from collections import Counter
from typing import Any

import pytest
import tiny_models
import torch
import transformers as tf
from brute_force import CountingEngine, count
from hand_network import IMAGE, SPIKES, make_hand_network

import spikezip
from spikezip.engines.loop import make_engine
from spikezip.errors import ConfigError, InputError
from spikezip.measure.operations import Operations, operations, sites_to_record
from spikezip.program.functions import function_value
from spikezip.program.nodes import Function

SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": 3,
}
WORDS: dict[str, Any] = {**SMALL, "vocab_size": 99, "max_position_embeddings": 16, "pad_token_id": 0}
IMAGES: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 16}
SWIN: dict[str, Any] = {
    "image_size": 20,  # windows of 2 in a grid of 5, then of 3: both are padded
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "window_size": 2,
    "mlp_ratio": 2.0,
    "num_labels": 3,
}
GPT2: dict[str, Any] = {
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_inner": 12,
    "vocab_size": 20,
    "n_positions": 16,
    "pad_token_id": 0,
}
NETWORKS: dict[str, Any] = {
    "vit": lambda: tf.ViTForImageClassification(tf.ViTConfig(**IMAGES, hidden_act="relu")),
    "dinov2": lambda: tf.Dinov2ForImageClassification(tf.Dinov2Config(**IMAGES)),
    "deit, two tokens read": lambda: tf.DeiTForImageClassificationWithTeacher(tf.DeiTConfig(**IMAGES)),
    "swin": lambda: tf.SwinForImageClassification(tf.SwinConfig(**SWIN)),
    "bert": lambda: tf.BertForSequenceClassification(tf.BertConfig(**WORDS)),
    "bert, several texts a sample": lambda: tf.BertForMultipleChoice(tf.BertConfig(**WORDS)),
    "roberta": lambda: tf.RobertaForSequenceClassification(tf.RobertaConfig(**{**WORDS, "pad_token_id": 1})),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2)),
    "llama, shared keys": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**WORDS, num_key_value_heads=1)),
}


def make(name: str, weight_bits: int = 8) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)  # so that attention has something to say
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        batch = {"pixel_values": torch.randn(2, 3, size, size)}
    else:
        ids = torch.randint(5, 20, (2, 3, 6) if "several" in name else (2, 6))
        mask = torch.ones_like(ids)
        ids[1, ..., 4:], mask[1, ..., 4:] = model.config.pad_token_id, 0
        batch = {"input_ids": ids, "attention_mask": mask}
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=8, weight_bits=weight_bits), example=batch)
    return spikezip.convert(spikezip.calibrate(qann, batch)), batch


def check(counted: Operations, slow: CountingEngine, padded: bool) -> None:
    found = {row.name: row for row in counted.products}
    assert {name: row.accumulates for name, row in found.items()} == dict(slow.tally)
    if padded:
        assert {name: row.real_accumulates for name, row in found.items()} == dict(slow.real)
        assert counted.real_accumulates() < counted.accumulates()
    else:
        assert counted.real_accumulates() is None
    for row in found.values():
        assert row.fan_out is not None
        assert row.accumulates == row.spikes * row.fan_out
    assert {row.name: row.spikes for row in counted.layers} == dict(slow.fired)
    by_step = [sum(steps[t] for steps in slow.by_step.values()) for t in range(counted.steps)]
    kinds = ("linear", "scores", "mix")
    assert [sum(counted.per_step[kind][t] for kind in kinds) for t in range(counted.steps)] == by_step
    # A neuron's update may be more than a change of input (it goes on firing), never less.
    for layer in counted.layers:
        assert layer.updates * counted.samples >= slow.changed[layer.name] * layer.neurons
    softmaxes = [row for row in counted.functions if row.kind == "softmax"]
    assert softmaxes
    for row in softmaxes:
        assert row.evaluations >= slow.changed[row.name.removesuffix("softmax") + "p"]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_product_costs_what_really_flows_in(name: str) -> None:
    snn, batch = make(name)
    slow = count(snn, batch)
    for engine in ("folded", "spike", "event"):
        run = spikezip.simulate(
            snn, batch, steps="equilibrium", engine=engine, record=sites_to_record(snn, batch), count_neurons=True
        )
        check(operations(snn, run, batch), slow, padded="attention_mask" in batch)


@pytest.mark.parametrize(
    "settings",
    [{"max_spike": 3}, {"coding": "rate"}, {"stagger": 0.5}, {"max_spike": 2, "stagger": 1, "coding": "rate"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["vit", "bert"])
def test_graded_staggered_and_rate_coded(name: str, settings: dict[str, Any]) -> None:
    snn, batch = make(name)
    slow = count(snn, batch, **settings)
    for engine in ("folded", "spike", "event"):
        run = spikezip.simulate(
            snn, batch, steps="equilibrium", engine=engine, record=sites_to_record(snn), count_neurons=True, **settings
        )
        check(operations(snn, run, batch), slow, padded=name == "bert")


@pytest.mark.parametrize("name", NETWORKS)
def test_functions_are_recomputed_when_their_input_changes(name: str) -> None:
    snn, batch = make(name)
    frozen, drive = snn.frozen(), spikezip.Drive(steps="equilibrium", engine="spike")
    engine, _ = make_engine(frozen, snn.prepare(batch), drive)
    before: dict[str, torch.Tensor] = {}
    changed: Counter[str] = Counter()
    norms = {n.name: n for n in frozen.program.moving if isinstance(n, Function) and "layer_norm" in n.op}

    def look(node: Any, values: Any, *rest: Any) -> Any:
        if node.name in norms:
            now = values[node.reads[0]].reshape(2, -1).clone()
            known = before.get(node.module)
            changed[node.module] += sum(known is None or not torch.equal(known[b], now[b]) for b in range(2))
            before[node.module] = now
        return function_value(node, values, *rest)

    run = spikezip.simulate(snn, batch, drive=drive, record=sites_to_record(snn, batch))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spikezip.engines.walk.function_value", look)
        engine.advance(run.steps)
    evaluations = {row.name: row.evaluations for row in operations(snn, run, batch).functions if row.name in changed}
    assert set(evaluations) == set(changed)
    assert all(changed[module] <= evaluations[module] for module in changed)
    # More only where spikes cancel out, in one step and one place: never in these networks when this was written.
    assert sum(evaluations.values()) <= 1.05 * sum(changed.values())


def test_sixteen_bit_weights_are_one_accumulate() -> None:
    snn, batch = make("vit", weight_bits=16)
    run = spikezip.simulate(snn, batch, steps="equilibrium", record=sites_to_record(snn))
    check(operations(snn, run), count(snn, batch), padded=False)


@pytest.mark.parametrize("name", tiny_models.ALL)
def test_engines_agree_on_every_architecture(name: str) -> None:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=8))
    snn = spikezip.convert(spikezip.calibrate(qann, batch))
    record = sites_to_record(snn)
    counted = []
    for engine, given in (("folded", batch), ("spike", None), ("event", batch)):
        run = spikezip.simulate(snn, batch, steps=6, engine=engine, record=record)
        counted.append(operations(snn, run, given))
    assert counted[0] == counted[1] == counted[2]
    assert all(row.kind != "other" for row in counted[0].functions)
    assert counted[0].untimed == 0
    assert Operations.from_json(counted[0].to_json()) == counted[0]


def test_counted_by_hand() -> None:
    snn = make_hand_network()
    run = spikezip.simulate(snn, IMAGE, steps="equilibrium", record=sites_to_record(snn))
    assert {site: counts.flatten().tolist() for site, counts in run.spike_counts.items()} == SPIKES
    counted = operations(snn, run)
    spent = {row.name.removeprefix("layers.0."): (row.spikes, row.fan_out, row.accumulates) for row in counted.products}
    assert spent == {
        "attention.q_proj": (4, 2, 8),
        "attention.k_proj": (4, 2, 8),
        "attention.v_proj": (4, 2, 8),
        "attention.o_proj": (4, 2, 8),
        "mlp.fc1": (4, 2, 8),
        "mlp.fc2": (2, 2, 4),
        "classifier": (2, 3, 6),  # two of the four spikes in front of it: those of the class token
        "attention.matmul.S_Q·K": (4, 2, 8),
        "attention.matmul.Q·S_K": (4, 2, 8),
        "attention.matmul.Q·K": (4, 2, 8),
        "attention.matmul~2.S_P·V": (4, 2, 8),
        "attention.matmul~2.P·S_V": (12, 2, 24),
        "attention.matmul~2.P·V": (12, 2, 24),
    }
    assert counted.per_step == {
        "linear": (0, 46, 4, 0, 0),  # step 2: 3·8 + 4 + 8 + 4 + 6; step 3: two spikes of o
        "scores": (0, 24, 0, 0, 0),
        "mix": (16, 24, 8, 8, 0),  # 2·2·p + 2·v
        "spikes": (8, 38, 8, 2, 0),
        # Four neurons a site. Step 1: all 12 sites. 2: all. 3: all. 4: those that fired in 3, and o behind p. 5: p.
        "updates": (48, 48, 48, 16, 4),
    }
    assert (counted.n_pre, counted.n_post) == (130, 56)
    functions = {row.name.removeprefix("vit."): row for row in counted.functions}
    # The embedding fires in steps 1, 2 and 3, and feeds all three norms. q and k fire in step 2.
    for name in ("layers.0.layernorm_before", "layers.0.layernorm_after", "layernorm"):
        assert (functions[name].evaluations, functions[name].elements, functions[name].rows) == (3, 12, 6)
    softmax = functions["layers.0.attention.softmax"]
    assert (softmax.evaluations, softmax.elements, softmax.rows) == (2, 8, 4)
    # Two residual sums of 4, three times; biases of seven products and of the input layer, and positions, once.
    added = sum(row.elements for row in counted.functions if row.kind == "add")
    assert added == 2 * 4 * 3 + (6 * 4 + 3) + 2 + 4
    assert counted.function_elements == {
        "add": (8 + 27 + 2 + 4, 8, 8, 0, 0),
        "layernorm": (12, 12, 12, 0, 0),
        "softmax": (4, 4, 0, 0, 0),
    }
    assert counted.function_rows == {"add": (0,) * 5, "layernorm": (6, 6, 6, 0, 0), "softmax": (2, 2, 0, 0, 0)}
    assert (counted.macs("input"), counted.macs("linear"), counted.macs("scores", "mix")) == (8, 6 * 8 + 6, 16)


def test_the_slow_count_agrees_with_the_hand() -> None:
    slow = count(make_hand_network(), IMAGE)
    assert sum(slow.tally.values()) == 130
    assert sum(slow.fired.values()) == 56


def test_what_a_head_reads_is_known_in_sum_without_a_record() -> None:
    snn = make_hand_network()
    run = spikezip.simulate(snn, IMAGE, steps="equilibrium", count_neurons=True)
    counted = operations(snn, run)
    assert (counted.accumulates(), counted.untimed, sum(counted.per_step["linear"])) == (130, 6, 44)
    bare = spikezip.simulate(snn, IMAGE, steps="equilibrium")
    with pytest.raises(InputError, match=r"site 'layernorm' do not all cost the same in classifier.*record="):
        operations(snn, bare)


def test_silent_steps_cost_nothing() -> None:
    snn, batch = make("bert")
    record = sites_to_record(snn)
    short_run = spikezip.simulate(snn, batch, steps="equilibrium", record=record)
    long_run = spikezip.simulate(snn, batch, steps=short_run.steps + 20, record=record)
    short_count, long_count = operations(snn, short_run), operations(snn, long_run)
    assert short_count.products == long_count.products
    assert short_count.layers == long_count.layers
    assert short_count.functions == long_count.functions
    assert all(counts[short_run.steps :] == (0,) * 20 for counts in long_count.per_step.values())


def test_batches_add_up() -> None:
    snn, batch = make("bert")
    record = sites_to_record(snn)

    def counted(rows: slice, tokens: int = 6) -> Operations:
        part = {k: v[rows, :tokens] for k, v in batch.items()}
        run = spikezip.simulate(snn, part, steps="equilibrium", record=record, count_neurons=True)
        return operations(snn, run, part)

    whole, parts = counted(slice(0, 2)), counted(slice(0, 1)) + counted(slice(1, 2))
    assert whole == parts
    shorter = counted(slice(0, 1)) + counted(slice(1, 2), tokens=4)
    scores = next(row for row in shorter.products if row.name.endswith("Q·S_K"))
    assert scores.fan_out is None  # six keys in one batch, four in the other
    assert shorter.samples == 2
    other, images = make("vit")
    run = spikezip.simulate(other, images, steps=3, record=sites_to_record(other))
    with pytest.raises(ConfigError, match="different networks"):
        whole + operations(other, run)


def test_a_run_of_another_network_is_refused() -> None:
    snn, _ = make("vit")
    other, batch = make("bert")
    run = spikezip.simulate(other, batch, steps=3)
    with pytest.raises(InputError, match="run of another network"):
        operations(snn, run)
    with pytest.raises(ConfigError, match=r"what spikezip\.convert returns"):
        operations(torch.nn.Linear(1, 1), run)
