"""Pure formulas and decisions of Tonnage: no clock, no I/O, no global random, no logging."""
