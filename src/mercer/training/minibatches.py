"""Minibatches: which rows each step sees.

The rows are an endless row of shuffled passes over the data, cut into batches. What a step sees depends on the seed and
its number alone, so that an interrupted run goes on with the batches that it would have seen.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np


def row_dtype(num_data: int) -> np.dtype:
    """The integers that number so many rows."""
    return np.dtype(np.int32 if num_data <= np.iinfo(np.int32).max else np.int64)


class Minibatches:
    """Batches of `size` rows out of `num_data`, each pass over the data in a new order.

    The orders that the next call will ask for are made on a thread, while the device works.
    """

    def __init__(self, num_data: int, size: int, seed: tuple[int, ...]):
        self.num_data, self.size, self.seed = num_data, size, seed
        self._thread = ThreadPoolExecutor(1)
        self._ahead: Future[dict[int, np.ndarray]] = self._thread.submit(dict)

    @property
    def order(self) -> tuple[int | tuple[int, ...], ...]:
        """All that the batches depend on."""
        return self.num_data, self.size, self.seed

    def _order(self, number: int) -> np.ndarray:
        """The order of the rows in one pass."""
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence((*self.seed, number))))
        return random.permutation(self.num_data).astype(row_dtype(self.num_data))

    def _orders(self, numbers: range, known: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The orders of some passes, of which some are known."""
        return {number: known[number] if number in known else self._order(number) for number in numbers}

    def indices(self, first_step: int, num_steps: int) -> np.ndarray:
        """The rows of some consecutive steps, [num_steps, size]."""
        start, stop = first_step * self.size, (first_step + num_steps) * self.size
        first, last = start // self.num_data, (stop - 1) // self.num_data
        last_ahead = (2 * stop - start - 1) // self.num_data
        orders = self._orders(range(first, last + 1), self._ahead.result())
        self._ahead = self._thread.submit(self._orders, range(last, last_ahead + 1), orders)
        rows = np.concatenate(list(orders.values()))
        offset = first * self.num_data
        return rows[start - offset : stop - offset].reshape(num_steps, self.size)
