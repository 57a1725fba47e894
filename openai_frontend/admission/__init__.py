"""Which requests may run now: queues, budgets and leases."""
