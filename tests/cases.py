"""Which of many cases are checked each time: the others are marked as slow, and are for `make test-all`."""

import pytest


def mostly_slow(cases, *default):
    """The parameters of a test, of which all but the default ones are slow."""
    cases = list(cases)
    assert set(default) <= set(cases)
    many = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    return [pytest.param(*values, marks=() if case in default else pytest.mark.slow) for case, values in many]
