"""The complexity table, counted by hand on the network of hand_network.py; its orders, at two lengths of text."""

import json

import tiny_models
from hand_network import IMAGE, make_hand_network

import spikezip
from spikezip.measure.complexity import Complexity, complexity
from spikezip.measure.operations import operations, sites_to_record


def test_counted_by_hand() -> None:
    snn = make_hand_network()
    run = spikezip.simulate(snn, IMAGE, "equilibrium", record=sites_to_record(snn))
    rows = {row.operator: row for row in complexity(snn, run, counted=operations(snn, run))}
    assert list(rows) == ["AW product", "AA product", "softmax", "norm", "neuron"]

    def numbers(operator: str) -> tuple[float, ...]:
        row = rows[operator]
        held = row.weights, row.snn_state, row.qann_state
        return *held, row.snn_bound, row.snn_operations, row.qann_operations

    # Weights: six of 2 × 2, the head's 3 × 2, the input layer's 2 × 4. Outputs: six of 4, 3, 2.
    assert numbers("AW product") == (24 + 6 + 8, 29, 29, 54 * 5 + 8, 50 + 8, 54 + 8)
    # q, k, v and p have four codes each, the mix four sums.
    assert numbers("AA product") == (0, 20, 20, 3 * 16 * 5, 80, 16)
    assert numbers("softmax") == (0, 4, 0, 4 * 5, 8, 4)
    assert numbers("norm") == (0, 12, 0, 12 * 5, 36, 12)
    assert numbers("neuron") == (0, 96, 0, 48 * 5, 164, 48)
    for row in rows.values():
        assert row.snn_operations <= row.snn_bound
        assert Complexity.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_state_grows_with_length_as_the_paper_says() -> None:
    model = tiny_models.make("BertModel")
    batch = tiny_models.inputs(model, size=1, tokens=8)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), batch))
    held: dict[int, dict[str, int]] = {}
    for tokens in (8, 16):
        batch = tiny_models.inputs(model, size=1, tokens=tokens)
        run = spikezip.simulate(snn, batch, 2, count_neurons=True)
        held[tokens] = {row.operator: row.snn_state for row in complexity(snn, run, batch)}
    assert held[16]["softmax"] == 4 * held[8]["softmax"]  # n²
    assert held[16]["norm"] == 2 * held[8]["norm"]  # n·d
