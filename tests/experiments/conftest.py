"""What several files of tests use."""

import jax
import pytest

from mercer.cli import main


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs the command with some arguments: the exit code, standard output, standard error."""
    monkeypatch.delenv("MERCER_DEBUG", raising=False)

    def command(*arguments):
        with pytest.raises(SystemExit) as exit, jax.enable_x64(False):  # as a process of its own has it
            main([str(argument) for argument in arguments])
        return exit.value.code, *capsys.readouterr()

    return command
