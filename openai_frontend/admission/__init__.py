"""Who waits, in which order, and for how long. Knows no places: a number of them is given to it."""
