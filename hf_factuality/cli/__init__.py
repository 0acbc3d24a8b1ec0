"""The `hf-factuality` command: flags, a call of the API, and what is printed. Nothing below this room knows a flag."""

from hf_factuality.cli.main import main as main
