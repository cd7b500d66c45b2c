"""Measurements side by side."""

import csv
import io
from dataclasses import replace

import measured
import pytest

from spikezip.errors import ConfigError
from spikezip.measure.columns import COLUMNS, column
from spikezip.measure.compare import compare, in_latex
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure


@pytest.fixture(scope="module")
def pair() -> list[Measurement]:
    model, qann, snn = measured.networks()
    plain = measure(snn, measured.batches(3), qann, float_model=model, name="plain & simple_", data="noise")
    return [plain, measure(snn, measured.batches(3), qann, stagger=0.5, name="late | [red]", data="noise")]


def test_columns_that_differ_and_those_that_are_there(pair: list[Measurement]) -> None:
    keys = [c.key for c in compare(pair, at=[2]).columns]
    assert keys == [
        "name",
        "stagger",
        "float",
        "qann",
        "snn",
        "snn@2",
        "t_up",
        "within_0.1",
        "t_eq",
        "spikes",
        "power",
        "energy",
    ]
    alone = [c.key for c in compare(pair[1:]).columns]
    assert "stagger" not in alone  # nothing to tell apart
    assert "float" not in alone  # was not measured
    bare = replace(pair[1], over_time=replace(pair[1].over_time, accuracy=None))
    assert [c.key for c in compare([bare], at=[3]).columns][2] == "agreement@3"


def test_values_are_those_of_the_documents(pair: list[Measurement]) -> None:
    first, second = pair
    table = compare(pair, ["float", "snn@2", "spikes@2", "energy@2", "energy", "power", "t_eq_max", "weight_bits"])
    found, late = table.values()
    assert found[0] == first.float_.accuracy * 100
    assert late[0] is None
    assert found[1] == first.over_time.accuracy[1] * 100
    assert found[2] == first.over_time.spikes_per_neuron[1]
    assert found[3] == pytest.approx(sum(first.energy["snn_per_step"][:2]) * 1e3)  # added in another order
    assert found[4] == first.energy["snn"]["total"] * 1e3
    assert found[5:] == [first.energy["paper"]["power_w"], first.latency.t_eq.max, 8]
    far = compare(pair, ["snn@1000", "energy@1000"]).values()
    assert far[0][0] == first.over_time.accuracy[-1] * 100  # it stays
    assert far[0][1] == pytest.approx(first.energy["snn"]["total"] * 1e3)  # the same sums, in another order
    cut = replace(second, latency=replace(second.latency, unsettled=1))
    assert compare([cut], ["snn@1000", "energy@1000"]).values() == [[None, None]]  # nobody knows
    assert compare([cut], ["snn@1000"]).texts() == [["–"]]


def test_every_column_can_be_written(pair: list[Measurement]) -> None:
    table = compare(pair, list(COLUMNS))
    assert all(text for row in table.texts() for text in row)
    assert len(table.csv().splitlines()) == len(table.markdown().splitlines()) - 1 == 3
    empty = replace(pair[0], energy={}, sites=())
    assert compare([empty], ["power", "energy", "energy@2", "per_net"]).values() == [[None] * 4]


def test_csv_reads_back(pair: list[Measurement]) -> None:
    head, first, second = csv.reader(io.StringIO(compare(pair, ["name", "snn", "float", "spikes"]).csv()))
    assert head == ["name", "snn", "float", "spikes"]
    assert second[0] == "late | [red]"
    assert float(first[3]) == pair[0].spikes_per_neuron
    assert second[2] == ""


def test_markdown_and_latex_escape_names(pair: list[Measurement]) -> None:
    table = compare(pair, ["name", "within_1", "t_eq_p99", "snn"])
    lines = table.markdown().splitlines()
    assert lines[1] == "| --- | ---: | ---: | ---: |"
    assert lines[3].startswith("| late \\| [red] |")
    latex = table.latex().splitlines()
    assert latex[1] == r"\begin{tabular}{lrrr}"
    assert latex[3] == r"name & T to QANN $-$1 & T\_eq 99 \% & SNN (\%) \\"
    assert latex[5].startswith(r"plain \& simple\_ & ")
    assert latex[-1] == r"\end{tabular}"
    assert in_latex("a\\b~c^d\n#1 $5 <x>") == (
        r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d \#1 \$5 \textless{}x\textgreater{}"
    )


def test_what_cannot_be_compared(pair: list[Measurement]) -> None:
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare([])
    with pytest.raises(ConfigError, match="no column 'enrgy', did you mean 'energy'"):
        compare(pair, ["name", "enrgy"])
    for wrong in ("snn@0", "snn@x", "levels@3", "snn@"):
        with pytest.raises(ConfigError, match=f"there is no column '{wrong}'; choose among"):
            column(wrong)
    with pytest.raises(ConfigError, match="columns: name at least one"):
        compare(pair, [])
    with pytest.raises(ConfigError, match="steps are whole numbers from 1"):
        compare(pair, at=[0])
