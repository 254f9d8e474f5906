"""What runs pipes: routes, samples, one batch, any number, streams, progress."""
