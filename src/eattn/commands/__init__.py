"""The command line, one file for each group of commands; `eattn.cli` puts them together.

They only read options and print. Modules are imported inside the commands, so that `eattn --help`
does not wait for torch.
"""
