"""`python -m erosion`: the same as the command `erosion`."""

import sys

from erosion.command_line import main

sys.exit(main())
