"""`make bench`: ratios taken in one run; never a timed test."""
