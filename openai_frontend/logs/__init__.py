"""How the process' log looks and where it goes. Decides nothing of what is logged."""
