"""Who may ask for what, and how much of it. Pure: no HTTP; time comes in as a number."""
