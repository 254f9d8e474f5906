"""Files of requests and results."""
