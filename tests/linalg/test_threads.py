"""The limit on BLAS threads ends with its block."""

import contextlib

import pytest
import scipy.linalg  # noqa: F401  (loads a BLAS)
from threadpoolctl import ThreadpoolController, threadpool_limits

from mercer.linalg import quiet_blas


def blas_threads():
    return [pool["num_threads"] for pool in ThreadpoolController().info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("raises", [False, True])
def test_one_thread_inside_and_what_there_was_before_outside(raises):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with contextlib.suppress(ZeroDivisionError), quiet_blas():
            assert set(blas_threads()) == {1}
            with quiet_blas():
                pass
            assert set(blas_threads()) == {1}
            if raises:
                raise ZeroDivisionError
        assert blas_threads() == before
