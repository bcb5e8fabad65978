"""What is public is documented and typed: every name in an `__all__`, and every public function of a class."""

import importlib
import inspect

import pytest

import mercer as mc

PACKAGES = [
    "kernels",
    "kernels.nngp",
    "means",
    "likelihoods",
    "inducing",
    "inducing.activations",
    "divergences",
    "objectives",
    "objectives.risks",
    "processes",
    "training",
    "linalg",
    "covariances",
    "io",
    "calibration",
    "datasets",
    "gvi",
    "tabular",
    "sklearn",
    "experiments",
]


def public():
    """(name, object) of every public name, once."""
    for module in [mc, *(importlib.import_module(f"mercer.{name}") for name in PACKAGES)]:
        for name in module.__all__:
            value = getattr(module, name)
            if not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


def functions():
    """(name, function) of every public function, and of the public methods that a class is the first to define."""
    for name, value in public():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for method_name, method in vars(value).items():
                inherited = any(hasattr(base, method_name) for base in value.__bases__)
                if inspect.isfunction(method) and not method_name.startswith("_") and not inherited:
                    yield f"{name}.{method_name}", method


@pytest.mark.parametrize("module", [mc, *(importlib.import_module(f"mercer.{name}") for name in PACKAGES)])
def test_what_is_listed_exists(module):
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_classes_and_functions_are_documented():
    without = [name for name, value in public() if inspect.isclass(value) and not vars(value).get("__doc__")]
    without += [name for name, function in functions() if not function.__doc__]
    assert without == []


def test_functions_say_their_types():
    def complete(function):
        signature = inspect.signature(function)
        parameters = [p for name, p in signature.parameters.items() if name != "self"]
        annotated = all(p.annotation is not inspect.Parameter.empty for p in parameters)
        return annotated and signature.return_annotation is not inspect.Signature.empty

    assert [name for name, function in functions() if not complete(function)] == []


def test_keys_come_last_and_by_name():
    def by_name(function):
        key = inspect.signature(function).parameters.get("key")
        return key is None or key.kind is inspect.Parameter.KEYWORD_ONLY

    assert [name for name, function in functions() if not by_name(function)] == []
