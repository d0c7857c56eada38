"""What `check` finds out: the places where a model could run here, what fits in each, who answers, what to distrust."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from servefit.check import fit
from servefit.errors import CannotMeasure, ServefitError
from servefit.facts.cited import Cited
from servefit.facts.devices import Device, Kind
from servefit.facts.models import ModelShape, all_models, find_model
from servefit.host.bandwidth import Sweep, sweep
from servefit.host.machine import Gpu, Machine, look
from servefit.host.pace import Pace, watch
from servefit.physics.memory import kv_bytes_per_tok, weight_bytes
from servefit.physics.roofline import ceiling_tok_per_s
from servefit.servers import engines
from servefit.servers.answering import Seen, who_answers
from servefit.servers.targets import all_targets
from servefit.settings import Settings
from servefit.units import fmt_s

REFERENCE_MODEL = "llama-3.1-8b"
REFERENCE_PRECISION = "q4_k_m"
WATCHED_S = 0.2
"""So long the machine's pace is watched, of the two seconds that `check` may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Biggest:
    """About how big a dense model fits, by the bytes per parameter of the reference model."""

    exact_params: float
    params: int
    """Rounded down to whole steps of 5 billion."""
    weight_bytes: float
    bytes_per_param: float
    room_bytes: float
    room_tok: int
    """In tokens of the reference model's KV cache."""
    reference_kv_bytes_per_tok: int
    ceiling_tok_per_s: float
    flop_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Memory with a bandwidth: a GPU, unified memory, or the CPU's."""

    name: str
    kind: Kind
    memory_bytes: int
    bandwidth_bytes_per_s: float
    bandwidth_source: str
    usable_frac: float
    usable_source: str
    budget_bytes: float
    box_gb: float | None
    """The size on the box, where it is one that people read as GB."""
    both_budgets_bytes: tuple[float, float] | None
    """The budget with the box's GB read as 10^9, and as the 2^30 that it is."""
    biggest: Biggest
    fits: tuple[fit.Fit, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Everything that `check` says."""

    machine: Machine | None
    sweep: Sweep | None
    pace: Pace | None = None
    """Whether the machine keeps its pace; None where it was not watched."""
    places: tuple[Place, ...]
    servers: tuple[Seen, ...] = ()
    findings: tuple[str, ...] = ()
    band_frac: tuple[float, float] = fit.BAND_FRAC
    band_source: str = fit.BAND_SOURCE
    asked_model: str | None = None

    @property
    def asked_fits(self) -> bool:
        """Whether the model that was asked for fits in some place; True where none was asked for."""
        return self.asked_model is None or any(
            f.fits for p in self.places for f in p.fits if f.model == self.asked_model
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What `check` was asked beyond the machine it stands on."""

    model: str | None = None
    precision: str = REFERENCE_PRECISION
    usable_frac: float | None = None
    sweep: bool = True
    pace: bool = True
    servers: bool = True
    models: tuple[ModelShape, ...] = field(default_factory=tuple)


def to_json(check: Check) -> dict[str, Any]:
    """The check as plain values, with what follows from them."""
    value = asdict(check)
    for place, shown in zip(check.places, value["places"], strict=True):
        for f, row in zip(place.fits, shown["fits"], strict=True):
            row |= {
                "fits": f.fits,
                "room_tok": f.room_tok,
                "tpot_floor_s": f.tpot_floor_s,
                "band_tok_per_s": f.band_tok_per_s,
            }
    for seen, row in zip(check.servers, value["servers"], strict=True):
        row["answers"] = seen.answers
    if check.sweep:
        value["sweep"] |= {"bytes_per_s": check.sweep.bytes_per_s, "past_cache": check.sweep.past_cache,
                           "resident_bytes": check.sweep.resident_bytes}  # fmt: skip
    if check.pace:
        value["pace"] |= {"factor": check.pace.factor, "wanders": check.pace.wanders}
    return value


def check_here(ask: Ask, settings: Settings) -> Check:
    """The machine here. Raises CannotMeasure where its memory size is not known."""
    seen: list[tuple[Seen, ...]] = []
    machine = look(meanwhile=(lambda: seen.append(who_answers(all_targets(settings)))) if ask.servers else None)
    read = None
    if ask.sweep and machine.system.startswith("Linux"):
        available = machine.available_bytes or machine.memory_bytes // 2
        read = sweep(threads=machine.cores, available_bytes=available, cache_bytes=machine.cache_bytes)
    pace = watch(WATCHED_S) if ask.pace else None
    findings = [f"busy machine: {f}; figures measured now are too low" for f in machine.load.findings]
    if pace and pace.wanders:
        findings.append(
            f"this machine does not keep its pace: equal pieces of work took {fmt_s(pace.fast_s)} to {fmt_s(pace.slow_s)} of processor time "
            f"within {fmt_s(WATCHED_S)} (a neighbour on the same physical core, or a clock that changes); one run beside another "
            "tells little here: measure by turns, several times"
        )
    if read and not read.past_cache:
        findings.append(
            f"the largest buffer read was {read.points[-1].buffer_bytes / 2**20:,.0f} MiB, not past the reported "
            f"{(read.cache_bytes or 0) / 2**20:,.0f} MiB of cache: the bandwidth may be the cache's"
        )
    places = [p for gpu in machine.gpus for p in _gpu_places(gpu, ask, settings)] + _own_places(
        machine, read, ask, settings
    )
    if not places:
        how = (
            "it is measured without --no-sweep, or give both"
            if read is None and machine.system.startswith("Linux")
            else "give both"
        )
        findings.append(f"no memory bandwidth is known for this chip; {how}: --memory 36GB --bandwidth 100GB/s")
    return Check(machine=machine, sweep=read, pace=pace, places=tuple(places), servers=seen[0] if seen else (),
                 findings=tuple(findings), asked_model=_asked_name(ask))  # fmt: skip


def this_device(settings: Settings | None = None) -> Device:
    """The first place of this machine (a GPU before the CPU) as a device: memory, bandwidth, usable share, each cited.

    Raises CannotMeasure where no bandwidth is known. Peaks are None unless the catalogue has the chip.
    """
    check = check_here(Ask(servers=False, pace=False), settings or Settings())
    if not check.places:
        raise CannotMeasure(
            "The memory bandwidth of this machine is not known.", hint="Name a device of the catalogue."
        )
    place = check.places[0]
    chip = place.name if place.kind == "gpu" else check.machine.chip if check.machine else ""
    known = next(iter(fit.variants(chip, place.memory_bytes)), None)
    measured = place.bandwidth_source.startswith("measured")
    cited = {
        "memory_bytes": Cited(value=place.memory_bytes, source="this machine's own count", status="measured"),
        "bandwidth_bytes_per_s": Cited(value=place.bandwidth_bytes_per_s, source=place.bandwidth_source,
                                       status="measured" if measured else "seen"),
        "usable_memory_frac": Cited(value=place.usable_frac, source=place.usable_source, status="assumed"),
    }  # fmt: skip
    return Device(
        name="this-machine", title=chip or "this machine", kind=place.kind, memory_bytes=place.memory_bytes,
        bandwidth_bytes_per_s=place.bandwidth_bytes_per_s, usable_memory_frac=place.usable_frac, cited=cited,
        flop_per_s=known.flop_per_s if known else None, note="; ".join(check.findings),
    )  # fmt: skip


def check_devices(devices: tuple[Device, ...], ask: Ask, settings: Settings) -> Check:
    """Devices of the catalogue instead of this machine."""
    places = tuple(_device_place(d, ask, settings) for d in devices)
    return Check(machine=None, sweep=None, places=places, asked_model=_asked_name(ask))


def check_typed(memory_bytes: int, bandwidth_bytes_per_s: float, kind: Kind, ask: Ask, settings: Settings) -> Check:
    """A machine typed in: memory, bandwidth and whether it is unified, a GPU's or a CPU's."""
    place = _place("typed", kind, memory_bytes, bandwidth_bytes_per_s, "given", ask, settings)
    return Check(machine=None, sweep=None, places=(place,), asked_model=_asked_name(ask))


def _asked_name(ask: Ask) -> str | None:
    return find_model(ask.model).name if ask.model else None


def _gpu_places(gpu: Gpu, ask: Ask, settings: Settings) -> list[Place]:
    return [
        _place(f"{gpu.name}", "gpu", gpu.memory_bytes, d.bandwidth_bytes_per_s, _source(d), ask, settings)
        for d in fit.variants(gpu.name, gpu.memory_bytes)
    ]


def _own_places(machine: Machine, read: Sweep | None, ask: Ask, settings: Settings) -> list[Place]:
    known = fit.variants(machine.chip, machine.machine_memory_bytes)
    if machine.unified or (known and known[0].kind == "unified"):
        notes = (
            (
                f"{machine.chip} ships with several bandwidths, and no listed one has this memory size: the range is shown",
            )
            if len({d.bandwidth_bytes_per_s for d in known}) > 1
            else ()
        )
        return [_place(d.name, "unified", machine.memory_bytes, d.bandwidth_bytes_per_s, _source(d), ask, settings, notes=notes)
                for d in known]  # fmt: skip
    if read:
        source = f"measured: {read.kernel}, {read.threads} threads, buffers up to {read.points[-1].buffer_bytes / 2**20:,.0f} MiB"
        return [_place("CPU", "cpu", machine.memory_bytes, read.bytes_per_s, source, ask, settings, read=read)]
    return [
        _place("CPU", "cpu", machine.memory_bytes, d.bandwidth_bytes_per_s, _source(d), ask, settings) for d in known
    ]


def _device_place(device: Device, ask: Ask, settings: Settings) -> Place:
    return _place(
        device.title, device.kind, device.memory_bytes, device.bandwidth_bytes_per_s, _source(device), ask, settings
    )


def _source(device: Device) -> str:
    cited = device.cite("bandwidth_bytes_per_s")
    return f"{cited.status}: {cited.source}{f' ({cited.date})' if cited.date else ''}"


def _place(  # noqa: PLR0917 - what a place is, then who asks
    name: str,
    kind: Kind,
    memory_bytes: int,
    bandwidth: float,
    source: str,
    ask: Ask,
    settings: Settings,
    *,
    read: Sweep | None = None,
    notes: tuple[str, ...] = (),
) -> Place:
    frac, frac_source = fit.usable_frac(kind)
    if (given := ask.usable_frac or settings.usable_memory_frac) is not None:
        frac, frac_source = given, "given"
    if not 0.001 <= frac <= 1:  # also not a number
        raise ServefitError(f"A share of {frac:g} of the memory holds no model.", hint="Give --usable 0.7, say.")
    budget = fit.budget_bytes(memory_bytes, frac)
    box = round(memory_bytes / 2**30) if abs(memory_bytes / 2**30 - round(memory_bytes / 2**30)) < 1e-6 else None
    fits = []
    resident = read.resident_bytes if read else 0
    for model, precision in _models(ask, budget):
        weights = weight_bytes(model, precision)
        speed = read.at(weights) if read else bandwidth
        fits.append(fit.fit(model, precision, budget=budget, bandwidth_bytes_per_s=speed))
        if weights <= resident:
            notes = (
                *notes,
                (
                    f"{model.name} ({weights / 1e6:,.0f} MB) stays in the cache here: its ceiling is at the "
                    f"{speed / 1e9:,.1f} GB/s read in a buffer of its size, not at memory's {bandwidth / 1e9:,.1f}"
                ),
            )
    return Place(
        name=name, kind=kind, memory_bytes=memory_bytes, bandwidth_bytes_per_s=bandwidth, bandwidth_source=source,
        usable_frac=frac, usable_source=frac_source, budget_bytes=budget, box_gb=box,
        both_budgets_bytes=fit.both_readings_bytes(box, frac) if box and kind == "unified" else None,
        biggest=_biggest(budget, bandwidth, ask.precision), fits=tuple(fits), notes=notes,
    )  # fmt: skip


def _biggest(budget: float, bandwidth: float, precision: str) -> Biggest:
    reference = find_model(REFERENCE_MODEL)
    per_param = fit.bytes_per_param(weight_bytes(reference, precision), reference.params_total)
    exact = fit.biggest_params(budget, per_param)
    params = fit.rounded_down(exact)
    weights = params * per_param
    kv = kv_bytes_per_tok(reference)
    return Biggest(
        exact_params=exact, params=params, weight_bytes=weights, bytes_per_param=per_param, room_bytes=budget - weights,
        room_tok=int((budget - weights) // kv), reference_kv_bytes_per_tok=kv,
        ceiling_tok_per_s=ceiling_tok_per_s(bandwidth, weights), flop_per_byte=fit.flop_per_byte(per_param),
    )  # fmt: skip


def _models(ask: Ask, budget: float) -> list[tuple[ModelShape, str | None]]:
    """The models to fit: the one asked for, else the embedded one, the reference, and the biggest of the catalogue."""
    if ask.model:
        model = find_model(ask.model)
        return [(model, None if model.file else ask.precision)]
    out: list[tuple[ModelShape, str | None]] = []
    try:
        path, _ = engines.find_model_file()
        out.append((replace(find_model(str(path)), name=engines.MODEL_NAME), None))
    except ServefitError:
        pass  # not installed: check works without
    reference = find_model(REFERENCE_MODEL)
    out.append((reference, ask.precision))
    dense = [m for m in all_models() if not m.experts]
    biggest = fit.biggest_that_fits(dense, ask.precision, budget=budget)
    if biggest and biggest.name != reference.name:
        out.append((biggest, ask.precision))
    return out
