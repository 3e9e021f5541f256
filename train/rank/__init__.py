"""One process before any framework is imported: identity, signals, watchdog, failures, start-up."""
