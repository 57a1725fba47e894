"""Which requests may run now: queues, budgets and deferred releases."""
