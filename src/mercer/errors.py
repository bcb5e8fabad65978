"""The base of the errors that are mercer's own.

A wrong argument raises a plain `ValueError`. What fails although the arguments are right has a class of its own, below
`MercerError`: training, checkpoints, factorisations, tables and files.
"""


class MercerError(ValueError):
    """The base of `TrainingError`, `CheckpointError`, `FactorisationError`, `TableError` and `FormatError`."""
