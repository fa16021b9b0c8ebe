"""Exit codes of the program; ``Report.exit_code`` decides that of a report."""

HOLDS = 0
VIOLATED = 1  # or crashed; in a gate a regression
USAGE = 2  # input or a configuration that cannot be used
ERROR = 3  # an internal error of gradoracle
INCONCLUSIVE = 4
