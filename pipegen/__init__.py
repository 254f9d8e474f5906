"""pipegen: render once, run on any engine, get the same text back, and never lose a request."""
