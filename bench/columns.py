"""A bench's rows as a table: (key, title, decimal places) a column."""

from collections.abc import Mapping, Sequence


def show(columns: Sequence[tuple[str, str, int]], rows: Sequence[Mapping[str, float]]) -> None:
    """Print the titles, then a line a row."""
    print("  ".join(f"{title:>15}" for _, title, _ in columns))
    for row in rows:
        print("  ".join(f"{row[name]:>15.{places}f}" for name, _, places in columns))
