"""The report: one HTML file that needs no network, to read on a screen, on a phone, on paper."""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from spikezip.errors import InputError
from spikezip.measure.document import Measurement
from spikezip.show import curves, energies
from spikezip.show.chart import Chart, Heat
from spikezip.show.interactive import describe
from spikezip.show.names import agreement_name, percent
from spikezip.show.story import Story
from spikezip.show.tables import tables
from spikezip.version import __version__

LARGEST = 6_000_000  # bytes


def report(measurement: Measurement, path: str | Path, story: Story | None = None) -> Path:
    """Write a report of a measurement, with a story that can be played if one is given.

    The charts are plotly's. Its script comes with this package and is put into the file: 1.5 MB of it. Nothing is
    loaded from anywhere, and no other package is needed.

    Example:
        >>> import spikezip, tempfile, torch, transformers
        >>> from spikezip.measure.measuring import measure
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> qann = spikezip.calibrate(spikezip.quantize(model), torch.randn(2, 3, 32, 32))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = report(measure(spikezip.convert(qann), [torch.randn(2, 3, 32, 32)]), f"{folder}/report.html")
        ...     path.stat().st_size < LARGEST
        True
    """
    page = render(measurement, story)
    size = len(page.encode("utf-8"))
    if size > LARGEST:
        raise InputError(
            f"the report would have {size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}: choose a shorter input"
        )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def render(measurement: Measurement, story: Story | None = None) -> str:
    """The report as text."""
    drawn = charts(measurement)
    found = [*tables(measurement), *energies.energy_tables(measurement), energies.complexity_table(measurement)]
    return _page("report.html").substitute(
        version=escape(__version__),
        title=escape(f"{measurement.name} · spikezip report"),
        name=escape(measurement.name),
        lead=escape(_lead(measurement)),
        css=_file("report.css"),
        js=_file("report.js"),
        plotly=_plotly(),
        certificate=_certificate(measurement.certificate),
        tiles=_tiles(measurement),
        player="" if story is None else _player(story),
        charts=_charts(drawn),
        tables="\n".join(table.to_html(opened=number == 0) for number, table in enumerate(found) if table.rows),
        made=_made(measurement),
        measurement=_json(measurement.to_json()),
        story=_json(None if story is None else story.to_json()),
        figures=_json([{"name": chart.name, **describe(chart)} for chart in drawn]),
    )


def charts(measurement: Measurement) -> list[Chart | Heat]:
    """The charts that a measurement has the numbers for."""
    wanted = (
        curves.accuracy,
        curves.equilibrium,
        energies.against_accuracy,
        energies.by_part,
        curves.firing,
        curves.spikes,
        curves.sites_over_time,
        curves.waste,
    )
    drawn: list[Chart | Heat] = []
    for draw in wanted:
        try:
            drawn.append(draw(measurement))
        except InputError:  # no labels, nothing settled: the summary and the tables say so
            continue
    return drawn


# ---- parts of the page ----


def _lead(one: Measurement) -> str:
    model, data = one.model, one.data
    weights = "float weights" if model.weight_bits is None else f"{model.weight_bits}-bit weights"
    source = f" from {model.source}" if model.source else ""
    where = f" of {data.name}" if data.name else ""
    return (
        f"{model.class_}{source}: {model.parameters:,} parameters, {model.levels} levels, {weights}, "
        f"{model.sites} sites, {model.neurons:,.0f} neurons; {data.samples:,} samples{where}."
    )


def _certificate(certificate: Mapping[str, Any] | None) -> str:
    if certificate is None:
        return _seal("", "not verified here", "Whether the SNN is the QANN, bit for bit, `spikezip verify` tells.")
    compared = (
        f"{certificate['codes']:,} codes compared at {certificate['sites']} sites on {certificate['samples']:,} "
        f"samples, {certificate['mismatches']:,} mismatches"
    )
    settings = certificate.get("settings", {})
    held = ", ".join(str(settings[key]) for key in ("device", "dtype", "backend") if settings.get(key))
    compared += f" ({held})." if held else "."
    if certificate["exact"]:
        return _seal("exact", "exact", f"The SNN is the QANN, bit for bit. {compared}")
    return _seal("differs", "not exact", compared)


def _seal(kind: str, word: str, text: str) -> str:
    return f'<div class="seal {kind}" id="certificate"><strong>{escape(word)}</strong><span>{escape(text)}</span></div>'


def _tiles(one: Measurement) -> str:
    t_eq, latency = one.latency.t_eq, one.latency
    tiles: list[tuple[str, str, str]] = []
    if one.over_time.accuracy is not None:
        tiles.append(("SNN accuracy", percent(one.over_time.accuracy[-1]), f"at T = {one.steps}"))
    if one.qann is not None and one.qann.accuracy is not None:
        tiles.append(("QANN accuracy", percent(one.qann.accuracy), "no time"))
    if one.float_ is not None and one.float_.accuracy is not None:
        tiles.append(("float accuracy", percent(one.float_.accuracy), "before quantization"))
    if one.over_time.agreement is not None:
        tiles.append(("agreement", percent(one.over_time.agreement[-1]), agreement_name(one).removeprefix("agrees ")))
    if t_eq.median is not None:
        tiles.append(("T_eq, median", f"{t_eq.median}", f"99 % {t_eq.p99}, maximum {t_eq.max}"))
    near = latency.within.get("0.1")
    if near is not None:
        tiles.append(("T within 0.1 points", f"{near}", "of the QANN’s accuracy"))
    tiles.append(("spikes per neuron", f"{one.spikes_per_neuron:.2f}", f"until T = {one.steps}"))
    if one.energy:
        spent = energies.energy_of(one)
        against = (
            f"QANN {energies.energy_text(spent.qann.total)}, float {energies.energy_text(spent.float_model.total)}"
        )
        tiles.append(("energy per inference", energies.energy_text(spent.snn.total), against))
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )


def _player(story: Story) -> str:
    right = f" Its class is “{story.truth}”." if story.truth is not None else ""
    rest = (
        f" Its last spike falls at step {story.t_eq}." if story.t_eq is not None else " It had not settled at the end."
    )
    chooser = ""
    if story.attention is not None:
        names = [one.name for one in story.attention.maps]
        chosen = len(names) - 2  # the last layer
        options = "".join(
            f'<option value="{number}"{" selected" if number == chosen else ""}>{escape(name)}</option>'
            for number, name in enumerate(names)
        )
        chooser = f'<select id="map" aria-label="Attention of which layer">{options}</select>'
    return _page("player.html").substitute(
        intro=escape(f"{story.title}.{right}{rest}"), steps=story.steps, chooser=chooser, look=_look(story)
    )


def _look(story: Story) -> str:
    note = story.note
    if story.attention is not None:
        what = "The brighter" if story.picture is not None else "The stronger the colour"
        whose = f"the more attention of {story.attention.source} has accumulated up to this step"
        note = f"{what}, {whose}; full is the QANN’s largest weight."
    note = f'<p class="note">{escape(note)}</p>' if note else ""
    names = ("SNN", "QANN") if story.attention is not None else ()
    if story.picture is not None:
        figures = "".join(
            f'<figure><canvas id="picture-{name.lower()}" role="img" aria-label="{name}"></canvas>'
            f"<figcaption>{name}</figcaption></figure>"
            for name in ("input", *names)
        )
        return f'<div class="pictures">{figures}</div>{note}'
    texts = "".join(
        f'<p class="text-name">{name}</p><p class="text" id="text-{name.lower()}"></p>' for name in names or ("SNN",)
    )
    return texts + note


def _charts(drawn: list[Chart | Heat]) -> str:
    boxes = "".join(
        f'<figure class="card{" wide" if chart.wide else ""}"><h3>{escape(chart.title)}</h3>'
        f'<div class="plot" id="chart-{chart.name}"></div>'
        + (f'<figcaption class="note">{escape(chart.note)}</figcaption>' if chart.note else "")
        + "</figure>"
        for chart in drawn
    )
    return (
        f'<section aria-labelledby="charts"><h2 id="charts">Over time</h2><div class="charts">{boxes}</div></section>'
    )


def _made(one: Measurement) -> str:
    settings = one.settings
    facts = {
        "settings": f"steps {settings.steps}, {settings.engine} engine, {settings.coding} input, largest spike "
        f"{settings.max_spike}, stagger {settings.stagger:g}",
        "device": one.device,
        "versions": ", ".join(f"{name} {version}" for name, version in one.versions.items()),
    }
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class='left'>{escape(text)}</td></tr>" for name, text in facts.items()
    )
    command = one.command or "Called from Python: no command was given."
    button = (
        '<p class="note"><button type="button" data-copy="command">copy command</button></p>' if one.command else ""
    )
    return (
        f'<div class="card"><pre id="command">{escape(command)}</pre>{button}<table class="facts">{rows}</table></div>'
    )


# ---- files ----


def _json(value: Any) -> str:
    """JSON that is safe inside a script element: no name or text can close it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plotly() -> str:
    """Plotly's script, behind its licence, which wants to go wherever it goes.

    The script is one function. In brackets of its own a browser compiles it beside the page; without them it skims it
    there, and compiles it while the page stands still.
    """
    script = _file("plotly-cartesian.min.js").rstrip()
    opening, closing = ", () => {\n", "}));"
    if script.count(opening) == 1 and script.endswith(closing):
        script = script.removesuffix(closing).replace(opening, ", (() => {\n") + "})));"
    return f"/*\n{_file('plotly-LICENSE.txt')}*/\n{script}"


def _file(name: str) -> str:
    return (files("spikezip.show") / "page" / name).read_text(encoding="utf-8")


def _page(name: str) -> Template:
    return Template(_file(name))
