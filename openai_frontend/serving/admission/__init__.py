"""Access to models, and limits on when a request may run."""
