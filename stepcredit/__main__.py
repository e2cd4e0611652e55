"""`python -m stepcredit`."""

import sys

from stepcredit.cli import main

sys.exit(main())
