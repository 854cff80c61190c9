"""Exits with 0 where the interpreter that runs it was compiled with profile-guided optimisation, as far as it says, else with 1.

Distributions optimise what they ship without always saying so in the configure line: what lies in /usr counts as optimised, and so
does an interpreter without a configure line.
"""

import sys
import sysconfig

configured = sysconfig.get_config_var("CONFIG_ARGS")
sys.exit(not (sys.base_prefix == "/usr" or configured is None or "--enable-optimizations" in configured))
