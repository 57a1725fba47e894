"""Who may ask for what, and how much of it. Knows no HTTP, and no key but by its digest."""
