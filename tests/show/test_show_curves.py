"""Charts: both renderers draw the measurement's own numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
from shown import BERT, measured

from spikezip.errors import ConfigError, InputError
from spikezip.measure.document import Measurement
from spikezip.show import curves, energies, need
from spikezip.show.chart import Chart, Series

CHARTS = [curves.accuracy, curves.firing, curves.spikes, energies.against_accuracy]


@pytest.mark.parametrize("draw", CHARTS)
def test_both_draw_the_same_numbers(draw: object) -> None:
    chart = draw(measured())
    static = {line.get_label(): list(line.get_ydata()) for line in chart.figure().axes[0].lines}
    for trace in chart.plotly().data:
        if trace.name in static:
            assert list(trace.y) == static[trace.name]
    assert {series.name for series in chart.series} <= {trace.name for trace in chart.plotly().data}
    assert chart.figure().axes[0].get_xlabel() == chart.x_label == chart.plotly().layout.xaxis.title.text


def test_accuracy() -> None:
    one = measured()
    chart = curves.accuracy(one)
    assert one.over_time.accuracy is not None
    assert chart.series[0].y == one.over_time.accuracy
    assert chart.lines[0].at == one.qann.accuracy
    unlabelled = replace(one, over_time=replace(one.over_time, accuracy=None, top5=None), qann=None)
    assert [series.name for series in curves.accuracy(unlabelled).series] == ["agrees with the QANN"]
    silent = replace(one, over_time=replace(unlabelled.over_time, agreement=None))
    with pytest.raises(InputError, match="neither accuracy nor agreement"):
        curves.accuracy(silent)
    both = curves.accuracy(one, replace(one, name="other"))
    assert [series.name for series in both.series] == [one.name, "other"]


def test_equilibrium() -> None:
    one = measured()
    (series,) = curves.equilibrium(one).series
    assert {str(int(step)): int(n) for step, n in zip(series.x, series.y, strict=True) if n} == one.latency.t_eq.counts
    assert sum(series.y) == one.data.samples
    nothing = replace(one.latency, t_eq=replace(one.latency.t_eq, counts={}), unsettled=3)
    with pytest.raises(InputError, match="no sample had settled"):
        curves.equilibrium(replace(one, latency=nothing))


def test_levels_are_ordered() -> None:
    many, few = (replace(measured(), model=replace(measured().model, levels=n)) for n in (32, 8))
    assert [series.name for series in curves.levels([many, few]).series] == ["8 levels", "32 levels"]
    with pytest.raises(InputError, match="no measurement"):
        curves.levels([])


def test_sites_and_waste() -> None:
    one = measured(BERT)
    heat = curves.sites_over_time(one)
    assert heat.values == tuple(site.rate for site in one.sites)
    assert [name for _, name in heat.ticks] == ["embeddings", "layer 0", "layer 1", "classifier"]
    image = heat.figure().axes[0].images[0].get_array()
    assert image.tolist() == [list(row) for row in heat.values]
    assert [list(row) for row in heat.plotly().data[0].z] == [list(row) for row in heat.values]
    up, down, net = curves.waste(one).series
    assert [u + d for u, d in zip(up.y, down.y, strict=True)] == pytest.approx([s.spikes_per_neuron for s in one.sites])
    assert all(n <= u + d + 1e-9 for u, d, n in zip(up.y, down.y, net.y, strict=True))


def test_energy_adds_up() -> None:
    one = measured()
    spent = energies.energy_of(one)
    chart = energies.against_accuracy(one)
    size, unit = energies.unit_for(spent.snn.total)
    assert unit in chart.x_label
    assert chart.series[0].x[-1] * size == pytest.approx(spent.snn.total)  # sums of floats, in another order
    parts = energies.by_part(one)
    totals = [sum(values) for values in zip(*(series.y for series in parts.series), strict=True)]
    assert totals[0] / totals[2] == pytest.approx(spent.snn.total / spent.qann.total)
    tables = {table.name: table for table in energies.energy_tables(one)}
    assert tables["energy"].rows[-1][0] == "total"
    again = Measurement.from_json(one.to_json())
    assert energies.energy_tables(again) == energies.energy_tables(one)
    assert energies.complexity_table(again) == energies.complexity_table(one)
    with pytest.raises(InputError, match="no energy was measured"):
        energies.by_part(replace(one, energy={}))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
def test_files(tmp_path: Path, suffix: str) -> None:
    for chart in (curves.accuracy(measured()), curves.sites_over_time(measured())):
        path = chart.save(tmp_path / "new" / f"{chart.name}.{suffix}")
        starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}
        assert path.read_bytes().lower().startswith(starts[suffix].lower())


def test_wrong_charts(tmp_path: Path) -> None:
    chart = Chart("a", "A", "x", "y", (Series("one", (1, 2), (3, 4)),))
    with pytest.raises(ConfigError, match=r"chart.doc: a chart is written as .png, .svg, .pdf or .html"):
        chart.save(tmp_path / "chart.doc")
    with pytest.raises(ConfigError, match="'one' has 1 x values and 2 y values"):
        Series("one", (1,), (3, 4))


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(need, "find_spec", lambda name: None)
    chart = curves.accuracy(measured())
    with pytest.raises(ConfigError, match=r"pictures need matplotlib: pip install 'spikezip\[show\]'"):
        chart.figure()
    with pytest.raises(ConfigError, match=r"pictures need plotly: pip install"):
        chart.plotly()
