"""HTTP, one file for each resource. What the fields mean is asked of `serving/`."""
