"""Arithmetic that people write in files (cards, decisions): evaluated over named values, never executed as Python.

Allowed: numbers, names (with dots), + - * / // % **, comparisons, `and`/`or`/`not`, and calls of the functions given.
Everything else is refused with a sentence. Exponents and lengths are bounded, so no text can hang or fill memory.
"""

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping

from servefit.errors import ServefitError

Value = float | bool

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
MAX_CHARS = 500


def evaluate(
    text: str,
    names: Mapping[str, float],
    functions: Mapping[str, Callable[..., float]] | None = None,
    *,
    where: str = "",
) -> Value:
    """The value of `text` with `names` filled in.

    Raises ServefitError for a name that is not there, a construction that is not arithmetic, or a division by zero.

    >>> evaluate("0.7 * memory_gb", {"memory_gb": 36})
    25.2
    >>> evaluate("ttft.p99 <= 0.1 and goodput >= 10", {"ttft.p99": 0.08, "goodput": 12})
    True
    """
    place = f"{where}: " if where else ""
    if len(text) > MAX_CHARS:
        raise ServefitError(
            f"{place}an expression of {len(text)} characters is too long.", hint=f"At most {MAX_CHARS}."
        )
    try:
        return _value(_parse(text), names, functions or {})
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ServefitError(
            f"{place}'{text}' is not an expression.", hint="Write arithmetic over named values."
        ) from None
    except ZeroDivisionError:
        raise ServefitError(f"{place}'{text}' divides by zero.", hint="Check the values it uses.") from None
    except (OverflowError, TypeError):
        raise ServefitError(f"{place}'{text}' has no finite value.", hint="Check the values it uses.") from None


def names_in(text: str) -> list[str]:
    """The names that `text` uses, dotted ones whole, in order of appearance; functions left out.

    >>> names_in("max(ttft.p99, x) > 2 * x")
    ['ttft.p99', 'x']
    """
    try:
        tree = _parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            name = _dotted(node)
            if name and name not in found:
                found.append(name)
            return
        for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def _parse(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "1 is 1" is refused with our sentence, not with Python's
        return ast.parse(text.strip(), mode="eval").body


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else None
    return None


def _value(node: ast.AST, names: Mapping[str, float], functions: Mapping[str, Callable[..., float]]) -> Value:
    def of(child: ast.AST) -> Value:
        return _value(child, names, functions)

    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Name() | ast.Attribute():
            name = _dotted(node) or ""
            if name not in names:
                raise ServefitError(f"'{name}' is no value that is known here.", hint=_nearest(name, names))
            return names[name]
        case ast.UnaryOp(op=ast.USub()):
            return -of(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return of(node.operand)
        case ast.UnaryOp(op=ast.Not()):
            return not of(node.operand)
        case ast.BinOp(op=ast.Pow()):
            return _power(of(node.left), of(node.right))
        case ast.BinOp() if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](of(node.left), of(node.right))
        case ast.BoolOp(op=ast.And()):
            return all(of(child) for child in node.values)
        case ast.BoolOp():
            return any(of(child) for child in node.values)
        case ast.Compare():
            sides = [of(child) for child in (node.left, *node.comparators)]
            ops = [_COMPARE[type(op)] for op in node.ops if type(op) in _COMPARE]
            if len(ops) == len(node.ops):
                return all(op(a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in functions:
            return functions[name](*(of(child) for child in node.args))
        case _:
            pass
    raise ServefitError(
        f"'{ast.unparse(node)}' is not allowed in an expression.", hint="Only arithmetic over named values is."
    )


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > 64:
        raise OverflowError
    return math.pow(base, exponent)  # ValueError where there is no real one


def _nearest(name: str, names: Mapping[str, float]) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(sorted(names)[:12]) or 'none'}."
