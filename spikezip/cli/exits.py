"""`spikezip exits`: let samples leave when their answer is sure, and say what that costs and saves."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spikezip.cli import data as samples_of
from spikezip.cli.exits_shown import ALL, EVEN, ODD, show
from spikezip.cli.folders import load, locate
from spikezip.cli.options import (
    BatchSizeOption,
    CodingOption,
    DataOption,
    DeviceOption,
    EngineOption,
    MaxSpikeOption,
    SamplesOption,
    StaggerOption,
    one_of,
)
from spikezip.cli.options import device as read_device
from spikezip.cli.options import steps as read_steps
from spikezip.cli.screen import progress, say
from spikezip.cli.tune import read_numbers
from spikezip.data import Split
from spikezip.engines import resolve_engine
from spikezip.errors import ConfigError, InputError
from spikezip.measure.comparison import check_counterpart
from spikezip.measure.exit_calibration import check_agreement, watch_confidence
from spikezip.measure.exit_document import ExitData, ExitDocument
from spikezip.measure.exit_report import report_exits
from spikezip.measure.exit_rule import KINDS, ExitRule
from spikezip.measure.exits import check_head
from spikezip.measure.journal import fingerprint
from spikezip.version import versions


def exits(
    ctx: typer.Context,
    snn: Annotated[str, typer.Argument(metavar="SNN", help="A spiking network: a folder, or a name on the Hub.")],
    data: DataOption,
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            metavar="PATH",
            show_default="every other sample of --data",
            help="Other samples, to report on; --data is then for calibration alone.",
        ),
    ] = None,
    qann: Annotated[
        str | None, typer.Option("--qann", metavar="FOLDER", help="Its QANN: final answers are then its own.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            callback=one_of("kind", KINDS),
            metavar="|".join(KINDS),
            help="Sure is: the largest output leads by so much, or the entropy of the softmax is so low.",
        ),
    ] = "margin",
    agreement: Annotated[
        str,
        typer.Option(
            "--agreement",
            metavar="SHARE,…",
            help="The share of samples that must leave with their final answer; several give a row each.",
        ),
    ] = "0.99",
    thresholds: Annotated[
        str | None,
        typer.Option("--thresholds", metavar="X,X,…", help="Calibrate nothing: report on these thresholds."),
    ] = None,
    patience: Annotated[int, typer.Option("--patience", min=1, metavar="N", help="Sure for N steps on end.")] = 1,
    rule: Annotated[
        Path | None,
        typer.Option("--rule", metavar="FILE", help="Calibrate nothing: report on the rules that --json wrote."),
    ] = None,
    steps: Annotated[
        str,
        typer.Option("--steps", metavar="N|equilibrium", help="Nobody stays longer than N, or until nothing fires."),
    ] = "equilibrium",
    engine: EngineOption = "auto",
    coding: CodingOption = "analog",
    max_spike: MaxSpikeOption = 1,
    stagger: StaggerOption = 0,
    samples: SamplesOption = None,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write rules and reports to this file; see --rule.")
    ] = None,
) -> None:
    """Find when a sample may leave before equilibrium, and report on other samples what that costs and saves.

    The threshold is the loosest one with which enough samples of --data leave with their final answer. Labels are not
    needed; where --test has some, accuracy is reported, too. docs/exits.md says more.

    [bold]Example[/]

    [green]spikezip exits ./snn --data validation.npz --test test.npz --json rule.json[/]

    [green]spikezip exits ./snn --data dev.tsv --agreement 0.9,0.95,0.99,0.999 --patience 2[/]

    [green]spikezip exits ./snn --data other.tsv --rule rule.json[/]
    """
    given = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", None) == "COMMANDLINE"}
    _check_options(given, json_file)
    shares, where = _shares(agreement), read_device(device)
    asked: dict[str, Any] = {"kind": kind, "patience": patience, "steps": read_steps(steps), "coding": coding}
    asked |= {"max_spike": max_spike, "stagger": float(stagger)}
    known = None if rule is None else _read_rule(rule, asked, given)
    if known is not None and known.steps is not None:
        asked["steps"] = known.steps
    drive = ExitRule(threshold=0.0, **{name: value for name, value in asked.items() if name != "steps"})
    rules = () if known is None else known.rules
    if thresholds is not None:
        rules = tuple(replace(drive, threshold=number) for number in read_numbers("thresholds", thresholds))
    to_calibrate, to_report, used = _divide(data, test, samples, calibrate=not rules)

    network = load(snn, "snn").to(where)
    engine, _ = resolve_engine(network.frozen(), network.program.layout, engine)
    head = check_head(network)
    if to_report.labels is not None:
        labels = samples_of.label_tensor(to_report.labels, network.config)
        head.check_classes(labels, f"--data {data}" if test is None else f"--test {test}")
    of_network = fingerprint(network)
    if known is not None:
        known.check_network(of_network, f"--rule {rule}")
    reference = None if qann is None else load(qann, "qann").to(where)
    if reference is not None:
        check_counterpart(network, reference)

    cap = None if asked["steps"] == "equilibrium" else asked["steps"]
    settings: dict[str, Any] = {"engine": engine, "max_steps": cap}
    if to_calibrate is not None:
        with progress("calibrating", len(to_calibrate)) as done:
            batches = samples_of.batches(to_calibrate, network, locate(snn), batch_size)
            drives = {name: value for name, value in asked.items() if name not in ("kind", "steps")}
            watched = watch_confidence(network, batches, reference, kind, progress=done, **drives, **settings)
        rules = tuple(watched.rule(share) for share in shares)
    with progress("reporting", len(to_report)) as done:
        batches = samples_of.batches(to_report, network, locate(snn), batch_size)
        reports = report_exits(network, batches, rules, reference, progress=done, **settings)
    document = ExitDocument(
        rules=rules,
        snn=snn,
        qann=qann,
        fingerprint=of_network,
        steps=asked["steps"],
        engine=engine,
        calibration=known.calibration if known is not None else used[0],
        reported=used[1],
        reports=reports,
        command=shlex.join(["spikezip", *sys.argv[1:]]),
        versions=versions(),
    )
    if json_file is not None:
        document.save(json_file)
    show(document)
    if json_file is not None:
        say(f"rule{'s' if len(rules) > 1 else ''} and report → {json_file}")


def _check_options(given: set[str], json_file: Path | None) -> None:
    """Options that exclude each other, before anything is read."""
    without = [name for name in ("rule", "thresholds") if name in given]
    if len(without) > 1:
        raise ConfigError("--rule and --thresholds: give one of them")
    for other in ("agreement", "test"):
        if without and other in given:
            why = "name the samples to report on with --data" if other == "test" else "there is no threshold to find"
            raise ConfigError(f"--{other}: with --{without[0]} nothing is calibrated; {why}")
    if json_file is not None and json_file.is_dir():
        raise ConfigError(f"--json {json_file} is a folder; a file is needed")


def _shares(text: str) -> list[float]:
    shares = read_numbers("agreement", text)
    for share in shares:
        try:
            check_agreement(share)
        except ConfigError:
            raise ConfigError(f"--agreement {share:g}: a share of the samples, above 0 and at most 1") from None
    return list(dict.fromkeys(shares))


def _read_rule(file: Path, asked: dict[str, Any], given: set[str]) -> ExitDocument:
    """The rules of a file. What was asked for must be what they were found with; the rest is taken from them."""
    try:
        document = ExitDocument.load(file)
    except InputError as error:
        raise InputError(f"--rule {error}") from None
    first = document.rules[0]
    for name in asked:
        theirs = document.steps if name == "steps" else getattr(first, name)
        if name in given and theirs is not None and asked[name] != theirs:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} {asked[name]}: --rule {file} was found with --{option} {theirs}")
    return document


def _divide(
    data: str, test: str | None, limit: int | None, calibrate: bool
) -> tuple[samples_of.Samples | None, samples_of.Samples, tuple[ExitData | None, ExitData]]:
    """Samples to calibrate on, samples to report on, and what to call both."""
    found = samples_of.read(data)
    found = _take(found, range(min(len(found), limit or len(found))))
    if not calibrate:
        return None, found, (None, ExitData(data, ALL, len(found)))
    if test is not None:
        try:
            other = samples_of.read(test)
        except InputError as error:
            raise InputError(str(error).replace("--data", "--test", 1)) from None
        other = _take(other, range(min(len(other), limit or len(other))))
        return found, other, (ExitData(data, ALL, len(found)), ExitData(test, ALL, len(other)))
    if len(found) < 2:
        raise InputError(f"--data {data} is one sample, which cannot be split: give more, or --test")
    halves = _take(found, range(0, len(found), 2)), _take(found, range(1, len(found), 2))
    return *halves, (ExitData(data, ODD, len(halves[0])), ExitData(data, EVEN, len(halves[1])))


def _take(samples: samples_of.Samples, which: range) -> samples_of.Samples:
    part = slice(which.start, which.stop, which.step)
    images = samples.images
    return replace(
        samples,
        texts=samples.texts[part],
        images=images.take(which) if isinstance(images, Split) else images[part],
        labels=None if samples.labels is None else samples.labels[part],
    )
