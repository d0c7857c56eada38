"""`servefit.toml`: named targets, workloads, objectives and caps; flag > environment > file > default, and which it was.

    target = "local"                     # what `servefit measure` asks when no target is named

    [targets.local]
    url = "http://127.0.0.1:8080"

    [workloads.chat]
    isl = 512
    osl = 128
    rate_req_per_s = 2

    [objectives]
    ttft = "500 ms"
    tpot = "50 ms"

    [caps]
    usd_per_run = 1.0

The file is looked for in this folder and those above it. Each single value can also come from the environment: its path
in capitals, `SERVEFIT_TARGET`, `SERVEFIT_CAPS_USD_PER_RUN`.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

from servefit.errors import ServefitError
from servefit.files import read_toml, structure
from servefit.units import parse_plain, parse_seconds
from servefit.workload.workload import Workload

FILE_NAME: Final = "servefit.toml"
_PLAIN: Final[dict[str, type]] = {"target": str, "runs": str, "usable_memory_frac": float}
SCHEMA_URL: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that can be asked, under the name that people give it. Holds no secret, only where the key is."""

    url: str
    name: str = ""
    model: str | None = None
    """The model to ask for; None: the one that the server lists."""
    dialect: str = ""
    """openai-chat, openai-completions, ollama-chat, ollama-generate, anthropic; "" is found out by asking."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    paid: bool = False
    """Requests cost money: said before anything is sent, and never called unasked."""
    expect_failure: bool = False
    """It is known not to work: its failures do not fail a run, and a success is said."""
    ca_file: str | None = None
    """Certificate authority for https with a private certificate."""
    origin: str = ""
    """Where the name comes from: the file, an engine that runs here, the usual ports, the hosted ones, a URL."""

    @property
    def key_set(self) -> bool:
        """Whether a key is there (True where none is needed)."""
        return self.api_key_env is None or bool(os.environ.get(self.api_key_env))


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """The `[objectives]` table: the fields of `objectives.Targets`, None where nothing is set."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    p: int | None = None
    memory_frac: float | None = None
    goodput_req_per_s: float | None = None
    goodput_frac: float | None = None
    usd_per_hour: float | None = None
    usd_per_mtok: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The `[caps]` table: what a command may spend before it stops. None is no cap."""

    usd_per_run: float | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    requests: int | None = None
    output_tok: int | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that is set, each single value with where it comes from."""

    target: str = "embedded"
    """The target of `servefit measure` when none is named."""
    runs: str = "runs"
    """The folder for runs."""
    usable_memory_frac: float | None = None
    """How much of the memory a model and its KV cache may take; None: 0.7 of unified memory, 0.9 of a GPU's."""
    targets: Mapping[str, Target] = field(default_factory=dict)
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    objectives: Objectives = field(default_factory=Objectives)
    caps: Caps = field(default_factory=Caps)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Path of each single value -> "default", "servefit.toml" with its path, "environment NAME" or "flag"."""
    file: Path | None = None


def find_file(start: Path | None = None) -> Path | None:
    """The nearest servefit.toml: `SERVEFIT_CONFIG`, else in `start` (this folder) or one above it; None where there is none."""
    if named := os.environ.get("SERVEFIT_CONFIG"):
        return Path(named)
    here = (start or Path.cwd()).resolve()
    return next((f for folder in (here, *here.parents) if (f := folder / FILE_NAME).is_file()), None)


def load_settings(flags: Mapping[str, Any] | None = None, *, path: Path | None = None) -> Settings:
    """What is set. `flags` maps paths ("caps.usd_per_run") to values; None means not given. Raises ServefitError.

    Each single value is the flag's, else the environment's, else the file's, else the default.
    """
    file = path or find_file()
    table = read_toml(file) if file else {}
    settings = _from_table(table, file) if file else Settings()
    origins = dict.fromkeys(scalar_paths(), "default") | dict.fromkeys(settings.origins, str(file))
    for name, kind in scalar_paths().items():
        variable = env_name(name)
        if variable in os.environ:
            settings = _put(settings, name, _parse(os.environ[variable], kind, name, variable))
            origins[name] = f"environment {variable}"
        if flags and flags.get(name) is not None:
            settings = _put(settings, name, flags[name])
            origins[name] = "flag"
    return replace(settings, origins=origins, file=file)


def env_name(path: str) -> str:
    """The environment variable of a single value.

    >>> env_name("caps.usd_per_run")
    'SERVEFIT_CAPS_USD_PER_RUN'
    """
    return "SERVEFIT_" + path.replace(".", "_").upper()


def scalar_paths() -> dict[str, type]:
    """Path -> type of every single value, in the order of the file."""
    out = dict(_PLAIN)
    for group, kind in (("objectives", Objectives), ("caps", Caps)):
        hints = get_type_hints(kind)
        out |= {f"{group}.{f.name}": int if "int" in str(hints[f.name]) else float for f in fields(kind)}
    return out


def value_of(settings: Settings, path: str) -> Any:
    """The single value at a path."""
    group, _, name = path.rpartition(".")
    return getattr(getattr(settings, group) if group else settings, name)


def unknown_variables() -> list[str]:
    """A sentence for each SERVEFIT_ variable in the environment that is no setting."""
    known = {env_name(p) for p in scalar_paths()} | {"SERVEFIT_CONFIG"}
    return [_near(name, known, "The environment variable") for name in sorted(os.environ) if name.startswith("SERVEFIT_") and name not in known]  # fmt: skip


def _put(settings: Settings, path: str, value: Any) -> Settings:
    group, _, name = path.rpartition(".")
    if not group:
        return replace(settings, **{name: value})
    return replace(settings, **{group: replace(getattr(settings, group), **{name: value})})


def _parse(text: str, kind: type, path: str, where: str) -> Any:
    if kind is str:
        return text
    try:
        number = parse_seconds(text) if path.endswith("_s") and not path.endswith("per_s") else parse_plain(text)
    except ServefitError as error:
        raise ServefitError(f"{where}: {error.message}", hint=error.hint) from None
    return int(number) if kind is int else number


def _from_table(table: dict[str, Any], file: Path) -> Settings:
    where = str(file)
    check_keys(
        table, [f.name for f in fields(Settings) if f.name not in ("origins", "file")] + ["$schema", "bill"], where
    )
    plain = {p: table[p] for p in _PLAIN if p in table}
    check_types(plain, Settings, where)
    set_here = list(plain)
    targets = {n: _target(n, _table(t, f"{where}: targets.{n}"), file) for n, t in _table(table.get("targets", {}), f"{where}: targets").items()}  # fmt: skip
    workloads = {n: _workload(n, _table(w, f"{where}: workloads.{n}"), file) for n, w in _table(table.get("workloads", {}), f"{where}: workloads").items()}  # fmt: skip
    groups: dict[str, Any] = {}
    for group, kind in (("objectives", Objectives), ("caps", Caps)):
        values = _times(_table(table.get(group, {}), f"{where}: {group}"), kind, f"{where}: {group}")
        check_types(values, kind, f"{where}: {group}")
        groups[group] = structure(values, kind, where=f"{where}: {group}")
        set_here += [f"{group}.{name}" for name in values]
    frac = plain.get("usable_memory_frac")
    if frac is not None and not 0 < frac <= 1:
        raise ServefitError(
            f"{where}: usable_memory_frac is {frac}; it must be above 0 and at most 1.", hint="Write 0.7."
        )
    return Settings(**plain, targets=targets, workloads=workloads, **groups, origins=dict.fromkeys(set_here, where))


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ServefitError(f"{where} is {value!r}, which is no table.", hint="Write it as [a table] in the file.")
    return value


def _target(name: str, table: dict[str, Any], file: Path) -> Target:
    where = f"{file}: targets.{name}"
    check_keys(table, [f.name for f in fields(Target) if f.name not in ("name", "origin")], where)
    check_types(table, Target, where)
    ca_file = table.get("ca_file")
    if isinstance(ca_file, str):
        table = {**table, "ca_file": str(file.parent / ca_file)}
    return structure({**table, "name": name, "origin": str(file)}, Target, where=where)


def _workload(name: str, table: dict[str, Any], file: Path) -> Workload:
    where = f"{file}: workloads.{name}"
    check_keys(table, [f.name for f in fields(Workload)], where)
    check_types(table, Workload, where)
    table = {k: {"mean": v} if k in ("isl", "osl") and isinstance(v, int) else v for k, v in table.items()}
    workload = structure({"name": name, **table}, Workload, where=where)
    return replace(workload, trace=str(file.parent / workload.trace)) if workload.trace else workload


def _times(table: dict[str, Any], kind: type, where: str) -> dict[str, Any]:
    """`ttft = "500 ms"` as `ttft_s = 0.5`."""
    known = [f.name for f in fields(kind)]
    short = {n.removesuffix("_s"): n for n in known if n.endswith("_s") and not n.endswith("per_s")}
    check_keys(table, [*known, *short], where)
    out = {}
    for key, value in table.items():
        name = short.get(key, key)
        out[name] = parse_seconds(value) if name in short.values() and isinstance(value, str) else value
    return out


def check_keys(table: Mapping[str, Any], known: list[str], where: str) -> None:
    """Raises ServefitError for the first key that is not known, with the nearest one."""
    for key in table:
        if key not in known:
            raise ServefitError(
                _near(key, set(known), f"{where}:"), hint="See `servefit config show` for every setting."
            )


def check_types(table: Mapping[str, Any], kind: type, where: str) -> None:
    """Raises ServefitError for the first single value that is of another type than the field of `kind`."""
    hints = get_type_hints(kind)
    for key, value in table.items():
        for plain, said in ((bool, "true or false"), (str, "a text"), (int, "a whole number"), (float, "a number")):
            if hints.get(key) in (plain, plain | None):
                accepted = (int, float) if plain is float else plain
                if not isinstance(value, accepted) or (plain is not bool and isinstance(value, bool)):
                    raise ServefitError(f"{where}: {key} is {value!r}; it must be {said}.")


def _near(name: str, known: set[str], what: str) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"{what} '{name}' is no setting{f'; did you mean {close[0]!r}?' if close else '.'}"
