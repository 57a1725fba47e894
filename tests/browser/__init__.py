"""Debian's Chromium on the pages of a gateway. `make test-browser` installs it and runs these."""
