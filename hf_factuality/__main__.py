"""`python -m hf_factuality` is the `hf-factuality` command."""

import sys

from hf_factuality.cli import main


sys.exit(main())
