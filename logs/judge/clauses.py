"""Finds out which clauses of the checker's rule a log breaks. The rules are Python expressions; none is executed here.

A verdict may come from a file that somebody edited, so only comparisons, arithmetic and look-ups are understood.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "math.log2": math.log2,
    "is_integer": lambda number: float(number).is_integer(),
}


def broken_clauses(rule: str, *lines: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return the parts of a rule, between its ``and`` and ``or``, that no line meets.

    Args:
        rule: A Python expression on a line ``v`` and the state ``s`` of the checker.
        lines: Lines of the log that break the rule, each with value and metadata in one mapping.
        state: The checker's state at that time, as far as it is known.

    Returns:
        The clauses that are known to be broken; without such a clause, those that cannot be decided, and otherwise all.
    """
    try:
        body = ast.parse(rule.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [rule]
    names = [{"v": {"value": line.get("value"), "metadata": dict(line)}, "s": state} for line in lines]
    for is_unknown_met in (True, False):
        found = [[ast.unparse(each) for each in _broken(body, known, is_unknown_met)] for known in names]
        if broken := [clause for clause in (found or [[]])[0] if all(clause in other for other in found)]:
            return broken
    clauses = body.values if isinstance(body, ast.BoolOp) else [body]
    return [ast.unparse(clause) for clause in clauses]


def _broken(node: ast.expr, names: Mapping[str, Any], is_unknown_met: bool) -> list[ast.expr]:
    """Return the broken clauses below ``node``; of alternatives, those of the one that is nearest to being met."""
    if isinstance(node, ast.BoolOp):
        parts = [_broken(each, names, is_unknown_met) for each in node.values]
        return min(parts, key=len) if isinstance(node.op, ast.Or) else [clause for part in parts for clause in part]
    met = _is_met(node, names)
    return [] if met or (met is None and is_unknown_met) else [node]


def _is_met(clause: ast.expr, names: Mapping[str, Any]) -> bool | None:
    """Return whether a clause is true; None if that cannot be decided."""
    try:
        return bool(_value(clause, names))
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911 (one return for each kind of expression)
    """Return the value of an expression; `LookupError` for one that is not understood."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(each, names) for each in items]
        case ast.Subscript(value=whole, slice=place):
            return _value(whole, names)[_value(place, names)]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, names)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(each, names) for each in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_value(each, names) for each in parts)
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATIONS[type(op)](_value(left, names), _value(right, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Call(func=function, args=[argument]):
            return _FUNCTIONS[ast.unparse(function)](_value(argument, names))
    raise LookupError(ast.unparse(node))
