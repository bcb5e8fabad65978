"""Names that begin with an underscore stay in their module: what another module calls has a public name."""

import ast
from pathlib import Path

import mercer

FILES = sorted(Path(mercer.__file__).parent.rglob("*.py"))
NOT_OURS = {"_getframe"}


def defined(tree):
    """Methods, classes, fields and attributes that a module makes, so that it may use them of another object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def borrowed(tree):
    """Private names that are imported from mercer, or are attributes of something else than `self`, `cls` and `super()`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mercer"):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            yield from filter(is_private, [node.attr])


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def test_no_private_name_is_used_across_modules():
    trees = {str(path): ast.parse(path.read_text()) for path in FILES}
    found = {path: set(borrowed(tree)) - set(defined(tree)) - NOT_OURS for path, tree in trees.items()}
    assert {path: names for path, names in found.items() if names} == {}
