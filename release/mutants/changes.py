"""What is changed in a module: one place at a time, as somebody might get it wrong. Pure."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

OTHER: Final[dict[type[ast.AST], tuple[type[ast.AST], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mult,),
}
OTHER_NAME: Final = {"min": "max", "any": "all", "floor": "ceil", "nsmallest": "nlargest"}
OTHER_NAMES: Final = OTHER_NAME | {other: name for name, other in OTHER_NAME.items()}
LARGER: Final = ("min", "max")
UNTOUCHED: Final = ("strict", "repr", "init")
"""Keywords: an assertion of `zip`, how a value looks to a developer, what a class keeps for itself."""
SAME: Final = ("NodeName", "GpuUuid", "PodUid", "ContainerName", "assert_never", "cast")
"""What returns its argument, for the type checker."""
LOGS: Final = ("logs.event", "_LOG.")
"""How statements begin that write a line of the log, which other tools leave out too: nothing depends on one."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """A change of one place; the same in two trees whose functions read the same there, whatever stands above them."""

    file: str
    function: str
    change: str
    nth: int
    line: int = field(compare=False)
    statement: int = field(compare=False)
    """The line at which its statement begins: what a tracer sees of an argument on a line of its own."""

    def __str__(self) -> str:
        return f"{self.function}: {self.change}"


def mutants_of(source: str, file: str = "") -> Iterator[tuple[Mutant, ast.Module]]:
    """Every mutant of a module with its tree, which is the next mutant's once that is asked for.

    Each differs from all others and from the module itself.
    """
    tree = ast.parse(source)
    seen: set[tuple[ast.stmt, str]] = set()
    alike = Counter[tuple[str, str]]()
    for parent, name, index, node, function, within in _places(tree, "", None):
        seen.add((within, ast.unparse(within)))
        before = ast.unparse(node)
        for other in (*_others(node), *_fixed(name, parent)):
            if not hasattr(other, "lineno"):  # what was in the tree before keeps its own
                ast.copy_location(other, node)
            _put(parent, name, index, ast.fix_missing_locations(other))
            changed = within, ast.unparse(other if within is node else within)
            if changed not in seen:
                seen.add(changed)
                change = f"{before} -> {ast.unparse(other)}"
                yield Mutant(file, function, change, alike[function, change], node.lineno, within.lineno), tree
                alike[function, change] += 1
            _put(parent, name, index, node)


Place = tuple[ast.AST, str, int | None, ast.expr | ast.stmt, str, ast.stmt]


def _put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _places(parent: ast.AST, function: str, within: ast.stmt | None) -> Iterator[Place]:
    """All expressions and statements in which something is decided: no annotations, decorators and docstrings."""
    if isinstance(parent, ast.keyword) and parent.arg in UNTOUCHED:
        return
    for name, value in ast.iter_fields(parent):
        if name in {"annotation", "returns", "decorator_list", "bases", "names", "format_spec"}:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_text(parent, node):
                continue
            statement = node if isinstance(node, ast.stmt) else within
            if isinstance(node, (ast.expr, ast.stmt)) and statement is not None:
                yield parent, name, index, node, function or "module", statement
            inner = node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ""
            yield from _places(node, ".".join(filter(None, (function, inner))), statement)


def _is_text(parent: ast.AST, node: ast.AST) -> bool:
    """A docstring, a log line, a name for the type checker, or a piece of an f-string, which is emptied as a whole."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar":
        return True
    if isinstance(parent, ast.JoinedStr):
        return isinstance(node, ast.Constant)
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith(LOGS)


def _others(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:  # noqa: C901, PLR0912 - a table of kinds
    match node:
        case ast.Compare(left=left, ops=[op], comparators=values):
            for kind in OTHER[type(op)]:
                yield ast.Compare(left, [kind()], values)  # type: ignore[list-item]  # of the same family
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(OTHER[type(op)][0](), values)  # type: ignore[arg-type]  # of the same family
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
            yield ast.BinOp(left, OTHER[type(op)][0](), right)  # type: ignore[arg-type]  # of the same family
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str(value)):
            yield ast.Constant("" if value else "other")
        case ast.JoinedStr():
            yield ast.Constant("")
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _unfiltered(node)
        case ast.Call():
            yield from _other_calls(node)
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.AugAssign(target=target, op=op, value=value):
            yield ast.Pass()
            if type(op) in OTHER:
                yield ast.AugAssign(target, OTHER[type(op)][0](), value)  # type: ignore[arg-type]  # of the same family
        case ast.Expr() | ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _fixed(name: str, parent: ast.AST) -> Iterator[ast.expr]:
    """Instead of a condition: always, never. A loop that never ends shows nothing."""
    if name == "test":
        yield from map(ast.Constant, [False] if isinstance(parent, ast.While) else [True, False])


def _unfiltered(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Iterator[ast.expr]:
    """Without one of its conditions."""
    for i, loop in enumerate(node.generators):
        for j in range(len(loop.ifs)):
            ifs = loop.ifs[:j] + loop.ifs[j + 1 :]
            loops = list(node.generators)
            loops[i] = ast.comprehension(loop.target, loop.iter, ifs, loop.is_async)
            if isinstance(node, ast.DictComp):
                yield ast.DictComp(node.key, node.value, loops)
            else:
                yield type(node)(node.elt, loops)


def _other_calls(node: ast.Call) -> Iterator[ast.expr]:
    """Another function of the same kind, one argument or the object itself instead of the result, no keyword."""
    match node.func:
        case ast.Name(id=name) if name in SAME:
            return
        case ast.Name(id=name) if name in OTHER_NAMES:
            yield ast.Call(ast.Name(OTHER_NAMES[name], ast.Load()), node.args, node.keywords)
        case ast.Attribute(value=value, attr=name) if name in OTHER_NAMES:
            yield ast.Call(ast.Attribute(value, OTHER_NAMES[name], ast.Load()), node.args, node.keywords)
        case ast.Attribute(value=value) if not node.args and not node.keywords:
            yield value
    if len(node.args) == 1 or (isinstance(node.func, ast.Name) and node.func.id in LARGER):
        yield from (arg for arg in node.args if not isinstance(arg, ast.Starred))
    for i in range(len(node.keywords)):
        if node.keywords[i].arg not in UNTOUCHED:
            yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
