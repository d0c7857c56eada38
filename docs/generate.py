"""Write the pages that are made from the code: the command line, the glossary, the JSON outputs.

python docs/generate.py          writes them
python docs/generate.py --check  exit code 1 where one is not what the code says now
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click

from servefit.cli.main import VERBS, main
from servefit.learn.glossary import all_terms

DOCS = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py from the code. Do not edit. -->\n\n"
GROUPS = {
    "The loop": ("check", "measure", "explain", "calibrate", "simulate", "plan", "decide", "verify"),
    "Around it": ("bill", "sweep", "compare", "experiment", "learn", "web", "tour"),
    "What is there": ("engine", "devices", "models", "export", "import", "config", "completion"),
}


def commands(
    command: click.Command | None = None, path: str = "servefit"
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with its path and context, groups before their members."""
    command = command or main
    context = click.Context(command, info_name=path)
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child, f"{path} lists {name} and does not have it"
            yield from commands(child, f"{path} {name}")


def command_line() -> str:
    """reference/cli.md: each verb with its question, usage, arguments and options."""
    out = [MADE, "# The command line\n"]
    out += [
        "Every command ends with an [exit code](exit-codes.md), and says what to do next. With `--json`, stdout is exactly one",
        "[JSON object](json.md). `servefit VERB --help` shows the same as this page.\n",
    ]
    placed = {name for names in GROUPS.values() for name in names}
    assert not set(VERBS) - placed, f"give these a group in docs/generate.py: {set(VERBS) - placed}"
    known = {path: (command, context) for path, command, context in commands()}
    for group, names in GROUPS.items():
        out += [f"## {group}\n"]
        for name in names:
            for path, (command, context) in known.items():
                if path.split()[1:2] == [name]:
                    out += list(_one(path, command, context))
    return "\n".join(out).rstrip() + "\n"


def _one(path: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"{'#' * (2 + min(2, path.count(' ')))} {path}\n"
    for block in inspect.cleandoc(command.help or "").split("\n\n"):
        if block.startswith(("\b\n", "servefit ")):
            yield f"```{'sh' if block.startswith('servefit ') else 'text'}\n{block.removeprefix(chr(8) + chr(10))}\n```\n"
        else:
            yield block.replace("<", "&lt;") + "\n"
    usage = command.collect_usage_pieces(context)
    yield f"```text\n{' '.join([path, *usage])}\n```\n"
    records = [p.get_help_record(context) for p in command.get_params(context) if "--help" not in p.opts]
    rows = [record for record in records if record and record[1]]
    if rows:
        yield "| option | what it does |\n|---|---|"
        for name, said in rows:
            yield f"| `{_cell(name)}` | {_cell(said)} |"
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def glossary() -> str:
    """glossary.md: the terms of learn/data/glossary.toml, which the page and the command line use too."""
    out = [
        MADE,
        "# Glossary\n",
        "One definition a term, used by the command line (`servefit learn glossary`), the page and these docs.\n",
    ]
    for term in sorted(all_terms(), key=lambda t: t.name.lower()):
        out += [f"## {term.name}\n", (f"*{term.long}.* " if term.long else "") + term.text.replace("<", "&lt;") + "\n"]
        if term.see:
            out += ["See " + ", ".join(f"[{name}](#{_anchor(name)})" for name in term.see) + ".\n"]
    return "\n".join(out).rstrip() + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def json_outputs() -> str:
    """reference/json.md: what each `--json` prints, by its schema."""
    out = [
        MADE,
        "# JSON outputs\n",
        "With `--json`, stdout is exactly one JSON object, and progress goes to stderr. Seconds, bytes, tokens and US dollars;",
        "`null` is nothing observed, never 0. Each has a JSON Schema (2020-12) in the package: `servefit config schema NAME`",
        "prints it, and a test validates real outputs against it.\n",
    ]
    for path in sorted(Path(str(files("servefit") / "schemas")).glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        out += [f"## {path.stem}\n", f"{schema['title']}\n", "| key | type | what it is |\n|---|---|---|"]
        required = set(schema.get("required", ()))
        for key, value in schema.get("properties", {}).items():
            optional = "" if key in required else " (not always)"
            out += [f"| `{key}` | {_kind(value)}{optional} | {_cell(value.get('description', ''))} |"]
        out += [""]
    return "\n".join(out).rstrip() + "\n"


def _kind(schema: dict) -> str:
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(v)}`" for v in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(s) for s in schema["anyOf"]))
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else kind


PAGES = {"reference/cli.md": command_line, "reference/json.md": json_outputs, "glossary.md": glossary}


def stale() -> list[str]:
    """The pages that are not what the code says now."""
    return [
        name
        for name, make in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != make()
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        old = stale()
        sys.exit(f"not current: {', '.join(old)}; run python docs/generate.py" if old else 0)
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
