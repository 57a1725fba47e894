"""`make setup`: checks the machine, fills `.venv` from the lock files and builds the extension.

Standard library only: it runs before anything is installed.
"""
