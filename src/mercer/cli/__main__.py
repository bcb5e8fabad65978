"""`python -m mercer.cli` is the command `mercer`."""

from mercer.cli import main

main()
