"""Names in a catalogue: found whatever the spelling, near misses suggested, ambiguity asked about and never guessed."""

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from servefit.errors import ServefitError


@lru_cache(maxsize=8192)
def key(name: str) -> str:
    """`name` without what people spell differently: case, spaces, dots, underscores, the maker's name.

    >>> key("NVIDIA RTX 4090") == key("rtx-4090")
    True
    """
    plain = re.sub(r"[^a-z0-9]+", "", name.lower())
    for maker in ("nvidia", "geforce", "apple", "amdinstinct", "instinct", "amd"):
        plain = plain.removeprefix(maker)
    return plain


def pick(name: str, slugs: Iterable[str], aliases: Mapping[str, tuple[str, ...]], *, what: str, listing: str) -> str:
    """The slug that `name` means. `aliases` maps a spelling to one slug, or to several, which is asked about.

    Raises ServefitError for an unknown name (with the nearest ones) and for an ambiguous one (with all of them).
    """
    known = {key(slug): (slug,) for slug in slugs}
    spelt = {key(alias): found for alias, found in aliases.items()}
    wanted = key(name)
    found = known.get(wanted) or spelt.get(wanted)
    if found and len(found) == 1:
        return found[0]
    if found:
        raise ServefitError(
            f"'{name}' is more than one {what}: {', '.join(found)}.", hint=f"Say which: they differ. See {listing}."
        )
    near = difflib.get_close_matches(wanted, [*known, *spelt], n=3, cutoff=0.6)
    part = [s for k, (s,) in known.items() if wanted and wanted in k]
    close = [*dict.fromkeys([*part[:4], *((known.get(k) or spelt[k])[0] for k in near)])]
    hint = f"Did you mean {' or '.join(close[:4])}?" if close else f"See {listing} for all of them."
    raise ServefitError(f"There is no {what} '{name}' in the catalogue.", hint=hint)
