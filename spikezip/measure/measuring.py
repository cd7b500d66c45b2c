"""The verb `measure`: a data set through the spiking network, batch by batch, and all its numbers as one document."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikezip.engines import Drive, SpikingNetwork, resolve_engine
from spikezip.engines.engine import driven
from spikezip.errors import ConfigError, InputError
from spikezip.measure.answers import Head
from spikezip.measure.certificate import Certificate
from spikezip.measure.comparison import check_counterpart
from spikezip.measure.devices import device_name
from spikezip.measure.document import Data, Measurement, Settings
from spikezip.measure.energy import EnergyModel
from spikezip.measure.journal import RESULT, Journal, fingerprint
from spikezip.measure.one_batch import OneBatch, evaluating, labels_of
from spikezip.measure.processes import Processes
from spikezip.measure.summary import costs, model_facts, numbers
from spikezip.measure.tally import Tally
from spikezip.program.batch import Batch, as_batches
from spikezip.quant.network import QuantizedNetwork
from spikezip.version import versions

TO_EQUILIBRIUM = Drive(steps="equilibrium")
# What a measurement that is resumed must have in common with the one that was stopped; the rest changes speed only.
IDENTITY = ("steps", "engine", "coding", "max_spike", "stagger", "max_steps")


@torch.no_grad()
def measure(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedNetwork | None = None,
    *,
    drive: Drive = TO_EQUILIBRIUM,
    float_model: nn.Module | None = None,
    energy_model: EnergyModel | None = None,
    certificate: Certificate | None = None,
    device: torch.device | str | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    save_every: int = 10,
    progress: Callable[[int], None] | None = None,
    name: str | None = None,
    data: str | None = None,
    source: str | None = None,
    command: str | None = None,
    **settings: Any,
) -> Measurement:
    """Run a data set through a spiking network and put down what happened.

    One batch is held at a time, and sums of a fixed size; so the data may be as large as it likes. In several
    processes (`accelerate launch`, `torchrun`) each takes its share of the batches, and all return the same document.

    Args:
        snn: what `spikezip.convert` made.
        batches: dicts of model inputs, with "labels" where accuracy is wanted.
        qann: the network that `snn` came from; agreement is then with its own answers, and the codes of every site are
            compared with its codes, as `verify` does: the document has a certificate. With a fixed number of steps it
            has one only if every sample settled in them: before that, codes are not final. Left out, agreement is with
            the spiking network when it has settled, which is the same if `verify` says so.
        drive: how the network is driven, by default to equilibrium; fields of `Drive` may also be given by name.
        float_model: the network before quantization; its accuracy on the same samples stands beside.
        energy_model: energies per operation; by default those of 45 nm that the paper uses.
        certificate: what `verify` said, for a document without `qann`; with it, this run says it.
        device: where to compute; networks are moved there. By default where `snn` is.
        folder: keeps the state after every `save_every` batches, and the document in the end.
        resume: go on with the state in `folder`. It ends in the document of a run that was never stopped.
        progress: called after each batch with the number of samples that this process has done.
        name, data, source, command: names for network and data set, where the network came from, what was typed.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> qann = spikezip.calibrate(spikezip.quantize(model), torch.randn(2, 3, 32, 32))
        >>> batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
        >>> measurement = measure(spikezip.convert(qann), [batch], qann)
        >>> measurement.data.samples, measurement.over_time.agreement[-1], measurement.certificate["exact"]
        (2, 1.0, True)
    """
    networks = {"snn": snn, "qann": qann, "float": float_model}
    drive = driven(drive, settings)
    _check_networks(snn, qann, float_model)
    if isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 1:
        raise ConfigError(f"save_every={save_every!r}: a whole number of batches from 1 is needed")
    if device is not None:
        for network in filter(None, networks.values()):
            network.to(device)
    engine, _ = resolve_engine(snn.frozen(), snn.program.layout, drive.engine)  # by the device it is on now
    drive = replace(drive, engine=engine)
    stream: Any = as_batches(batches)
    head = Head.of(snn)
    if isinstance(stream, Sequence):  # everything is at hand: look at all labels before any work
        for number, batch in enumerate(stream):
            labels_of(head, snn, batch, number)
    processes = Processes.here(cpu=snn.device.type == "cpu")
    with processes.together():
        identity: dict[str, Any] = {}
        if folder is not None:
            identity = {key: None if network is None else fingerprint(network) for key, network in networks.items()}
            driven_by = {f.name: getattr(drive, f.name) for f in fields(drive) if f.name in IDENTITY}
            identity |= {"data": data, "device": device_name(snn.device), **driven_by}
        path = None if folder is None else Path(folder)
        journal = Journal(path, identity, processes, resume=resume, every=save_every)
    one = OneBatch(snn, qann, float_model, head, drive)
    with processes.together(), evaluating(qann, float_model):
        try:
            for batch, digest in journal.remaining(processes.share(stream)):
                number = processes.index + journal.tally.batches * processes.count
                journal.add(one.tally(batch, number, journal.tally), digest)
                if progress is not None:
                    progress(journal.tally.samples)
        finally:
            journal.save()
    whole = sum((Tally.from_json(part) for part in processes.gather(journal.tally.to_json())), Tally())
    if not whole.samples:
        raise InputError("the data set is empty: measure needs at least one batch")
    if qann is not None:
        assert whole.comparison is not None  # there is a batch
        certificate = None
        if drive.steps == "equilibrium" or not whole.comparison.unsettled:
            certificate = whole.comparison.certificate(snn, drive)
    measurement = Measurement(
        name=name or f"{type(snn).__name__}, {snn.quant_config.levels} levels",
        model=model_facts(snn, whole, source),
        data=Data(data, whole.samples, head.classes, head.names),
        settings=Settings(drive.steps, engine, drive.coding, drive.max_spike, float(drive.stagger)),
        device=device_name(snn.device),
        **numbers(whole, head, with_qann=qann is not None, with_float=float_model is not None),
        **costs(whole, energy_model),
        certificate=None if certificate is None else asdict(certificate),
        command=command,
        versions=versions(),
    )
    if path is not None and processes.first:
        measurement.save(path / RESULT)
    return measurement


def _check_networks(snn: Any, qann: Any, float_model: Any) -> None:
    """What cannot be each other's counterpart is refused before any work."""
    if not isinstance(snn, SpikingNetwork):
        raise ConfigError(f"measure takes what spikezip.convert returns, not {type(snn).__name__}")
    if float_model is not None and Head.of(float_model).classes != Head.of(snn).classes:
        raise ConfigError("the float model has another head than the spiking network")
    if qann is not None:
        check_counterpart(snn, qann)
