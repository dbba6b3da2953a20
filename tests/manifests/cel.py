"""Evaluates the part of CEL that matchConditions and policies use, at least as strictly as the API server.

A field that is not there is an error, and so is a comparison of things that do not compare.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from gpushare import units

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<string>'[^']*'|"[^"]*")|(?P<name>[A-Za-z_]\w*)|(?P<int>\d+)|(?P<sign>\|\||&&|==|!=|[!?:.,+>()\[\]{}]))"""
)


class CelError(Exception):
    """What makes the API server apply the failurePolicy."""


def evaluate(expression: str, variables: Mapping[str, Any]) -> bool:
    result = value(expression, variables)
    if not isinstance(result, bool):
        raise CelError(f"a condition must be a bool, not {result!r}")
    return result


def value(expression: str, variables: Mapping[str, Any]) -> Any:
    parser = _Parser(_tokens(expression))
    tree = parser.ternary()
    if parser.rest():
        raise CelError(f"unexpected {parser.rest()[0]!r}")
    return _value(tree, dict(variables))


def refusals(policy: Mapping[str, Any], scope: Mapping[str, Any]) -> list[str]:
    """Messages of a ValidatingAdmissionPolicy's spec, of those that the API server would check."""
    if not all(evaluate(each["expression"], scope) for each in policy.get("matchConditions", ())):
        return []
    known: dict[str, Any] = {}
    for each in policy.get("variables", ()):
        known[each["name"]] = value(each["expression"], {**scope, "variables": known})
    within = {**scope, "variables": known}
    return [each["message"] for each in policy["validations"] if not evaluate(each["expression"], within)]


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CelError(f"cannot read {text[at : at + 20]!r}")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


@dataclass(frozen=True)
class Node:
    kind: str
    parts: tuple[Any, ...]


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens

    def rest(self) -> list[str]:
        return self._tokens

    def _take(self, *wanted: str) -> str | None:
        if self._tokens and self._tokens[0] in wanted:
            return self._tokens.pop(0)
        return None

    def _need(self, wanted: str) -> None:
        if not self._take(wanted):
            raise CelError(f"expected {wanted!r} before {self._tokens[:3]}")

    def ternary(self) -> Node:
        condition = self._binary(("||",), ("&&",), ("==", "!=", "in", ">"), ("+",))
        if not self._take("?"):
            return condition
        yes = self.ternary()
        self._need(":")
        return Node("?", (condition, yes, self.ternary()))

    def _binary(self, signs: tuple[str, ...], *tighter: tuple[str, ...]) -> Node:
        def operand() -> Node:
            return self._binary(*tighter) if tighter else self._unary()

        left = operand()
        while sign := self._take(*signs):
            left = Node(sign, (left, operand()))
        return left

    def _unary(self) -> Node:
        if self._take("!"):
            return Node("!", (self._unary(),))
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while sign := self._take(".", "["):
            optional = self._take("?")
            if sign == "[":
                node = Node("?[]" if optional else "[]", (node, self.ternary()))
                self._need("]")
                continue
            name = self._tokens.pop(0)
            if optional:
                node = Node("?[]", (node, Node("string", (name,))))
                continue
            node = Node("call", (node, name, self._list(")"))) if self._take("(") else Node(".", (node, name))
        return node

    def _primary(self) -> Node:
        token = self._tokens.pop(0)
        if token == "(":
            inner = self.ternary()
            self._need(")")
            return inner
        if token == "[":
            return Node("list", (self._list("]"),))
        if token == "{":
            self._need("}")
            return Node("map", ())
        if token == "has":
            self._need("(")
            return Node("has", tuple(self._list(")")))
        if token[0] in "'\"":
            return Node("string", (token[1:-1],))
        if token in {"true", "false"}:
            return Node("bool", (token == "true",))
        if token.isdecimal():
            return Node("int", (int(token),))
        return Node("function", (token, self._list(")"))) if self._take("(") else Node("name", (token,))

    def _list(self, end: str) -> list[Node]:
        found = []
        while not self._take(end):
            found.append(self.ternary())
            self._take(",")
        return found


def _value(node: Node, scope: dict[str, Any]) -> Any:
    match node:
        case Node("string" | "int" | "bool", (constant,)):
            return constant
        case Node("name", (name,)):
            return _field(scope, name)
        case Node("list", (items,)):
            return [_value(item, scope) for item in items]
        case Node(".", (of, name)):
            return _field(_value(of, scope), name)
        case Node("[]", (of, key)):
            return _field(_value(of, scope), _value(key, scope))
        case Node("?", (condition, yes, no)):
            return _value(yes if _bool(condition, scope) else no, scope)
        case Node("+" | "function" | "map" | "?[]" | "call"):
            return _made(node, scope)
        case _:
            return _logic(node, scope)


def _made(node: Node, scope: dict[str, Any]) -> Any:
    match node:
        case Node("map"):
            return {}
        case Node("?[]", (of, key)):
            return _optional(_value(of, scope), _value(key, scope))
        case Node("call", (of, "orValue", (otherwise,))):
            found = _value(of, scope)
            if not isinstance(found, Optional):
                raise CelError(f"no such overload: {found!r} is not optional")
            return found.content if found.is_there else _value(otherwise, scope)
        case Node("call", (of, method, arguments)):
            return _called(node, method, of, arguments, scope)
        case Node("+", (left, right)):
            first, second = _value(left, scope), _value(right, scope)
            return [*first, *second] if isinstance(first, list) else _text(first) + _text(second)
        case Node("function", ("string", (of,))):
            return str(_value(of, scope))
        case Node("function", ("quantity", (of,))):
            return _quantity(_text(_value(of, scope)))
        case _:
            raise CelError(f"unknown: {node}")


def _called(node: Node, method: str, of: Node, arguments: list[Node], scope: dict[str, Any]) -> Any:
    match method, arguments:
        case "split", (separator,):
            return _text(_value(of, scope)).split(_text(_value(separator, scope)))
        case "trim", []:
            return _text(_value(of, scope)).strip()
        case "size", []:
            return len(_map(_value(of, scope)))
        case _:
            return _logic(node, scope)


def _logic(node: Node, scope: dict[str, Any]) -> bool:
    match node:
        case Node("!", (inner,)):
            return not _bool(inner, scope)
        case Node("||", (left, right)):
            return _bool(left, scope) or _bool(right, scope)
        case Node("&&", (left, right)):
            return _bool(left, scope) and _bool(right, scope)
        case Node("in", (left, right)):
            return bool(_value(left, scope) in _value(right, scope))
        case Node(">", (left, right)):
            return bool(_int(_value(left, scope)) > _int(_value(right, scope)))
        case Node("==" | "!=" as sign, (left, right)):
            return _equal(_value(left, scope), _value(right, scope)) == (sign == "==")
        case _:
            return _call(node, scope)


def _call(node: Node, scope: dict[str, Any]) -> bool:
    match node:
        case Node("has", (Node(".", (of, name)),)):
            return name in _map(_value(of, scope))
        case Node("call", (of, "exists", (Node("name", (variable,)), test))):
            return any(_bool(test, {**scope, variable: each}) for each in _value(of, scope))
        case Node("call", (of, "all", (Node("name", (variable,)), test))):
            return all(_bool(test, {**scope, variable: each}) for each in _value(of, scope))
        case Node("call", (of, "exists_one", (Node("name", (variable,)), test))):
            return sum(_bool(test, {**scope, variable: each}) for each in _value(of, scope)) == 1
        case Node("call", (of, "startsWith", (prefix,))):
            return str(_value(of, scope)).startswith(_value(prefix, scope))
        case Node("call", (of, "contains", (part,))):
            return _text(_value(part, scope)) in _text(_value(of, scope))
        case Node("call", (of, "isGreaterThan", (other,))):
            return bool(_value(of, scope) > _value(other, scope))
        case _:
            raise CelError(f"unknown: {node}")


def _map(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CelError(f"no such field in {value!r}")
    return value


def _field(value: Any, name: str) -> Any:
    if name not in _map(value):
        raise CelError(f"no such key: {name}")
    return value[name]


@dataclass(frozen=True)
class Optional:
    """What `.?` gives: a field that may be absent."""

    is_there: bool
    content: Any = None


def _optional(value: Any, key: str) -> Optional:
    of = value if isinstance(value, Optional) else Optional(is_there=True, content=value)
    if not of.is_there or key not in _map(of.content):
        return Optional(is_there=False)
    return Optional(is_there=True, content=of.content[key])


def _bool(node: Node, scope: dict[str, Any]) -> bool:
    value = _value(node, scope)
    if not isinstance(value, bool):
        raise CelError(f"no such overload: {value!r} is no bool")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CelError(f"no such overload: {value!r} is no string")
    return value


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CelError(f"no such overload: {value!r} is no int")
    return value


def _quantity(text: str) -> Decimal:
    amount = units.quantity(text)
    if amount is None:
        raise CelError(f"no quantity: {text!r}")
    return amount


def _equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right) or left is None:
        raise CelError(f"only values of one type are compared here, not {left!r} and {right!r}")
    return bool(left == right)
